"""How keys and values are kept in the cache: members of the compile-time values `f16` and `f32`.

`bytes` of an element; `overflow`, the bits of the smallest float32 that rounds to infinity (65520 for f16); `load(address)` 16 elements widened to
float32; `store(address, vector)` 16 rounded elements in a row; `store_column(address, vector)` the same elements as a column of a matrix with 16 columns.
"""

from __future__ import annotations

from kernels_numba.simd.function import kernel_function


@kernel_function
def load_f16(simd, address):
    return simd.load_f16x16(address)


@kernel_function
def store_f16(simd, address, value):
    simd.store_f16x16(address, value)


@kernel_function
def store_column_f16(simd, address, value):
    simd.store_column_f16(address, value)


@kernel_function
def load_f32(simd, address):
    return simd.load_f32x16(address)


@kernel_function
def store_f32(simd, address, value):
    simd.store_f32x16(address, value)


@kernel_function
def store_column_f32(simd, address, value):
    simd.store_column_f32(address, value)


F16 = {"bytes": 2, "overflow": 0x477FF000, "load": load_f16, "store": store_f16, "store_column": store_column_f16}
F32 = {"bytes": 4, "overflow": 0x7F800000, "load": load_f32, "store": store_f32, "store_column": store_column_f32}

"""How keys and values are kept in the cache: the compile-time values `f16` and `f32`. The kernels of `pages` and `attention` call their members.

`f16` and `f32`: per head of a page the keys transposed, [key_size][16], then the values, [16][value_size].

Members: `key_bytes(size)` and `value_bytes(size)` of a head in a page; `key(keys, dimension, size)` float32 keys of the 16 positions of a page at one
dimension; `value(values, position, dimension, size)` 16 dimensions of a position from `dimension`, a multiple of 16; `store_key` and `store_value`
(source, size, keys or values, position, largest) round float32[size] and return the larger of `largest` and the bits of the magnitudes;
`overflow`, the smallest bits of a magnitude that the type does not hold (65520 for f16).
"""

from __future__ import annotations

from kernels_numba.simd.function import kernel_function

PAGE_POSITIONS = 16
CACHE_TYPES = ("f16", "f32")

_ELEMENT_BYTES = {"f16": 2, "f32": 4}


def key_bytes(cache_type: str, size: int) -> int:
    """Bytes of the keys of a head in a page."""
    return PAGE_POSITIONS * size * _ELEMENT_BYTES[cache_type]


def value_bytes(cache_type: str, size: int) -> int:
    """Bytes of the values of a head in a page."""
    return PAGE_POSITIONS * size * _ELEMENT_BYTES[cache_type]


@kernel_function
def larger_magnitudes(simd, value, largest):
    return simd.maximum_i32(largest, simd.bits_from_f32x16(simd.absolute(value)))


@kernel_function
def bytes_f16(simd, size):
    return 2 * PAGE_POSITIONS * size


@kernel_function
def key_f16(simd, keys, dimension, size):
    return simd.load_f16x16(keys + 32 * dimension)


@kernel_function
def value_f16(simd, values, position, dimension, size):
    return simd.load_f16x16(values + 2 * (position * size + dimension))


@kernel_function
def store_key_f16(simd, source, size, keys, position, largest):
    for dimension in range(0, size, 16):
        value = simd.load_f32x16(source + 4 * dimension)
        largest = larger_magnitudes(simd, value, largest)
        simd.store_column_f16(keys + 2 * (PAGE_POSITIONS * dimension + position), value)
    return largest


@kernel_function
def store_value_f16(simd, source, size, values, position, largest):
    for dimension in range(0, size, 16):
        value = simd.load_f32x16(source + 4 * dimension)
        largest = larger_magnitudes(simd, value, largest)
        simd.store_f16x16(values + 2 * (position * size + dimension), value)
    return largest


@kernel_function
def bytes_f32(simd, size):
    return 4 * PAGE_POSITIONS * size


@kernel_function
def key_f32(simd, keys, dimension, size):
    return simd.load_f32x16(keys + 64 * dimension)


@kernel_function
def value_f32(simd, values, position, dimension, size):
    return simd.load_f32x16(values + 4 * (position * size + dimension))


@kernel_function
def store_key_f32(simd, source, size, keys, position, largest):
    for dimension in range(0, size, 16):
        value = simd.load_f32x16(source + 4 * dimension)
        largest = larger_magnitudes(simd, value, largest)
        simd.store_column_f32(keys + 4 * (PAGE_POSITIONS * dimension + position), value)
    return largest


@kernel_function
def store_value_f32(simd, source, size, values, position, largest):
    for dimension in range(0, size, 16):
        value = simd.load_f32x16(source + 4 * dimension)
        largest = larger_magnitudes(simd, value, largest)
        simd.store_f32x16(values + 4 * (position * size + dimension), value)
    return largest


F16 = {
    "overflow": 0x477FF000, "key_bytes": bytes_f16, "value_bytes": bytes_f16, "key": key_f16, "value": value_f16, "store_key": store_key_f16,
    "store_value": store_value_f16,
}  # fmt: skip
F32 = {
    "overflow": 0x7F800000, "key_bytes": bytes_f32, "value_bytes": bytes_f32, "key": key_f32, "value": value_f32, "store_key": store_key_f32,
    "store_value": store_value_f32,
}  # fmt: skip

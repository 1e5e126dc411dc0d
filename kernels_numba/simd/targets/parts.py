"""Emission in parts, for instruction sets whose registers are narrower than 512 bits."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kernels_numba.simd.targets.portable import I8, I16, I32, shuffle
from kernels_numba.simd.vocabulary import Emission

I8X16, I8X32 = ir.VectorType(I8, 16), ir.VectorType(I8, 32)
I16X8, I16X16 = ir.VectorType(I16, 8), ir.VectorType(I16, 16)
I32X4, I32X8 = ir.VectorType(I32, 4), ir.VectorType(I32, 8)


def by_parts(e: Emission, count: int, emit: Callable[..., ir.Value], *values: ir.Value) -> ir.Value:
    """`emit` of each of the `count` (a power of two) equal parts of the values, joined again."""
    results = [emit(*(part(e, value, index, count) for value in values)) for index in range(count)]
    while len(results) > 1:
        results = [join(e, *results[index : index + 2]) for index in range(0, len(results), 2)]
    return results[0]


def part(e: Emission, value: ir.Value, index: int, count: int) -> ir.Value:
    """Part number `index` of `count` equal ones."""
    lanes = value.type.count // count
    return shuffle(e, value, list(range(index * lanes, (index + 1) * lanes)))


def join(e: Emission, low: ir.Value, high: ir.Value) -> ir.Value:
    """One vector of the lanes of both."""
    lanes = list(range(2 * low.type.count))
    return e.builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

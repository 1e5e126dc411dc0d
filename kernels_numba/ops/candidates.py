"""Candidates: the tokens that top-k, top-p and min-p leave of a row of logits, and the borders that these filters cut at. For `sampling`.

`scratch` holds `count` of them by ascending id; ids and logits are always there, weights once `weigh_candidates` has written them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.ops.draw_weights import MINUS_INFINITY, highest_of, weigh
from kernels_numba.simd.function import kernel_function

CANDIDATES = 65536
"""Candidates that fit: of a large vocabulary the nucleus of a flat distribution may be larger."""
IDS = 0  # of the scratch: int32[CANDIDATES], ascending
LOGITS = 4 * CANDIDATES  # float32[CANDIDATES]
SCORES = 8 * CANDIDATES  # float64[CANDIDATES]
WEIGHTS = 16 * CANDIDATES  # float64[CANDIDATES]
SAMPLING_SCRATCH_BYTES = 24 * CANDIDATES

LOWEST_SCORE = np.float32(-80.0)  # what is lower, less than 2^-115 of the best, counts as nothing
MINUS_INFINITY_KEY = -0x7F800001


@kernel_function
def put(simd: Any, scratch: int, index: int, id: int, value: Any) -> None:
    simd.store_i32(scratch + IDS + 4 * index, id)
    simd.store_f32(scratch + LOGITS + 4 * index, value)


@kernel_function
def append(simd: Any, row: int, first: int, end: int, bound: Any, scratch: int, count: int) -> int:
    """Appends the columns whose logit is `bound` or more; the new count, which is CANDIDATES + 1 if they do not fit."""
    for column in range(first, end):
        value = simd.load_f32(row + 4 * column)
        if value >= bound:
            if count >= CANDIDATES:
                return CANDIDATES + 1
            put(simd, scratch, count, column, value)
            count += 1
    return count


@kernel_function
def gather(simd: Any, row: int, width: int, block_columns: int, maxima: int, bound: Any, scratch: int) -> int:
    """Makes all columns candidates whose logit is `bound` or more. Returns their count, CANDIDATES + 1 if they do not fit."""
    count = 0
    for block in range((width + block_columns - 1) // block_columns):
        if simd.maximum_lanes(simd.load_f32x16(maxima + 64 * block)) >= bound:
            end = min(width, block_columns * (block + 1))
            column = block_columns * block
            while column + 64 <= end:
                if highest_of(simd, row + 4 * column) >= bound:
                    count = append(simd, row, column, column + 64, bound, scratch, count)
                    if count > CANDIDATES:
                        return count
                column += 64
            count = append(simd, row, column, end, bound, scratch, count)
            if count > CANDIDATES:
                return count
    return count


@kernel_function
def keep(simd: Any, scratch: int, count: int, border: Any, equal: int) -> int:
    """Keeps the candidates above `border` and, of those equal to it, the first `equal`; the new count."""
    kept = 0
    for index in range(count):
        value = simd.load_f32(scratch + LOGITS + 4 * index)
        wanted = value > border
        if value == border and equal > 0:
            equal -= 1
            wanted = True
        if wanted:
            put(simd, scratch, kept, simd.load_i32(scratch + IDS + 4 * index), value)
            kept += 1
    return kept


@kernel_function
def pad(simd: Any, scratch: int, count: int) -> int:
    """Makes the logits up to a multiple of 16 minus infinity, and returns that multiple."""
    end = (count + 15) // 16 * 16
    for index in range(count, end):
        simd.store_f32(scratch + LOGITS + 4 * index, MINUS_INFINITY)
    return end


# -- borders, by bisection over float32 in their order. A key is an integer that orders like the number.


@kernel_function
def key_of(simd: Any, value: Any) -> int:
    bits = simd.bits_from_f32(value)
    if bits >= 0x80000000:
        return (bits - 0x100000000) ^ 0x7FFFFFFF
    return bits


@kernel_function
def value_of(simd: Any, key: int) -> Any:
    if key < 0:
        return simd.f32_from_bits(key ^ 0x7FFFFFFF)
    return simd.f32_from_bits(key)


@kernel_function
def count_from(simd: Any, values: int, end: int, border: Any) -> Any:
    """How many of the float32 before `end`, a multiple of 16, are `border` or more."""
    borders = simd.splat_f32(border)
    found = simd.splat_f32(np.float32(0))
    for index in range(0, end, 16):
        found = found + simd.select_less(simd.load_f32x16(values + 4 * index), borders, simd.splat_f32(np.float32(0)), simd.splat_f32(np.float32(1)))
    return simd.sum_lanes(found)


@kernel_function
def kth_largest(simd: Any, values: int, end: int, largest: Any, wanted: int) -> Any:
    """The `wanted`-th largest of the float32 before `end`, a multiple of 16 and `wanted` at least; `largest` is the largest."""
    low = MINUS_INFINITY_KEY
    high = key_of(simd, largest) + 1
    needed = simd.f32_from_i64(wanted)
    while high - low > 1:
        middle = low + (high - low) // 2
        if count_from(simd, values, end, value_of(simd, middle)) >= needed:
            low = middle
        else:
            high = middle
    return value_of(simd, low)


@kernel_function
def weigh_candidates(simd: Any, scratch: int, count: int, largest: Any) -> int:
    """Writes the weights of the candidates before temperature; returns the count as a multiple of 16."""
    end = pad(simd, scratch, count)
    for index in range(0, end, 16):
        values = simd.load_f32x16(scratch + LOGITS + 4 * index)
        weights = weigh(simd, values, simd.splat_f32(largest), simd.splat_f32(LOWEST_SCORE), simd.splat_f64(1.0))
        simd.store_f64x16(scratch + WEIGHTS + 8 * index, weights)
    return end


@kernel_function
def mass(simd: Any, scratch: int, end: int, border: Any, with_border: bool) -> float:
    """The sum of the weights of candidates above `border`, or equal to it too."""
    borders = simd.splat_f32(border)
    zero = simd.splat_f32(np.float32(0))
    one = simd.splat_f32(np.float32(1))
    total = simd.splat_f64(0.0)
    for index in range(0, end, 16):
        values = simd.load_f32x16(scratch + LOGITS + 4 * index)
        chosen = simd.select_less(values, borders, zero, one) if with_border else simd.select_less(borders, values, one, zero)
        total = total + simd.f64_from_f32(chosen) * simd.load_f64x16(scratch + WEIGHTS + 8 * index)
    return simd.sum_lanes_f64(total)


@kernel_function
def nucleus_border(simd: Any, scratch: int, end: int, largest: Any, target: float) -> Any:
    """The largest logit so that all candidates from it on weigh `target` or more together; minus infinity if there is none."""
    low = MINUS_INFINITY_KEY
    high = key_of(simd, largest) + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        if mass(simd, scratch, end, value_of(simd, middle), True) >= target:
            low = middle
        else:
            high = middle
    return value_of(simd, low)

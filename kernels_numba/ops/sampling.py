"""The kernel that draws tokens in a burst: what `edgeinfer.sampling` does with logits, for the backend's tape, between `draw_weights.weigh_logits`
and `greedy.choose_tokens`.

A drawn token is the one of the definition (top-k, top-p, min-p, temperature, then a draw in float64, sums from left to right), never another. Candidates are
weighed and summed exactly so. Sums over the whole vocabulary are made in another order, and where a decision comes closer to such a sum than rounding can
move it, or there are more candidates than fit, the token is UNDECIDED: the burst ends, and whoever asked draws it from the logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.executor.step import DRAWS, LARGEST, OUTPUTS, PASSES_DONE, UNIFORMS
from kernels_numba.ops.common import word
from kernels_numba.ops.draw_weights import (
    MINUS_INFINITY,
    ROUNDING,
    draw_of,
    exponential,
    lowest_score,
    scale_of_sums,
    sum_of_blocks,
    uses_top_k,
    weigh,
    weigh_exactly,
)  # fmt: skip
from kernels_numba.ops.draws import DRAW_INVERSE, DRAW_LOWEST, DRAW_MIN_P, DRAW_TEMPERATURE, DRAW_TOP_K, DRAW_TOP_P
from kernels_numba.simd.function import kernel_function

SAMPLE_TOKENS_OPERANDS = (
    "input", "input_stride", "width", "block_columns", "block_maxima", "block_maxima_stride", "block_sums", "block_sums_stride", "scratch",
)  # fmt: skip

UNDECIDED = -1

CANDIDATES = 65536
"""Candidates that fit: of a large vocabulary the nucleus of a flat distribution may be larger."""
IDS = 0  # of the scratch: int32[CANDIDATES], ascending
LOGITS = 4 * CANDIDATES  # float32[CANDIDATES]
SCORES = 8 * CANDIDATES  # float64[CANDIDATES]
WEIGHTS = 16 * CANDIDATES  # float64[CANDIDATES]
SAMPLING_SCRATCH_BYTES = 24 * CANDIDATES

NEGLIGIBLE = -44.0  # as in edgeinfer.sampling.transforms
LOWEST_SCORE = np.float32(-80.0)  # what is lower, less than 2^-115 of the best, counts as nothing
MINUS_INFINITY_KEY = -0x7F800001
FIRST_NUCLEUS = np.float32(6.0)
NUCLEUS_STEP = np.float32(2.0)
"""Candidates of top-p are looked for among scores above -6, then -8 and so on: with 0.95, the former does for three tokens of four."""


# -- candidates: `count` of them in the scratch, by ascending id


@kernel_function
def append(simd: Any, row: int, first: int, end: int, bound: Any, scratch: int, count: int) -> int:
    """Appends the columns whose logit is `bound` or more; the new count, which is CANDIDATES + 1 if they do not fit."""
    for column in range(first, end):
        value = simd.load_f32(row + 4 * column)
        if value >= bound:
            if count >= CANDIDATES:
                return CANDIDATES + 1
            simd.store_i32(scratch + IDS + 4 * count, column)
            simd.store_f32(scratch + LOGITS + 4 * count, value)
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
                at = row + 4 * column
                low = simd.maximum(simd.load_f32x16(at), simd.load_f32x16(at + 64))
                high = simd.maximum(simd.load_f32x16(at + 128), simd.load_f32x16(at + 192))
                if simd.maximum_lanes(simd.maximum(low, high)) >= bound:
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
            simd.store_i32(scratch + IDS + 4 * kept, simd.load_i32(scratch + IDS + 4 * index))
            simd.store_f32(scratch + LOGITS + 4 * kept, value)
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


# -- the filters and the draw


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
def keep_top_k(simd: Any, row: int, width: int, block_columns: int, maxima: int, largest: Any, top_k: int, scratch: int) -> int:
    """The `top_k` largest as candidates; of equal ones the lower ids."""
    lanes = 16 * ((width + block_columns - 1) // block_columns)
    bound = MINUS_INFINITY
    if lanes >= top_k:
        bound = kth_largest(simd, maxima, lanes, largest, top_k)  # so many logits are as large, in different lanes
    count = gather(simd, row, width, block_columns, maxima, bound, scratch)
    if count > CANDIDATES or count < top_k:
        return UNDECIDED
    end = pad(simd, scratch, count)
    border = kth_largest(simd, scratch + LOGITS, end, largest, top_k)
    above = 0
    for index in range(count):
        if simd.load_f32(scratch + LOGITS + 4 * index) > border:
            above += 1
    return keep(simd, scratch, count, border, top_k - above)


@kernel_function
def keep_top_p(simd: Any, scratch: int, count: int, largest: Any, top_p: float, total: float, margin: float) -> int:
    """The fewest best candidates that weigh `top_p` of `total`, which may be wrong by `margin`. UNDECIDED if that might matter."""
    end = weigh_candidates(simd, scratch, count, largest)
    target = top_p * total
    border = nucleus_border(simd, scratch, end, largest, target)
    above = mass(simd, scratch, end, border, False)
    weight = 0.0
    equal = 0
    for index in range(count):
        if simd.load_f32(scratch + LOGITS + 4 * index) == border:
            weight = simd.load_f64(scratch + WEIGHTS + 8 * index)
            equal += 1
    needed = 1
    while needed < equal and above + weight * simd.f64_from_i64(needed) < target:
        needed += 1
    before = above + weight * simd.f64_from_i64(needed - 1)
    if equal == 0 or before + weight < target + margin or (before > 0.0 and before > target - margin):
        return UNDECIDED
    return keep(simd, scratch, count, border, needed)


@kernel_function
def keep_min_p(simd: Any, scratch: int, count: int, largest: Any, min_p: float) -> int:
    """The candidates with at least `min_p` of the weight of the best."""
    weigh_candidates(simd, scratch, count, largest)
    kept = 0
    for index in range(count):
        if simd.load_f64(scratch + WEIGHTS + 8 * index) >= min_p:
            simd.store_i32(scratch + IDS + 4 * kept, simd.load_i32(scratch + IDS + 4 * index))
            simd.store_f32(scratch + LOGITS + 4 * kept, simd.load_f32(scratch + LOGITS + 4 * index))
            kept += 1
    return kept


@kernel_function
def draw_candidate(simd: Any, scratch: int, count: int, largest: Any, temperature: float, uniform: float) -> int:
    """The candidate at the point `uniform` of the cumulated weights."""
    end = pad(simd, scratch, count)
    origin = simd.f64_from_f32(simd.splat_f32(largest))
    divisor = simd.splat_f64(temperature)
    for index in range(0, end, 16):
        scores = (simd.f64_from_f32(simd.load_f32x16(scratch + LOGITS + 4 * index)) - origin) / divisor
        simd.store_f64x16(scratch + SCORES + 8 * index, scores)
        simd.store_f64x16(scratch + WEIGHTS + 8 * index, exponential(simd, scores))  # nobody looks at those of negligible scores
    total = 0.0
    for index in range(count):
        if simd.load_f64(scratch + SCORES + 8 * index) >= NEGLIGIBLE:
            total += simd.load_f64(scratch + WEIGHTS + 8 * index)
    target = uniform * total
    reached = 0.0
    last = 0
    for index in range(count):
        if simd.load_f64(scratch + SCORES + 8 * index) >= NEGLIGIBLE:
            reached += simd.load_f64(scratch + WEIGHTS + 8 * index)
            last = index
            if reached > target:
                break
    return simd.load_i32(scratch + IDS + 4 * last)


@kernel_function
def draw_any(simd: Any, row: int, width: int, block_columns: int, maxima: int, sums: int, largest: Any, draw: int, uniform: float, scratch: int) -> int:
    """The column at the point `uniform` of the cumulated weights of the whole vocabulary; UNDECIDED if rounding might matter."""
    scale = simd.load_f64(draw + DRAW_INVERSE)
    blocks = (width + block_columns - 1) // block_columns
    total, margin = sum_of_blocks(simd, width, block_columns, maxima, sums, largest, scale, scratch + SCORES)
    target = uniform * total
    reached = 0.0
    block = 0
    while block + 1 < blocks and reached + simd.load_f64(scratch + SCORES + 8 * block) <= target:
        reached += simd.load_f64(scratch + SCORES + 8 * block)
        block += 1
    lowest = lowest_score(simd, scale)
    scales = simd.splat_f64(scale)
    origin = simd.splat_f32(largest)
    for column in range(block_columns * block, width, 16):
        values = simd.keep_lanes(simd.load_lanes_f32(row + 4 * column, width - column), 0, width - column, simd.splat_f32(MINUS_INFINITY))
        simd.store_f64x16(scratch + WEIGHTS, weigh(simd, values, origin, lowest, scales))
        for lane in range(16):
            before = reached
            reached += simd.load_f64(scratch + WEIGHTS + 8 * lane)
            if reached > target:
                if before + margin <= target or before == 0.0:
                    if reached - margin > target and column + lane < width:
                        return column + lane
                return UNDECIDED
    return UNDECIDED


@kernel_function
def sample_by_sums(simd: Any, row: int, width: int, block_columns: int, maxima: int, sums: int, draw: int, uniform: float, scratch: int) -> int:
    """The token that is drawn from a row of logits, or UNDECIDED: by these sums of the blocks."""
    blocks = (width + block_columns - 1) // block_columns
    lanes = simd.load_f32x16(maxima)
    for block in range(1, blocks):
        lanes = simd.maximum(lanes, simd.load_f32x16(maxima + 64 * block))
    largest = simd.maximum_lanes(lanes)
    top_p = simd.load_f64(draw + DRAW_TOP_P)
    min_p = simd.load_f64(draw + DRAW_MIN_P)
    if uses_top_k(simd, draw, width):
        count = keep_top_k(simd, row, width, block_columns, maxima, largest, simd.load_i64(draw + DRAW_TOP_K), scratch)
        if count > 0 and top_p < 1.0:
            end = weigh_candidates(simd, scratch, count, largest)
            total = mass(simd, scratch, end, MINUS_INFINITY, False)
            count = keep_top_p(simd, scratch, count, largest, top_p, total, total * ROUNDING * simd.f64_from_i64(count + 1024))
    elif top_p < 1.0:
        total, margin = sum_of_blocks(simd, width, block_columns, maxima, sums, largest, 1.0, scratch + SCORES)
        depth = FIRST_NUCLEUS
        count = gather(simd, row, width, block_columns, maxima, largest - depth, scratch)
        end = 0
        if count <= CANDIDATES:
            end = weigh_candidates(simd, scratch, count, largest)
        while depth < np.float32(44.0) and count <= CANDIDATES and mass(simd, scratch, end, MINUS_INFINITY, False) < top_p * total:
            depth = depth + NUCLEUS_STEP
            count = gather(simd, row, width, block_columns, maxima, largest - depth, scratch)
            if count <= CANDIDATES:
                end = weigh_candidates(simd, scratch, count, largest)
        if count > CANDIDATES:
            return UNDECIDED
        count = keep_top_p(simd, scratch, count, largest, top_p, total, margin)
    elif min_p > 0.0:
        below = simd.f32_from_f64(simd.splat_f64(simd.load_f64(draw + DRAW_LOWEST)))
        count = gather(simd, row, width, block_columns, maxima, largest + simd.maximum_lanes(below), scratch)
    else:
        return draw_any(simd, row, width, block_columns, maxima, sums, largest, draw, uniform, scratch)
    if count < 1 or count > CANDIDATES:
        return UNDECIDED
    if min_p > 0.0:
        count = keep_min_p(simd, scratch, count, largest, min_p)
    return draw_candidate(simd, scratch, count, largest, simd.load_f64(draw + DRAW_TEMPERATURE), uniform)


@kernel_function
def sample_row(simd: Any, row: int, width: int, block_columns: int, maxima: int, sums: int, draw: int, uniform: float, scratch: int) -> int:
    """The token that is drawn from a row of logits, or UNDECIDED. Where the rough sums leave it so, exact ones are made."""
    scale = scale_of_sums(simd, draw, width)
    token = UNDECIDED
    attempts = 1 if scale == 0.0 else 2
    while token == UNDECIDED and attempts > 0:
        token = sample_by_sums(simd, row, width, block_columns, maxima, sums, draw, uniform, scratch)
        attempts -= 1
        if token == UNDECIDED and attempts > 0:
            weigh_exactly(simd, row, width, block_columns, maxima, scale, sums)
    return token


@kernel_function
def sample_tokens(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Writes the tokens of the output rows that are drawn, or UNDECIDED, into the step's `largest`. By worker 0, before `choose_tokens`."""
    if worker != 0 or simd.load_i64(step + DRAWS) == 0:
        return
    logits = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    width = word(simd, operands, 2)
    block_columns = word(simd, operands, 3)
    maxima = word(simd, operands, 4)
    maxima_stride = word(simd, operands, 5)
    sums = word(simd, operands, 6)
    sums_stride = word(simd, operands, 7)
    scratch = word(simd, operands, 8)
    outputs = simd.load_i64(step + OUTPUTS)
    done = simd.load_i64(step + PASSES_DONE)
    chosen = simd.load_i64(step + LARGEST) + 4 * outputs * done
    uniforms = simd.load_i64(step + UNIFORMS) + 8 * outputs * done
    for row in range(outputs):
        draw = draw_of(simd, step, row)
        if draw != 0:
            uniform = simd.load_f64(uniforms + 8 * row)
            token = sample_row(
                simd, logits + row * stride, width, block_columns, maxima + row * maxima_stride, sums + row * sums_stride, draw, uniform, scratch
            )
            simd.store_i32(chosen + 4 * row, token)

"""The kernel that draws tokens in a burst: what `edgeinfer.sampling` does with logits, for the backend's tape, between `draw_weights.weigh_logits`
and `greedy.choose_tokens`.

A drawn token is the one of the definition (top-k, top-p, min-p, temperature, then a draw in float64, sums from left to right), never another. Candidates are
weighed and summed exactly so. Sums over the whole vocabulary are made in another order, and where a decision comes closer to such a sum than rounding can
move it, or there are more candidates than fit, the token is UNDECIDED: the burst ends, and whoever asked draws it from the logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.executor.step import DRAWS, OUTPUTS, PASSES_DONE, UNIFORMS
from kernels_numba.ops.candidates import (
    CANDIDATES,
    IDS,
    LOGITS,
    SCORES,
    WEIGHTS,
    gather,
    keep,
    kth_largest,
    mass,
    nucleus_border,
    pad,
    put,
    weigh_candidates,
)  # fmt: skip
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
from kernels_numba.ops.elementwise import largest_of_maxima
from kernels_numba.ops.greedy import chosen_tokens
from kernels_numba.simd.function import kernel_function

SAMPLE_TOKENS_OPERANDS = (
    "input", "input_stride", "width", "block_columns", "block_maxima", "block_maxima_stride", "block_sums", "block_sums_stride", "scratch",
)  # fmt: skip

UNDECIDED = -1

NEGLIGIBLE = -44.0  # as in edgeinfer.sampling.transforms
FIRST_NUCLEUS = np.float32(6.0)
NUCLEUS_STEP = np.float32(2.0)
"""Candidates of top-p are looked for among scores above -6, then -8 and so on: with 0.95, the former does for three tokens of four."""


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
def gather_nucleus(simd: Any, row: int, width: int, block_columns: int, maxima: int, largest: Any, target: float, scratch: int) -> int:
    """Makes the best columns of a row candidates, at least so many that they weigh `target`; or all that do not count as nothing. Returns their count,
    CANDIDATES + 1 if they do not fit."""
    depth = FIRST_NUCLEUS
    while True:
        count = gather(simd, row, width, block_columns, maxima, largest - depth, scratch)
        if count > CANDIDATES or depth >= -NEGLIGIBLE:
            return count
        end = weigh_candidates(simd, scratch, count, largest)
        if mass(simd, scratch, end, MINUS_INFINITY, False) >= target:
            return count
        depth = depth + NUCLEUS_STEP


@kernel_function
def keep_min_p(simd: Any, scratch: int, count: int, largest: Any, min_p: float) -> int:
    """The candidates with at least `min_p` of the weight of the best."""
    weigh_candidates(simd, scratch, count, largest)
    kept = 0
    for index in range(count):
        if simd.load_f64(scratch + WEIGHTS + 8 * index) >= min_p:
            put(simd, scratch, kept, simd.load_i32(scratch + IDS + 4 * index), simd.load_f32(scratch + LOGITS + 4 * index))
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
    largest = largest_of_maxima(simd, maxima, (width + block_columns - 1) // block_columns)
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
        count = gather_nucleus(simd, row, width, block_columns, maxima, largest, top_p * total, scratch)
        if count <= CANDIDATES:
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
    chosen = chosen_tokens(simd, step)
    uniforms = simd.load_i64(step + UNIFORMS) + 8 * outputs * simd.load_i64(step + PASSES_DONE)
    for row in range(outputs):
        draw = draw_of(simd, step, row)
        if draw != 0:
            uniform = simd.load_f64(uniforms + 8 * row)
            token = sample_row(
                simd, logits + row * stride, width, block_columns, maxima + row * maxima_stride, sums + row * sums_stride, draw, uniform, scratch
            )
            simd.store_i32(chosen + 4 * row, token)

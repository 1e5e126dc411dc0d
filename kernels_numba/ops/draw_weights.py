"""Weights of logits, for kernels that draw tokens: the exponential of the sampler, and the kernel that sums weights over the whole vocabulary, block by
block. In the tape of bursts that draw it stands between `elementwise.check_logits` and `sampling`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.executor.step import DRAWS, OUTPUTS
from kernels_numba.ops.common import share_start, word
from kernels_numba.ops.draws import DRAW_BYTES, DRAW_INVERSE, DRAW_MIN_P, DRAW_TEMPERATURE, DRAW_TOP_K, DRAW_TOP_P
from kernels_numba.ops.mathematics import exp_of_four_not_positive
from kernels_numba.simd.function import kernel_function

WEIGH_LOGITS_OPERANDS = ("input", "input_stride", "width", "block_columns", "block_maxima", "block_maxima_stride", "sums", "sums_stride")

MINUS_INFINITY = np.float32(-np.inf)
SUM_BYTES = 16
"""Of a block's sums."""
ROUNDING = 2.0**-50
"""Of a float64 sum, by addend: twice what two orders of summation can differ by, and the roundings of weights."""
ROUGH_SCORE = -3.0
"""Logits that are so far below the largest of their block are weighed roughly, unless one of the 64 around is not: most of the mass is above."""
ROUGHNESS = 2.0**-16
"""What a float32 weight and the sum of four may be wrong by, relatively: exp by 2^-22, its argument, down to -60, by three roundings."""

LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
T13, T12, T11, T10, T9, T8, T7, T6, T5, T4, T3 = (
    1 / 6227020800, 1 / 479001600, 1 / 39916800, 1 / 3628800, 1 / 362880, 1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6,
)  # fmt: skip


@kernel_function
def exponential(simd, x):
    """e^x of float64 in [-80, 80], with the bits of `edgeinfer.sampling.transforms.exponential`."""
    n = simd.round_f64(x * simd.splat_f64(LOG2_E))
    r = (x - n * simd.splat_f64(LN2_HIGH)) - n * simd.splat_f64(LN2_LOW)
    p = simd.splat_f64(T13) * r + simd.splat_f64(T12)
    p = p * r + simd.splat_f64(T11)
    p = p * r + simd.splat_f64(T10)
    p = p * r + simd.splat_f64(T9)
    p = p * r + simd.splat_f64(T8)
    p = p * r + simd.splat_f64(T7)
    p = p * r + simd.splat_f64(T6)
    p = p * r + simd.splat_f64(T5)
    p = p * r + simd.splat_f64(T4)
    p = p * r + simd.splat_f64(T3)
    p = p * r + simd.splat_f64(0.5)
    p = p * r + simd.splat_f64(1.0)
    p = p * r + simd.splat_f64(1.0)
    power = simd.f32x16_from_bits((simd.round_i32_from_f64(n) + simd.splat_i32(127)) << 23)  # 2^n, a normal float32
    return p * simd.f64_from_f32(power)


@kernel_function
def draw_of(simd: Any, step: int, row: int) -> int:
    """The record of an output row that is drawn; 0 for one that takes its largest logit."""
    draws = simd.load_i64(step + DRAWS)
    if draws == 0 or simd.load_f64(draws + DRAW_BYTES * row + DRAW_TEMPERATURE) == 0.0:
        return 0
    return draws + DRAW_BYTES * row


@kernel_function
def uses_top_k(simd: Any, draw: int, width: int) -> bool:
    top_k = simd.load_i64(draw + DRAW_TOP_K)
    return top_k > 0 and top_k < width


@kernel_function
def scale_of_sums(simd: Any, draw: int, width: int) -> float:
    """What scores are multiplied by before they are weighed and summed over the whole vocabulary; 0 if no such sum is needed."""
    if uses_top_k(simd, draw, width):
        return 0.0
    if simd.load_f64(draw + DRAW_TOP_P) < 1.0:
        return 1.0
    if simd.load_f64(draw + DRAW_MIN_P) > 0.0:
        return 0.0
    return simd.load_f64(draw + DRAW_INVERSE)


@kernel_function
def lowest_score(simd: Any, scale: float) -> Any:
    """The score, in every lane, below which a logit has less than 2^-86 of the weight of the largest, which counts as nothing."""
    return simd.f32_from_f64(simd.splat_f64(-60.0) / simd.splat_f64(scale))


@kernel_function
def weigh(simd, values, largest, lowest, scale):
    """exp((value - largest) * scale) of 16 logits; 0 where value - largest is below `lowest`."""
    scores = values - largest
    ones = simd.select_less(scores, lowest, simd.splat_f32(np.float32(0)), simd.splat_f32(np.float32(1)))
    heavy = simd.select_less(scores, lowest, largest, values)
    return exponential(simd, (simd.f64_from_f32(heavy) - simd.f64_from_f32(largest)) * scale) * simd.f64_from_f32(ones)


@kernel_function
def weigh_roughly(simd, address, largest, scale):
    """The sum of exp((value - largest) * scale) of 64 logits, as 16 float32, within ROUGHNESS."""
    first = (simd.load_f32x16(address) - largest) * scale
    second = (simd.load_f32x16(address + 64) - largest) * scale
    third = (simd.load_f32x16(address + 128) - largest) * scale
    fourth = (simd.load_f32x16(address + 192) - largest) * scale
    weights = exp_of_four_not_positive(simd, (first, second, third, fourth))
    return (weights[0] + weights[1]) + (weights[2] + weights[3])


@kernel_function
def highest_of(simd, address):
    """The largest of 64 logits."""
    low = simd.maximum(simd.load_f32x16(address), simd.load_f32x16(address + 64))
    return simd.maximum_lanes(simd.maximum(low, simd.maximum(simd.load_f32x16(address + 128), simd.load_f32x16(address + 192))))


@kernel_function
def sum_block(simd: Any, address: int, count: int, largest: Any, scale: float, roughly_below: Any, result: int) -> None:
    """Writes the sum of exp((logit - largest) * scale) of a block of `count` logits, of which `largest` is the largest, and how much of it is only known
    roughly, to float64[2]: 64 logits that are all below `roughly_below` are weighed in float32, which takes a quarter of the time."""
    lowest = lowest_score(simd, scale)
    scales = simd.splat_f64(scale)
    rough_scales = simd.f32_from_f64(scales)
    origin = simd.splat_f32(largest)
    total = simd.splat_f64(0.0)
    rough = simd.splat_f64(0.0)
    column = 0
    while column + 64 <= count:
        at = address + 4 * column
        if highest_of(simd, at) < roughly_below:
            rough = rough + simd.f64_from_f32(weigh_roughly(simd, at, origin, rough_scales))
        else:
            for offset in range(0, 256, 64):
                total = total + weigh(simd, simd.load_f32x16(at + offset), origin, lowest, scales)
        column += 64
    while column < count:
        rest = simd.keep_lanes(simd.load_lanes_f32(address + 4 * column, count - column), 0, count - column, simd.splat_f32(MINUS_INFINITY))
        total = total + weigh(simd, rest, origin, lowest, scales)
        column += 16
    simd.store_f64(result, simd.sum_lanes_f64(total + rough))
    simd.store_f64(result + 8, simd.sum_lanes_f64(rough))


@kernel_function
def weigh_logits(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Writes `sum_block` of every block of logits of the rows that need it, roughly, to `sums`: float64[outputs, blocks, 2]. Workers share blocks as in
    `elementwise.check_logits`, which has left them in their caches."""
    logits = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    width = word(simd, operands, 2)
    block_columns = word(simd, operands, 3)
    maxima = word(simd, operands, 4)
    maxima_stride = word(simd, operands, 5)
    sums = word(simd, operands, 6)
    sums_stride = word(simd, operands, 7)
    blocks = (width + block_columns - 1) // block_columns
    units = simd.load_i64(step + OUTPUTS) * blocks
    for unit in range(share_start(simd, units, worker, workers), share_start(simd, units, worker + 1, workers)):
        row = unit // blocks
        block = unit - row * blocks
        draw = draw_of(simd, step, row)
        if draw != 0:
            scale = scale_of_sums(simd, draw, width)
            if scale != 0.0:
                highest = simd.maximum_lanes(simd.load_f32x16(maxima + row * maxima_stride + 64 * block))
                depth = simd.maximum_lanes(simd.f32_from_f64(simd.splat_f64(ROUGH_SCORE) / simd.splat_f64(scale)))
                address = logits + row * stride + 4 * block_columns * block
                count = min(block_columns, width - block_columns * block)
                sum_block(simd, address, count, highest, scale, highest + depth, sums + row * sums_stride + SUM_BYTES * block)


@kernel_function
def weigh_exactly(simd: Any, row: int, width: int, block_columns: int, maxima: int, scale: float, sums: int) -> None:
    """`sum_block` for all blocks of a row, with nothing rough."""
    for block in range((width + block_columns - 1) // block_columns):
        count = min(block_columns, width - block_columns * block)
        highest = simd.maximum_lanes(simd.load_f32x16(maxima + 64 * block))
        sum_block(simd, row + 4 * block_columns * block, count, highest, scale, MINUS_INFINITY, sums + SUM_BYTES * block)


@kernel_function
def sum_of_blocks(simd: Any, width: int, block_columns: int, maxima: int, sums: int, largest: Any, scale: float, result: int) -> Any:
    """(weight of the whole vocabulary relative to `largest`, what it and any sum of a part of it may be wrong by); and in `result` float64[blocks] the
    weight of each block."""
    total = 0.0
    rough = 0.0
    for block in range((width + block_columns - 1) // block_columns):
        highest = simd.maximum_lanes(simd.load_f32x16(maxima + 64 * block))
        factors = weigh(simd, simd.splat_f32(highest), simd.splat_f32(largest), lowest_score(simd, scale), simd.splat_f64(scale))
        factor = simd.sum_lanes_f64(factors) * 0.0625
        weight = factor * simd.load_f64(sums + SUM_BYTES * block)
        simd.store_f64(result + 8 * block, weight)
        total += weight
        rough += factor * simd.load_f64(sums + SUM_BYTES * block + 8)
    return total, total * ROUNDING * simd.f64_from_i64(width + 1024) + rough * ROUGHNESS

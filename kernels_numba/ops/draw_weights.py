"""Weights of logits, for kernels that draw tokens: the exponential of the sampler, and sums over the whole vocabulary. Used by `sampling`, and by
`elementwise.check_logits`, which sums the weights of each block of logits while it is in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.executor.step import DRAWS
from kernels_numba.ops.draws import DRAW_BYTES, DRAW_INVERSE, DRAW_MIN_P, DRAW_TEMPERATURE, DRAW_TOP_K, DRAW_TOP_P
from kernels_numba.simd.function import kernel_function

MINUS_INFINITY = np.float32(-np.inf)

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
def weigh_block(simd: Any, step: int, row: int, width: int, address: int, count: int, largest: Any, result: int) -> None:
    """Writes the float64 sum of exp((logit - largest) * scale) of a block of `count` logits, of which `largest` is the largest, if the row needs it."""
    draw = draw_of(simd, step, row)
    if draw == 0:
        return
    scale = scale_of_sums(simd, draw, width)
    if scale == 0.0:
        return
    lowest = lowest_score(simd, scale)
    scales = simd.splat_f64(scale)
    origin = simd.splat_f32(largest)
    total = simd.splat_f64(0.0)
    full = count // 16 * 16
    for column in range(0, full, 16):
        total = total + weigh(simd, simd.load_f32x16(address + 4 * column), origin, lowest, scales)
    if full < count:
        rest = simd.keep_lanes(simd.load_lanes_f32(address + 4 * full, count - full), 0, count - full, simd.splat_f32(MINUS_INFINITY))
        total = total + weigh(simd, rest, origin, lowest, scales)
    simd.store_f64(result, simd.sum_lanes_f64(total))


@kernel_function
def sum_of_blocks(simd: Any, blocks: int, maxima: int, sums: int, largest: Any, scale: float, result: int) -> float:
    """The weight of the whole vocabulary relative to `largest`, and in `result` float64[blocks] that of each block."""
    total = 0.0
    for block in range(blocks):
        highest = simd.maximum_lanes(simd.load_f32x16(maxima + 64 * block))
        factors = weigh(simd, simd.splat_f32(highest), simd.splat_f32(largest), lowest_score(simd, scale), simd.splat_f64(scale))
        weight = simd.sum_lanes_f64(factors) * 0.0625 * simd.load_f64(sums + 8 * block)
        simd.store_f64(result + 8 * block, weight)
        total += weight
    return total

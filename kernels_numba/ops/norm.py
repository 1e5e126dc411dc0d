"""RMS norm, alone and fused with the quantization of its result.

The sum of squares of a segment: four chains of 16-lane fma, vector v to chain v % 4 for the first 4 * floor(vectors / 4) vectors and the rest to
chain 0, then (c0 + c1) + (c2 + c3) and the tree of `sum_lanes`. The order depends on the width alone. A sum that overflows makes the row NaN, never
silently zero.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN, GROUP, float_word, row_count, share_of_groups, share_of_heads, tile_width, word
from kernels_numba.ops.quantize import load_second_half, quantize_group, token_block
from kernels_numba.simd.function import kernel_function

RMS_NORM_OPERANDS = ("input", "input_stride", "weight", "segment", "segments", "epsilon", "per_output", "output", "output_stride")
RMS_NORM_QUANTIZE_OPERANDS = ("input", "input_stride", "weight", "width", "epsilon", "per_output", "output", "output_stride", "blocks")


@kernel_function
def inverse_rms(simd, source, width, columns, epsilon):
    """1 / sqrt(mean of squares + epsilon) over `width` values; `columns` is the width rounded up to 16, zero in between."""
    first = simd.splat_f32(np.float32(0))
    second = first
    third = first
    fourth = first
    whole = columns // 64 * 64
    for column in range(0, whole, 64):
        address = source + 4 * column
        value = simd.load_f32x16(address)
        first = simd.fma(value, value, first)
        value = simd.load_f32x16(address + 64)
        second = simd.fma(value, value, second)
        value = simd.load_f32x16(address + 128)
        third = simd.fma(value, value, third)
        value = simd.load_f32x16(address + 192)
        fourth = simd.fma(value, value, fourth)
    for column in range(whole, columns, 16):
        value = simd.load_f32x16(source + 4 * column)
        first = simd.fma(value, value, first)
    total = simd.sum_lanes((first + second) + (third + fourth))
    root = simd.sqrt_f32(total / simd.f32_from_i64(width) + epsilon)
    return np.float32(1) / root + (total - total)  # total - total: 0, or NaN after an overflow


@kernel_function
def rms_norm(simd, operands, step, worker, workers):
    """y = x * (1 / sqrt(mean(x^2) + epsilon)) * weight over each of `segments` segments of `segment` columns.

    With more than one segment, `segment` is a multiple of 16. The weight has `segment` values (padded to 16 with finite ones). In place is allowed.
    """
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    weight = word(simd, operands, 2)
    segment = word(simd, operands, 3)
    segments = word(simd, operands, 4)
    epsilon = float_word(simd, operands, 5)
    rows = row_count(simd, step, word(simd, operands, 6))
    output = word(simd, operands, 7)
    output_stride = word(simd, operands, 8)
    columns = (segment + 15) // 16 * 16
    first, count, start, end = share_of_heads(simd, step, word(simd, operands, 6), rows, segments, worker, workers)
    for unit in range(start, end):
        place = unit // count
        row = first + unit - place * count
        offset = 4 * segment * place
        address = source + row * stride + offset
        target = output + row * output_stride + offset
        factor = simd.splat_f32(inverse_rms(simd, address, segment, columns, epsilon))
        for column in range(0, 4 * columns, 64):
            simd.store_f32x16(target + column, simd.load_f32x16(address + column) * factor * simd.load_f32x16(weight + column))


@kernel_function
def rms_norm_quantize(simd, operands, step, worker, workers):
    """`rms_norm` over whole rows of `width`, its result as activation blocks at `blocks` and, unless `output` is 0, as float32 too.

    Workers share the groups of a row and each computes the row's sum, so `output` must not be the input.
    """
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    weight = word(simd, operands, 2)
    width = word(simd, operands, 3)
    epsilon = float_word(simd, operands, 4)
    rows = row_count(simd, step, word(simd, operands, 5))
    output = word(simd, operands, 6)
    output_stride = word(simd, operands, 7)
    blocks = word(simd, operands, 8)
    groups = (width + GROUP - 1) // GROUP
    columns = (width + 15) // 16 * 16
    per_tile = tile_width(simd, rows)
    zero = simd.splat_f32(np.float32(0))
    unit, end = share_of_groups(simd, step, word(simd, operands, 5), rows, groups, worker, workers)
    token = unit // groups
    group = unit - token * groups
    while unit < end:
        last = min(groups, group + end - unit)
        first_block = token_block(simd, blocks, token, groups, per_tile)
        row = source + token * stride
        factor = zero
        if token < rows:
            factor = simd.splat_f32(inverse_rms(simd, row, width, columns, epsilon))
        for index in range(group, last):
            low = zero
            high = zero
            if token < rows:
                column = GROUP * index
                low = simd.load_f32x16(row + 4 * column) * factor * simd.load_f32x16(weight + 4 * column)
                if column + 16 < columns:
                    high = load_second_half(simd, row, column + 16, columns) * factor * simd.load_f32x16(weight + 4 * column + 64)
                if output != 0:
                    simd.store_f32x16(output + token * output_stride + 4 * column, low)
                    if column + 16 < columns:
                        simd.store_f32x16(output + token * output_stride + 4 * column + 64, high)
            quantize_group(simd, low, high, first_block + index * BLOCK_BYTES_PER_TOKEN * per_tile, per_tile, token % per_tile)
        unit += last - group
        group = 0
        token += 1

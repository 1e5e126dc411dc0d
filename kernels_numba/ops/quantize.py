"""Activations to int8 with one scale per 32 values, in the block layout of `common`. The only quantization of activations there is.

Exact sequence per group of 32 (docs/arithmetic.md): with `largest` the largest magnitude, scale = largest / 127 and inverse = 127 / largest (one
IEEE division each), code = value * inverse rounded half to even. The product is at most 127 * (1 + 2^-23), so codes stay within +-127 by
themselves. Below 2^-100 scale and codes are 0; a group with an infinity or a NaN has the scale NaN and the codes 0, so that the fault reaches the
result.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN, GROUP, INFINITE, SMALLEST_SCALED, row_count, share_of_groups, tile_width, word
from kernels_numba.simd.function import kernel_function

QUANTIZE_OPERANDS = ("input", "input_stride", "width", "per_output", "output")


@kernel_function
def quantize_group(simd, low, high, block, per_tile, lane):
    """Columns 0..15 and 16..31 of a group into token `lane` of a block of `per_tile` tokens."""
    zero = simd.splat_f32(np.float32(0))
    largest = simd.maximum_lanes_i32(simd.maximum_i32(simd.bits_from_f32x16(simd.absolute(low)), simd.bits_from_f32x16(simd.absolute(high))))
    scale = np.float32(0)
    inverse = np.float32(0)
    if largest >= INFINITE:
        scale = simd.f32_from_bits(0x7FC00000)
        low = zero
        high = zero
    elif largest >= SMALLEST_SCALED:
        magnitude = simd.f32_from_bits(largest)
        scale = magnitude / np.float32(127)
        inverse = np.float32(127) / magnitude
    factor = simd.splat_f32(inverse)
    low_codes = simd.round_i32(low * factor)
    high_codes = simd.round_i32(high * factor)
    low_sum = simd.sum_lanes_i32(low_codes)
    high_sum = simd.sum_lanes_i32(high_codes)
    simd.store_i8x16(block + GROUP * lane, simd.truncate_i8(low_codes))
    simd.store_i8x16(block + GROUP * lane + 16, simd.truncate_i8(high_codes))
    simd.store_f32(block + 32 * per_tile + 4 * lane, scale)
    simd.store_f32(block + 36 * per_tile + 4 * lane, scale * simd.f32_from_i64(low_sum + high_sum))
    simd.store_i32(block + 40 * per_tile + 4 * lane, low_sum)
    simd.store_i32(block + 44 * per_tile + 4 * lane, high_sum)


@kernel_function
def load_second_half(simd, address, column, columns):
    """The 16 columns from `column`, zero where the row ends (`columns`, a multiple of 16) before them."""
    if column < columns:
        return simd.load_f32x16(address + 4 * column)
    return simd.splat_f32(np.float32(0))


@kernel_function
def token_block(simd, output, token, groups, per_tile):
    """Address of the first block of the tile that holds the token."""
    return output + token // per_tile * groups * BLOCK_BYTES_PER_TOKEN * per_tile


@kernel_function
def quantize(simd, operands, step, worker, workers):
    """float32 rows -> activation blocks. `width` may be any number; columns from there to the row's padding must be zero."""
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    width = word(simd, operands, 2)
    rows = row_count(simd, step, word(simd, operands, 3))
    output = word(simd, operands, 4)
    groups = (width + GROUP - 1) // GROUP
    columns = (width + 15) // 16 * 16
    per_tile = tile_width(simd, rows)
    zero = simd.splat_f32(np.float32(0))
    unit, end = share_of_groups(simd, step, word(simd, operands, 3), rows, groups, worker, workers)
    token = unit // groups
    group = unit - token * groups
    while unit < end:
        last = min(groups, group + end - unit)
        first_block = token_block(simd, output, token, groups, per_tile)
        row = source + token * stride
        for index in range(group, last):
            low = zero
            high = zero
            if token < rows:
                low = simd.load_f32x16(row + 4 * GROUP * index)
                high = load_second_half(simd, row, GROUP * index + 16, columns)
            quantize_group(simd, low, high, first_block + index * BLOCK_BYTES_PER_TOKEN * per_tile, per_tile, token % per_tile)
        unit += last - group
        group = 0
        token += 1

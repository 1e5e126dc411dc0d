"""Rotary positions: a table of cosines and sines per row, and the rotation of pairs of each head.

y0 = fma(x0, cos, -(x1 * sin)) and y1 = fma(x1, cos, x0 * sin). Pair i of a head is (i, i + pairs) with the tag `halves` and (2i, 2i + 1) with
`neighbours`; columns from 2 * pairs on pass through. Tails of fewer than 16 pairs run through the same operations.
"""

from __future__ import annotations

from kernels_numba.executor.step import ROPE_POSITIONS, ROWS
from kernels_numba.ops.common import share_of_heads, share_start, word
from kernels_numba.ops.mathematics import cosine_sine
from kernels_numba.simd.function import kernel_function

ROPE_TABLE_OPERANDS = ("frequencies", "pairs", "output", "output_stride")
ROPE_OPERANDS = ("input", "input_stride", "table", "table_stride", "heads", "head_size", "pairs", "output", "output_stride")

HALVES = {"neighbours": False}
NEIGHBOURS = {"neighbours": True}


@kernel_function
def rope_table(simd, operands, step, worker, workers):
    """float32[rows, 2 * pairs]: cos[pairs] then sin[pairs] of rope position * frequency (float64[pairs])."""
    frequencies = word(simd, operands, 0)
    pairs = word(simd, operands, 1)
    output = word(simd, operands, 2)
    stride = word(simd, operands, 3)
    rows = simd.load_i64(step + ROWS)
    positions = simd.load_i64(step + ROPE_POSITIONS)
    for row in range(share_start(simd, rows, worker, workers), share_start(simd, rows, worker + 1, workers)):
        position = simd.splat_f64(simd.f64_from_i64(simd.load_i32(positions + 4 * row)))
        for pair in range(0, pairs, 16):
            count = pairs - pair
            cosine, sine = cosine_sine(simd, position * simd.load_lanes_f64(frequencies + 8 * pair, count))
            simd.store_lanes_f32(output + row * stride + 4 * pair, cosine, count)
            simd.store_lanes_f32(output + row * stride + 4 * (pairs + pair), sine, count)


@kernel_function
def rotate_halves(simd, source, target, cosines, sines, pairs):
    for pair in range(0, pairs, 16):
        count = pairs - pair
        cosine = simd.load_lanes_f32(cosines + 4 * pair, count)
        sine = simd.load_lanes_f32(sines + 4 * pair, count)
        x0 = simd.load_lanes_f32(source + 4 * pair, count)
        x1 = simd.load_lanes_f32(source + 4 * (pairs + pair), count)
        simd.store_lanes_f32(target + 4 * pair, simd.fma(x0, cosine, simd.negate(x1 * sine)), count)
        simd.store_lanes_f32(target + 4 * (pairs + pair), simd.fma(x1, cosine, x0 * sine), count)


@kernel_function
def rotate_neighbours(simd, source, target, cosines, sines, pairs):
    for pair in range(0, pairs, 16):
        count = pairs - pair
        cosine = simd.load_lanes_f32(cosines + 4 * pair, count)
        sine = simd.load_lanes_f32(sines + 4 * pair, count)
        low = simd.load_lanes_f32(source + 8 * pair, 2 * count)
        high = simd.load_lanes_f32(source + 8 * pair + 64, 2 * count - 16)
        x0 = simd.even_lanes(low, high)
        x1 = simd.odd_lanes(low, high)
        y0 = simd.fma(x0, cosine, simd.negate(x1 * sine))
        y1 = simd.fma(x1, cosine, x0 * sine)
        simd.store_lanes_f32(target + 8 * pair, simd.interleave_low(y0, y1), 2 * count)
        simd.store_lanes_f32(target + 8 * pair + 64, simd.interleave_high(y0, y1), 2 * count - 16)


@kernel_function
def rope(simd, pairing, operands, step, worker, workers):
    """Rotates `heads` heads of `head_size` columns in each row by the row's line of the table. In place is allowed."""
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    table = word(simd, operands, 2)
    table_stride = word(simd, operands, 3)
    heads = word(simd, operands, 4)
    head_size = word(simd, operands, 5)
    pairs = word(simd, operands, 6)
    output = word(simd, operands, 7)
    output_stride = word(simd, operands, 8)
    rows = simd.load_i64(step + ROWS)
    first, count, start, end = share_of_heads(simd, step, 0, rows, heads, worker, workers)
    for unit in range(start, end):
        head = unit // count
        row = first + unit - head * count
        offset = 4 * head_size * head
        address = source + row * stride + offset
        target = output + row * output_stride + offset
        cosines = table + row * table_stride
        sines = cosines + 4 * pairs
        if pairing.neighbours:
            rotate_neighbours(simd, address, target, cosines, sines, pairs)
        else:
            rotate_halves(simd, address, target, cosines, sines, pairs)
        for column in range(2 * pairs, head_size, 16):
            simd.store_lanes_f32(target + 4 * column, simd.load_lanes_f32(address + 4 * column, head_size - column), head_size - column)

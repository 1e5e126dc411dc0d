"""Elementwise kernels and those that pick or check rows. All allow their output to be an input."""

from __future__ import annotations

import numpy as np

from kernels_numba.executor.step import OUTPUT_ROWS, OUTPUTS, STATUS, STATUS_NON_FINITE
from kernels_numba.ops.common import float_word, row_count, share, share_start, word
from kernels_numba.ops.mathematics import tanh
from kernels_numba.simd.function import kernel_function

ADD_OPERANDS = ("input", "input_stride", "other", "other_stride", "width", "per_output", "output", "output_stride")
SCALE_OPERANDS = ("input", "input_stride", "factor", "width", "per_output", "output", "output_stride")
SOFTCAP_OPERANDS = ("input", "input_stride", "cap", "width", "per_output", "output", "output_stride")
SELECT_OUTPUTS_OPERANDS = ("input", "input_stride", "width", "output", "output_stride")
CHECK_LOGITS_OPERANDS = ("input", "input_stride", "width", "maxima", "maxima_stride")

MAXIMA_COLUMNS = 4096
"""Columns of a block of logits whose largest are noted together."""

LOWEST = np.float32(-np.inf)


def maxima_width(columns: int) -> int:
    """Float32 of a row of `maxima`: 16 for each block."""
    return -(-columns // MAXIMA_COLUMNS) * 16


@kernel_function
def largest_of_maxima(simd, maxima, blocks):
    """The largest of a row's logits, from what `check_logits` noted of its blocks."""
    lanes = simd.load_f32x16(maxima)
    for block in range(1, blocks):
        lanes = simd.maximum(lanes, simd.load_f32x16(maxima + 64 * block))
    return simd.maximum_lanes(lanes)


@kernel_function
def share_of_vectors(simd, step, per_output, rows, width, worker, workers):
    """(first row, end row, first column, end column) of the padded width, columns in multiples of 16."""
    first_row, end_row, first, end = share(simd, step, per_output, rows, (width + 15) // 16, worker, workers)
    return first_row, end_row, 16 * first, 16 * end


@kernel_function
def add(simd, operands, step, worker, workers):
    """output = input + other."""
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    other = word(simd, operands, 2)
    other_stride = word(simd, operands, 3)
    width = word(simd, operands, 4)
    rows = row_count(simd, step, word(simd, operands, 5))
    output = word(simd, operands, 6)
    output_stride = word(simd, operands, 7)
    first_row, end_row, first, end = share_of_vectors(simd, step, word(simd, operands, 5), rows, width, worker, workers)
    for row in range(first_row, end_row):
        for column in range(first, end, 16):
            value = simd.load_f32x16(source + row * stride + 4 * column) + simd.load_f32x16(other + row * other_stride + 4 * column)
            simd.store_f32x16(output + row * output_stride + 4 * column, value)


@kernel_function
def scale(simd, operands, step, worker, workers):
    """output = input * factor."""
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    factor = simd.splat_f32(float_word(simd, operands, 2))
    width = word(simd, operands, 3)
    rows = row_count(simd, step, word(simd, operands, 4))
    output = word(simd, operands, 5)
    output_stride = word(simd, operands, 6)
    first_row, end_row, first, end = share_of_vectors(simd, step, word(simd, operands, 4), rows, width, worker, workers)
    for row in range(first_row, end_row):
        for column in range(first, end, 16):
            simd.store_f32x16(output + row * output_stride + 4 * column, simd.load_f32x16(source + row * stride + 4 * column) * factor)


@kernel_function
def capped(simd, value, cap):
    """cap * tanh(value / cap)."""
    return cap * tanh(simd, value / cap)


@kernel_function
def softcap(simd, operands, step, worker, workers):
    """output = cap * tanh(input / cap)."""
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    cap = simd.splat_f32(float_word(simd, operands, 2))
    width = word(simd, operands, 3)
    rows = row_count(simd, step, word(simd, operands, 4))
    output = word(simd, operands, 5)
    output_stride = word(simd, operands, 6)
    first_row, end_row, first, end = share_of_vectors(simd, step, word(simd, operands, 4), rows, width, worker, workers)
    for row in range(first_row, end_row):
        for column in range(first, end, 16):
            value = capped(simd, simd.load_f32x16(source + row * stride + 4 * column), cap)
            simd.store_f32x16(output + row * output_stride + 4 * column, value)


@kernel_function
def select_outputs(simd, operands, step, worker, workers):
    """output[i] = input[output_rows[i]]; the output must not be the input."""
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    width = word(simd, operands, 2)
    output = word(simd, operands, 3)
    output_stride = word(simd, operands, 4)
    chosen = simd.load_i64(step + OUTPUT_ROWS)
    first_row, end_row, first, end = share_of_vectors(simd, step, 1, simd.load_i64(step + OUTPUTS), width, worker, workers)
    for row in range(first_row, end_row):
        origin = source + simd.load_i32(chosen + 4 * row) * stride
        for column in range(first, end, 16):
            simd.store_f32x16(output + row * output_stride + 4 * column, simd.load_f32x16(origin + 4 * column))


@kernel_function
def check_logits(simd, operands, step, worker, workers):
    """Sets the step's status to STATUS_NON_FINITE if any logit is infinite or NaN, unless it holds a fault already; and notes where the largest are.

    maxima: float32[outputs, blocks, 16], lane i of block b being the largest of the columns c of b * MAXIMA_COLUMNS ... with c mod 16 = i (-infinity
    where there is none), so that whoever looks for the largest logit reads one block of them instead of all. Padding is not looked at.
    """
    source = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    width = word(simd, operands, 2)
    maxima = word(simd, operands, 3)
    maxima_stride = word(simd, operands, 4)
    blocks = (width + MAXIMA_COLUMNS - 1) // MAXIMA_COLUMNS
    units = simd.load_i64(step + OUTPUTS) * blocks
    zero = simd.splat_f32(np.float32(0))
    lowest = simd.splat_f32(LOWEST)
    poison = zero  # becomes NaN by infinity * 0 and NaN * 0
    poison_2 = zero
    for unit in range(share_start(simd, units, worker, workers), share_start(simd, units, worker + 1, workers)):
        row = unit // blocks
        block = unit - row * blocks
        address = source + row * stride + 4 * MAXIMA_COLUMNS * block
        count = min(MAXIMA_COLUMNS, width - MAXIMA_COLUMNS * block)
        pairs = count // 32 * 32
        largest = lowest
        largest_2 = lowest
        for column in range(0, pairs, 32):
            value = simd.load_f32x16(address + 4 * column)
            value_2 = simd.load_f32x16(address + 4 * column + 64)
            poison = simd.fma(value, zero, poison)
            poison_2 = simd.fma(value_2, zero, poison_2)
            largest = simd.maximum(value, largest)
            largest_2 = simd.maximum(value_2, largest_2)
        for column in range(pairs, count, 16):
            value = simd.load_lanes_f32(address + 4 * column, count - column)
            poison = simd.fma(value, zero, poison)
            largest = simd.maximum(simd.keep_lanes(value, 0, count - column, lowest), largest)
        simd.store_f32x16(maxima + row * maxima_stride + 64 * block, simd.maximum(largest, largest_2))
    total = simd.sum_lanes(poison + poison_2)
    if total != total and simd.load_i64(step + STATUS) == 0:
        simd.store_i64(step + STATUS, STATUS_NON_FINITE)

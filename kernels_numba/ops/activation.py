"""Activation functions of the feed-forward part, times the up projection, as float32 or as activation blocks.

A worker's units are its share of 32-column groups over all rows: the same columns that it computed in the linear ops before, so no barrier is needed
between them.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.executor.step import ROWS
from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN, GROUP, share, tile_width, word
from kernels_numba.ops.mathematics import erf, exp, exp_of_four
from kernels_numba.ops.quantize import quantize_group, token_block
from kernels_numba.simd.function import kernel_function

ACTIVATION_OPERANDS = ("gate", "gate_stride", "up", "up_stride", "width", "output", "output_stride")
ACTIVATION_QUANTIZE_OPERANDS = ("gate", "gate_stride", "up", "up_stride", "width", "output")

HALF = np.float32(0.5)
SQRT_HALF = np.float32(0.7071067811865476)
GELU_CUBIC = np.float32(0.044715)
GELU_FACTOR = np.float32(-1.5957691216057308)  # -2 sqrt(2 / pi)


@kernel_function
def silu(simd, x):
    """x / (1 + exp(-x))."""
    return x / (simd.splat_f32(np.float32(1)) + exp(simd, simd.negate(x)))


@kernel_function
def gelu_tanh(simd, x):
    """x (1 + tanh z) / 2 with z = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + exp(-2z)): the same function without its cancellation."""
    inner = simd.fma(simd.splat_f32(GELU_CUBIC) * x * x, x, x)
    return x / (simd.splat_f32(np.float32(1)) + exp(simd, simd.splat_f32(GELU_FACTOR) * inner))


@kernel_function
def gelu_erf(simd, x):
    """x / 2 * (1 + erf(x / sqrt 2))."""
    return simd.splat_f32(HALF) * x * (simd.splat_f32(np.float32(1)) + erf(simd, x * simd.splat_f32(SQRT_HALF)))


@kernel_function
def relu_squared(simd, x):
    """max(x, 0)^2; NaN stays NaN."""
    positive = simd.maximum(simd.splat_f32(np.float32(0)), x)
    return positive * positive


@kernel_function
def quotients_by_one_more(simd, x, y):
    """x[i] / (1 + y[i]) of two tuples of four."""
    one = simd.splat_f32(np.float32(1))
    y = one + y[0], one + y[1], one + y[2], one + y[3]
    return x[0] / y[0], x[1] / y[1], x[2] / y[2], x[3] / y[3]


@kernel_function
def silu_of_four(simd, x):
    """`silu` of a tuple of four, step by step for all, as in `exp_of_four`."""
    return quotients_by_one_more(simd, x, exp_of_four(simd, (simd.negate(x[0]), simd.negate(x[1]), simd.negate(x[2]), simd.negate(x[3]))))


@kernel_function
def gelu_tanh_of_four(simd, x):
    cubic = simd.splat_f32(GELU_CUBIC)
    factor = simd.splat_f32(GELU_FACTOR)
    squares = cubic * x[0] * x[0], cubic * x[1] * x[1], cubic * x[2] * x[2], cubic * x[3] * x[3]
    inner = simd.fma(squares[0], x[0], x[0]), simd.fma(squares[1], x[1], x[1]), simd.fma(squares[2], x[2], x[2]), simd.fma(squares[3], x[3], x[3])
    return quotients_by_one_more(simd, x, exp_of_four(simd, (factor * inner[0], factor * inner[1], factor * inner[2], factor * inner[3])))


@kernel_function
def gelu_erf_of_four(simd, x):
    return gelu_erf(simd, x[0]), gelu_erf(simd, x[1]), gelu_erf(simd, x[2]), gelu_erf(simd, x[3])


@kernel_function
def relu_squared_of_four(simd, x):
    return relu_squared(simd, x[0]), relu_squared(simd, x[1]), relu_squared(simd, x[2]), relu_squared(simd, x[3])


SILU = {"apply": silu, "apply_to_four": silu_of_four}
GELU_TANH = {"apply": gelu_tanh, "apply_to_four": gelu_tanh_of_four}
GELU_ERF = {"apply": gelu_erf, "apply_to_four": gelu_erf_of_four}
RELU_SQUARED = {"apply": relu_squared, "apply_to_four": relu_squared_of_four}


@kernel_function
def activated(simd, function, gate, up):
    """f(gate) * up for 16 columns; f(gate) if `up` is 0."""
    value = function.apply(simd, simd.load_f32x16(gate))
    if up != 0:
        value = value * simd.load_f32x16(up)
    return value


@kernel_function
def load_four(simd, address):
    return simd.load_f32x16(address), simd.load_f32x16(address + 64), simd.load_f32x16(address + 128), simd.load_f32x16(address + 192)


@kernel_function
def activated_four(simd, function, gate, up):
    """`activated` for 64 columns."""
    values = function.apply_to_four(simd, load_four(simd, gate))
    if up != 0:
        factors = load_four(simd, up)
        values = values[0] * factors[0], values[1] * factors[1], values[2] * factors[2], values[3] * factors[3]
    return values


@kernel_function
def activation(simd, function, operands, step, worker, workers):
    """output = f(gate) * up, or f(gate) if `up` is 0. In place is allowed."""
    gate = word(simd, operands, 0)
    gate_stride = word(simd, operands, 1)
    up = word(simd, operands, 2)
    up_stride = word(simd, operands, 3)
    width = word(simd, operands, 4)
    output = word(simd, operands, 5)
    output_stride = word(simd, operands, 6)
    rows = simd.load_i64(step + ROWS)
    groups = (width + GROUP - 1) // GROUP
    columns = (width + 15) // 16 * 16
    first_row, end_row, first, end = share(simd, step, 0, rows, groups, worker, workers)
    for row in range(first_row, end_row):
        for column in range(GROUP * first, min(columns, GROUP * end), 16):
            up_address = 0
            if up != 0:
                up_address = up + row * up_stride + 4 * column
            value = activated(simd, function, gate + row * gate_stride + 4 * column, up_address)
            simd.store_f32x16(output + row * output_stride + 4 * column, value)


@kernel_function
def activation_quantize(simd, function, operands, step, worker, workers):
    """`activation` with its result as activation blocks alone."""
    gate = word(simd, operands, 0)
    gate_stride = word(simd, operands, 1)
    up = word(simd, operands, 2)
    up_stride = word(simd, operands, 3)
    width = word(simd, operands, 4)
    output = word(simd, operands, 5)
    rows = simd.load_i64(step + ROWS)
    groups = (width + GROUP - 1) // GROUP
    columns = (width + 15) // 16 * 16
    per_tile = tile_width(simd, rows)
    zero = simd.splat_f32(np.float32(0))
    first_row, end_row, first, end = share(simd, step, 0, rows, groups, worker, workers)
    for token in range(first_row, (end_row + per_tile - 1) // per_tile * per_tile):  # those that fill the last tile included
        first_block = token_block(simd, output, token, groups, per_tile)
        group = first
        if token < rows:
            while group + 2 <= end and GROUP * (group + 2) <= columns:
                offset = 4 * GROUP * group
                up_address = 0
                if up != 0:
                    up_address = up + token * up_stride + offset
                first_low, first_high, second_low, second_high = activated_four(simd, function, gate + token * gate_stride + offset, up_address)
                block = first_block + group * BLOCK_BYTES_PER_TOKEN * per_tile
                quantize_group(simd, first_low, first_high, block, per_tile, token % per_tile)
                quantize_group(simd, second_low, second_high, block + BLOCK_BYTES_PER_TOKEN * per_tile, per_tile, token % per_tile)
                group += 2
        while group < end:
            low = zero
            high = zero
            if token < rows:
                address = gate + token * gate_stride + 4 * GROUP * group
                up_address = 0
                if up != 0:
                    up_address = up + token * up_stride + 4 * GROUP * group
                low = activated(simd, function, address, up_address)
                if GROUP * group + 16 < columns:
                    if up != 0:
                        up_address += 64
                    high = activated(simd, function, address + 64, up_address)
            quantize_group(simd, low, high, first_block + group * BLOCK_BYTES_PER_TOKEN * per_tile, per_tile, token % per_tile)
            group += 1

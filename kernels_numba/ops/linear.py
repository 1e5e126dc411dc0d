"""Linear kernels: outputs = activations @ weights.T + bias + residual, for every format, with one chain of additions per (row, token) in all paths.

One driver for quantized weights (`linear`) takes the format as a tag; it runs as matvec, small batch or GEMM by the number of tokens that it takes at a
time (1, 4, 8, 12 or 16: a group of weights is unpacked once for them). Float weights take float32 activations (`linear_float`). Rows are shared out in
units of 32, so that an operation that follows on the same columns needs no barrier. `docs/arithmetic.md` is the specification.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN, PREFETCH_BYTES, ROW_TILES_IN_CACHE, bias_of, plane_bytes, row_count, share, word
from kernels_numba.ops.matrices import TILE_TOKENS, linear_matrices
from kernels_numba.simd.function import Constant, kernel_function

LINEAR_OPERANDS = (
    "weights",  # packed matrix
    "row_tiles",
    "columns",  # of the weights: the width of the input
    "input",  # activation blocks (linear) or float32 rows (linear_float)
    "input_stride",  # bytes, linear_float only
    "bias",  # address of float32[row_tiles * 16], or 0
    "residual",  # address of rows to add, or 0
    "residual_stride",
    "per_output",
    "output",
    "output_stride",
)

FEW_ROWS = 8
"""Up to so many rows the registers hold at once."""


@kernel_function
def codes_of_record(simd: Any, format: Any, record: int, slot: int, low: int, width: Constant) -> Any:
    """The 8 code vectors of a group."""
    return format.unpack(simd, record + format.header_bytes + slot * format.data_bytes, width)


@kernel_function
def codes_of_planes(simd: Any, format: Any, record: int, slot: int, low: int, width: Constant) -> Any:
    """For matrices in two planes: upper bits in the record, lower ones at `low`."""
    return format.join(simd, codes_of_record(simd, format, record, slot, low, width), low)


@kernel_function
def step_plain(simd: Any, format: Any, tile: Any, record: int, slot: int, low: int, block: int, width: Constant, first: int, stride: int) -> Any:
    """The tile after one group of 32 columns, for formats of scale * code."""
    codes = format.codes(simd, format, record, slot, low, width)
    return simd.tile_accumulate(tile, codes, block, width, first, stride, format.zero_shift, format.scale(simd, record, slot))


@kernel_function
def step_with_minimum(simd: Any, format: Any, tile: Any, record: int, slot: int, low: int, block: int, width: Constant, first: int, stride: int) -> Any:
    """For formats of scale * code + minimum."""
    tile = step_plain(simd, format, tile, record, slot, low, block, width, first, stride)
    return simd.tile_add_minimum(tile, block, width, first, stride, format.minimum(simd, record, slot))


@kernel_function
def step_with_sub_scales(simd: Any, format: Any, tile: Any, record: int, slot: int, low: int, block: int, width: Constant, first: int, stride: int) -> Any:
    """For formats whose groups have two halves with integer scales of their own."""
    codes = format.codes(simd, format, record, slot, low, width)
    scale = format.scale(simd, record, slot)
    scales = format.low_scale(simd, record, slot), format.high_scale(simd, record, slot)
    return simd.tile_accumulate_sub_scales(tile, codes, block, width, first, stride, format.zero_shift, scale, scales[0], scales[1])


@kernel_function
def step_of_bounds(simd: Any, format: Any, tile: Any, record: int, slot: int, low: int, block: int, width: Constant, first: int, stride: int) -> Any:
    """For the upper bits alone, with the blocks of `ops.screen`."""
    codes = format.codes(simd, format, record, slot, low, width)
    return simd.tile_accumulate_bound(tile, codes, block, width, first, stride, format.scale(simd, record, slot))


@kernel_function
def row_tile(simd: Any, format: Any, tile: Any, weights: int, low: int, groups: int, block: int, width: Constant, first: int, stride: int) -> Any:
    """The tile after all groups of a row tile, in ascending order. `low`: its lower plane, if the format has one; `stride`: bytes from an activation tile
    to the next."""
    record = weights
    for _ in range(groups // format.groups_per_record):
        if width == 1:
            # One token reads weights as one stream, which the hardware fetches ahead better than hints can, except for large matrices in planes. But a long
            # row tile pushes the activations out of the first cache before the next one reads them again.
            simd.prefetch(block + BLOCK_BYTES_PER_TOKEN * format.groups_per_record, format.activation_lines)
        else:
            simd.prefetch(record + PREFETCH_BYTES, format.header_lines)
        for slot in range(format.groups_per_record):
            if width > 1 or format.hinted:  # group by group: a record of 50 lines at once would find no free miss buffers
                simd.prefetch(record + PREFETCH_BYTES + format.header_bytes + slot * format.data_bytes, format.data_lines)
                simd.prefetch(low + PREFETCH_BYTES // 2, format.low_lines)
            if width == 16:  # activations come from the second-level cache
                simd.prefetch(block + 2 * 16 * BLOCK_BYTES_PER_TOKEN, 12)
            tile = format.step(simd, format, tile, record, slot, low, block, width, first, stride)
            block += BLOCK_BYTES_PER_TOKEN * width
            low += format.low_bytes
        record += format.record_bytes
    for slot in range(groups % format.groups_per_record):
        tile = format.step(simd, format, tile, record, slot, low, block, width, first, stride)
        block += BLOCK_BYTES_PER_TOKEN * width
        low += format.low_bytes
    return tile


@kernel_function
def linear_tiles(
    simd: Any, format: Any, width: Constant, tokens: Constant, operands: int, blocks: int, rows: int, token: int, first: int, end: int
) -> None:  # fmt: skip
    """Row tiles first .. end for `tokens` tokens (what the registers hold) from `token`, of which rows - token exist; the activation `blocks` are in tiles of
    `width`."""
    groups = (word(simd, operands, 2) + 31) // 32
    bias = word(simd, operands, 5)
    residual = word(simd, operands, 6)
    residual_stride = word(simd, operands, 7)
    output_stride = word(simd, operands, 10)
    row_tile_bytes, low_tile_bytes = plane_bytes(simd, format, groups)
    weights = word(simd, operands, 0) + first * row_tile_bytes
    low = word(simd, operands, 0) + word(simd, operands, 1) * row_tile_bytes + first * low_tile_bytes
    stride = groups * BLOCK_BYTES_PER_TOKEN * width
    blocks += token // width * stride
    output = word(simd, operands, 9) + token * output_stride
    for tile in range(first, end):
        totals = row_tile(simd, format, simd.tile_zero(tokens), weights, low, groups, blocks, width, token % width, stride)
        at_residual = residual
        if residual != 0:
            at_residual = residual + token * residual_stride + 64 * tile
        simd.tile_store(totals, rows - token, bias_of(simd, bias, tile), output + 64 * tile, output_stride, at_residual, residual_stride)
        weights += row_tile_bytes
        low += low_tile_bytes


@kernel_function
def linear_few(simd: Any, format: Any, operands: int, blocks: int, rows: int, first: int, end: int) -> None:
    """Row tiles first .. end for up to FEW_ROWS rows: the weights pass once."""
    if rows == 1:
        linear_tiles(simd, format, 1, 1, operands, blocks, rows, 0, first, end)
    elif rows <= 4:
        linear_tiles(simd, format, 4, 4, operands, blocks, rows, 0, first, end)
    else:  # two activation tiles of 4
        linear_tiles(simd, format, 4, 8, operands, blocks, rows, 0, first, end)


@kernel_function
def linear_vectors(simd: Any, format: Any, operands: int, blocks: int, rows: int, first_row: int, end_row: int, first: int, end: int) -> None:
    """Row tiles first .. end for the tokens first_row .. end_row of more than FEW_ROWS `rows`."""
    for chunk in range(first, end, ROW_TILES_IN_CACHE):
        chunk_end = min(chunk + ROW_TILES_IN_CACHE, end)
        for token in range(first_row, end_row, simd.tile_tokens):
            if simd.tile_tokens == 16 and rows - token <= 12:  # the last tokens, or a batch of up to 12
                linear_tiles(simd, format, 16, 12, operands, blocks, rows, token, chunk, chunk_end)
            else:
                linear_tiles(simd, format, 16, simd.tile_tokens, operands, blocks, rows, token, chunk, chunk_end)


@kernel_function
def linear_many(simd: Any, format: Any, operands: int, blocks: int, rows: int, first_row: int, end_row: int, first: int, end: int) -> None:
    """The same where the CPU multiplies matrices. A single tile of tokens waits for weights more than it computes, and vectors fetch them more evenly."""
    if rows <= TILE_TOKENS:
        linear_vectors(simd, format, operands, blocks, rows, first_row, end_row, first, end)
    else:
        linear_matrices(simd, format, operands, blocks, rows, first_row, end_row, first, end)


@kernel_function
def linear(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Quantized weights. The dot products are of integers and exact; see `tile_accumulate`."""
    row_tiles = word(simd, operands, 1)
    rows = row_count(simd, step, word(simd, operands, 8))
    first_row, end_row, first_unit, end_unit = share(simd, step, word(simd, operands, 8), rows, (row_tiles + 1) // 2, worker, workers)
    first = 2 * first_unit
    end = min(2 * end_unit, row_tiles)
    blocks = word(simd, operands, 3)
    if rows <= FEW_ROWS:
        linear_few(simd, format, operands, blocks, rows, first, end)
    else:
        many = simd.chosen(simd.matrix_tiles, linear_many, linear_vectors)
        many(simd, format, operands, blocks, rows, first_row, end_row, first, end)


@kernel_function
def linear_float_tiles(simd: Any, format: Any, width: Constant, operands: int, token: int, count: int, tile: int) -> None:
    """One row tile for `width` (a constant) tokens from `token`, of which `count` exist; the chain is over ascending columns."""
    columns = word(simd, operands, 2)
    input_stride = word(simd, operands, 4)
    residual = word(simd, operands, 6)
    residual_stride = word(simd, operands, 7)
    output_stride = word(simd, operands, 10)
    weight = word(simd, operands, 0) + tile * columns * 16 * format.element_bytes
    value = word(simd, operands, 3) + token * input_stride
    totals = simd.tile_zero(width)
    for _ in range(columns):
        totals = simd.tile_fma(totals, format.load(simd, weight), value, input_stride)
        weight += 16 * format.element_bytes
        value += 4
    if residual != 0:
        residual += token * residual_stride + 64 * tile
    output = word(simd, operands, 9) + token * output_stride + 64 * tile
    simd.tile_store(totals, count, bias_of(simd, word(simd, operands, 5), tile), output, output_stride, residual, residual_stride)


@kernel_function
def linear_float(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Float weights and float32 activations: totals = fma(weight, activation, totals) over ascending columns."""
    row_tiles = word(simd, operands, 1)
    rows = row_count(simd, step, word(simd, operands, 8))
    first_row, end_row, first_unit, end_unit = share(simd, step, word(simd, operands, 8), rows, (row_tiles + 1) // 2, worker, workers)
    for tile in range(2 * first_unit, min(2 * end_unit, row_tiles)):
        token = first_row
        while token + 8 <= end_row:
            linear_float_tiles(simd, format, 8, operands, token, 8, tile)
            token += 8
        while token < end_row:
            linear_float_tiles(simd, format, 1, operands, token, 1, tile)
            token += 1

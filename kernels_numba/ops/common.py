"""What several kernels share: shares of work, float operands, the layout of quantized activations, where the parts of a packed matrix are."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.executor.step import OUTPUTS, ROW_BLOCKS, ROW_TILE, ROWS
from kernels_numba.simd.function import kernel_function

# Activations of a linear op with quantized weights are int8 with one scale per 32 values. They are kept in tiles of `tile_width` tokens: for each tile and
# each group of 32 columns one block of 48 * tile_width bytes
#     int8 codes[tile_width][32] | float32 scale[tile_width] | float32 scale * sum(codes)[tile_width]
#     | int32 sum(codes[0:16])[tile_width] | int32 sum(codes[16:32])[tile_width]
# blocks of a tile follow each other in ascending groups, tiles follow each other. Tokens beyond the last are zero.
GROUP = 32
BLOCK_BYTES_PER_TOKEN = 48

ROW_TILES_IN_CACHE = 16
"""Row tiles of a GEMM that stay in the second-level cache while the tokens pass."""

PREFETCH_BYTES = 4096

# Bits of a float32 magnitude, which order like the numbers.
SMALLEST_SCALED = (127 - 100) << 23  # 2^-100: a group of which nothing is larger has the scale 0
INFINITE = 0x7F800000


@kernel_function
def word(simd: Any, operands: int, index: int) -> int:
    """Operand number `index` as an integer."""
    return simd.load_i64(operands + 8 * index)


@kernel_function
def float_word(simd: Any, operands: int, index: int) -> Any:
    """Operand number `index` as a float32, whose bits are the word's low half."""
    return simd.load_f32(operands + 8 * index)


@kernel_function
def row_count(simd: Any, step: int, per_output: int) -> int:
    """Rows of a value: one per requested output if `per_output`, else one per token."""
    if per_output != 0:
        return simd.load_i64(step + OUTPUTS)
    return simd.load_i64(step + ROWS)


@kernel_function
def share_start(simd: Any, units: int, worker: int, workers: int) -> int:
    """The first of a worker's contiguous share of `units`; the share ends where the next worker's starts."""
    return units * worker // workers


@kernel_function
def share(simd: Any, step: int, per_output: int, rows: int, columns: int, worker: int, workers: int) -> Any:
    """(first row, end row, first column, end column) of a worker's share of `rows` x `columns`: all columns of some tiles of 16 rows, or some columns of
    all rows."""
    if per_output == 0 and simd.load_i64(step + ROW_BLOCKS) != 0:
        tiles = (rows + ROW_TILE - 1) // ROW_TILE
        first = ROW_TILE * share_start(simd, tiles, worker, workers)
        return first, min(ROW_TILE * share_start(simd, tiles, worker + 1, workers), rows), 0, columns
    return 0, rows, share_start(simd, columns, worker, workers), share_start(simd, columns, worker + 1, workers)


@kernel_function
def share_of_heads(simd: Any, step: int, per_output: int, rows: int, heads: int, worker: int, workers: int) -> Any:
    """(first row, row count, first unit, end unit): unit u is head u // row count of row (first row + u % row count). Workers share rows of all heads, or
    equal parts of all rows and heads."""
    if per_output == 0 and simd.load_i64(step + ROW_BLOCKS) != 0:
        first, end, _, _ = share(simd, step, 0, rows, 1, worker, workers)
        return first, end - first, 0, (end - first) * heads
    return 0, rows, share_start(simd, rows * heads, worker, workers), share_start(simd, rows * heads, worker + 1, workers)


@kernel_function
def share_of_groups(simd: Any, step: int, per_output: int, rows: int, groups: int, worker: int, workers: int) -> Any:
    """(first unit, end unit): unit u is group u % groups of token u // groups, tokens that fill the last tile included."""
    per_tile = tile_width(simd, rows)
    tiles = (rows + per_tile - 1) // per_tile
    if per_output == 0 and simd.load_i64(step + ROW_BLOCKS) != 0:
        unit = per_tile * groups
        return unit * share_start(simd, tiles, worker, workers), unit * share_start(simd, tiles, worker + 1, workers)
    units = per_tile * tiles * groups
    return share_start(simd, units, worker, workers), share_start(simd, units, worker + 1, workers)


@kernel_function
def tile_width(simd: Any, rows: int) -> int:
    """Tokens in a tile of quantized activations, by the number of rows: 1, 4 or 16."""
    if rows == 1:
        return 1
    if rows <= 8:
        return 4
    return 16


@kernel_function
def bias_of(simd: Any, bias: int, tile: int) -> Any:
    if bias == 0:
        return simd.splat_f32(np.float32(0))
    return simd.load_f32x16(bias + 64 * tile)


@kernel_function
def plane_bytes(simd: Any, format: Any, groups: int) -> Any:
    """Bytes of a row tile: (in the only or upper plane, in the lower plane)."""
    records = (groups + format.groups_per_record - 1) // format.groups_per_record
    return records * format.record_bytes, records * format.groups_per_record * format.low_bytes

"""Packing kernels: a matrix as it lies in a GGUF file becomes a packed one. Each worker packs its share of the row tiles; the destination starts as zeros."""

from __future__ import annotations

from typing import Any

from kernels_numba.ops.common import share_start, word
from kernels_numba.simd.function import kernel_function

PACK_OPERANDS = (
    "source",  # the tensor's bytes in the file
    "rows",
    "columns",  # a whole number of blocks
    "destination",
)
PACK_PLANES_OPERANDS = (*PACK_OPERANDS, "lower")
"""`destination` and `lower`: where the two planes of these rows begin."""


@kernel_function
def pack(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """A quantized format. Blocks are read in the order of the file, row by row of a tile."""
    source = word(simd, operands, 0)
    rows = word(simd, operands, 1)
    columns = word(simd, operands, 2)
    destination = word(simd, operands, 3)
    blocks = columns // (32 * format.groups_per_record // format.blocks_per_record)
    tile_bytes = (blocks + format.blocks_per_record - 1) // format.blocks_per_record * format.record_bytes
    tiles = (rows + 15) // 16
    for tile in range(share_start(simd, tiles, worker, workers), share_start(simd, tiles, worker + 1, workers)):
        record = destination + tile * tile_bytes
        for block in range(blocks):
            at = record + block // format.blocks_per_record * format.record_bytes
            for lane in range(min(16, rows - 16 * tile)):
                address = source + ((16 * tile + lane) * blocks + block) * format.block_bytes
                format.pack(simd, address, at, block % format.blocks_per_record, lane)


@kernel_function
def pack_planes(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """A format in two planes."""
    source = word(simd, operands, 0)
    rows = word(simd, operands, 1)
    columns = word(simd, operands, 2)
    upper = word(simd, operands, 3)
    lower = word(simd, operands, 4)
    groups = columns // 32
    records = (groups + format.groups_per_record - 1) // format.groups_per_record
    tiles = (rows + 15) // 16
    for tile in range(share_start(simd, tiles, worker, workers), share_start(simd, tiles, worker + 1, workers)):
        for group in range(groups):
            record = upper + (tile * records + group // format.groups_per_record) * format.record_bytes
            low = lower + (tile * records * format.groups_per_record + group) * format.low_bytes
            for lane in range(min(16, rows - 16 * tile)):
                address = source + ((16 * tile + lane) * groups + group) * format.block_bytes
                format.pack(simd, address, record, group % format.groups_per_record, low, lane)


@kernel_function
def pack_float(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """A float format: columns of 16 rows."""
    source = word(simd, operands, 0)
    rows = word(simd, operands, 1)
    columns = word(simd, operands, 2)
    destination = word(simd, operands, 3)
    tiles = (rows + 15) // 16
    for tile in range(share_start(simd, tiles, worker, workers), share_start(simd, tiles, worker + 1, workers)):
        for lane in range(min(16, rows - 16 * tile)):
            for column in range(columns):
                address = source + ((16 * tile + lane) * columns + column) * format.element_bytes
                at = destination + ((tile * columns + column) * 16 + lane) * format.element_bytes
                if format.element_bytes == 4:
                    simd.store_i32(at, simd.load_u32(address))
                else:
                    simd.store_u16(at, simd.load_u16(address))

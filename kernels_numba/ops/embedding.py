"""Embedding kernels: rows of a packed matrix, decoded, so that a matrix that is also the output matrix is kept once.

A row is one lane of a row tile: a group is unpacked for all 16 rows and one of them is kept, which is cheap beside everything else. A decoded element has
the bits of the format's `decode`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.executor.step import ROWS, TOKEN_IDS
from kernels_numba.ops.common import float_word, share_start, word
from kernels_numba.ops.linear import plane_bytes
from kernels_numba.simd.function import kernel_function

EMBEDDING_OPERANDS = (
    "table",  # packed matrix
    "columns",
    "scale",  # float32 that each element is multiplied by
    "scratch",  # per worker SCRATCH_BYTES
    "output",
    "output_stride",
)
EMBEDDING_PLANES_OPERANDS = (*EMBEDDING_OPERANDS, "row_tiles")
"""For tables in two planes."""
SCRATCH_BYTES = 1024
"""Codes of a group (512 bytes), then the scales of its columns 0-15, those of 16-31, and its minima (64 bytes each)."""


@kernel_function
def element_plain(simd: Any, format: Any, record: int, slot: int, scratch: int) -> None:
    """The group's scales, to the scratch that `scaled_element` reads."""
    simd.store_f32x16(scratch + 512, format.scale(simd, record, slot))
    simd.store_f32x16(scratch + 576, format.scale(simd, record, slot))
    simd.store_f32x16(scratch + 640, simd.splat_f32(np.float32(-0.0)))  # x + -0.0 is x, also where x is a zero


@kernel_function
def element_with_minimum(simd: Any, format: Any, record: int, slot: int, scratch: int) -> None:
    simd.store_f32x16(scratch + 512, format.scale(simd, record, slot))
    simd.store_f32x16(scratch + 576, format.scale(simd, record, slot))
    simd.store_f32x16(scratch + 640, format.minimum(simd, record, slot))


@kernel_function
def element_with_sub_scales(simd: Any, format: Any, record: int, slot: int, scratch: int) -> None:
    scale = format.scale(simd, record, slot)
    simd.store_f32x16(scratch + 512, scale * simd.f32_from_i32(format.low_scale(simd, record, slot)))
    simd.store_f32x16(scratch + 576, scale * simd.f32_from_i32(format.high_scale(simd, record, slot)))
    simd.store_f32x16(scratch + 640, simd.splat_f32(np.float32(-0.0)))  # x + -0.0 is x, also where x is a zero


@kernel_function
def decode_group(simd: Any, format: Any, record: int, slot: int, low: int, lane: int, factor: Any, scratch: int, output: int) -> None:
    """32 elements of row `lane`, times `factor`."""
    codes = format.codes(simd, format, record, slot, low, 1)
    simd.tile_store_codes(codes, scratch)
    format.element(simd, format, record, slot, scratch)
    minimum = simd.load_f32(scratch + 640 + 4 * lane)
    for half in range(2):
        scale = simd.load_f32(scratch + 512 + 64 * half + 4 * lane)
        for column in range(16):
            position = 16 * half + column
            code = simd.load_u8(scratch + 64 * (position // 4) + 4 * lane + position % 4) - format.zero
            simd.store_f32(output + 4 * position, (simd.f32_from_i64(code) * scale + minimum) * factor)


@kernel_function
def embedding(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Packed table; one output row per token of the step."""
    table = word(simd, operands, 0)
    columns = word(simd, operands, 1)
    factor = float_word(simd, operands, 2)
    scratch = word(simd, operands, 3) + worker * SCRATCH_BYTES
    output = word(simd, operands, 4)
    output_stride = word(simd, operands, 5)
    rows = simd.load_i64(step + ROWS)
    tokens = simd.load_i64(step + TOKEN_IDS)
    groups = (columns + 31) // 32
    tile_bytes, low_tile_bytes = plane_bytes(simd, format, groups)
    lower_plane = table
    if format.low_bytes > 0:
        lower_plane = table + word(simd, operands, 6) * tile_bytes
    for row in range(share_start(simd, rows, worker, workers), share_start(simd, rows, worker + 1, workers)):
        token = simd.load_i32(tokens + 4 * row)
        tile = table + token // 16 * tile_bytes
        low = lower_plane + token // 16 * low_tile_bytes
        for group in range(groups):
            record = tile + group // format.groups_per_record * format.record_bytes
            destination = output + row * output_stride + 128 * group
            decode_group(simd, format, record, group % format.groups_per_record, low, token % 16, factor, scratch, destination)
            low += format.low_bytes


@kernel_function
def embedding_float(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """A table of a float format."""
    table = word(simd, operands, 0)
    columns = word(simd, operands, 1)
    factor = float_word(simd, operands, 2)
    scratch = word(simd, operands, 3) + worker * SCRATCH_BYTES
    output = word(simd, operands, 4)
    output_stride = word(simd, operands, 5)
    rows = simd.load_i64(step + ROWS)
    tokens = simd.load_i64(step + TOKEN_IDS)
    for row in range(share_start(simd, rows, worker, workers), share_start(simd, rows, worker + 1, workers)):
        token = simd.load_i32(tokens + 4 * row)
        tile = table + token // 16 * columns * 16 * format.element_bytes
        for column in range(columns):
            simd.store_f32x16(scratch, format.load(simd, tile + column * 16 * format.element_bytes))
            simd.store_f32(output + row * output_stride + 4 * column, simd.load_f32(scratch + token % 16 * 4) * factor)


MAPPED_SCRATCH_BYTES = SCRATCH_BYTES + 4096
"""For `embedding_mapped`: one packed record follows."""


@kernel_function
def embedding_mapped(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """A table as it lies in the file: each block of the row is packed as lane 0 of a record and decoded from there. `scratch` starts as zeros."""
    table = word(simd, operands, 0)
    columns = word(simd, operands, 1)
    factor = float_word(simd, operands, 2)
    scratch = word(simd, operands, 3) + worker * MAPPED_SCRATCH_BYTES
    output = word(simd, operands, 4)
    output_stride = word(simd, operands, 5)
    rows = simd.load_i64(step + ROWS)
    tokens = simd.load_i64(step + TOKEN_IDS)
    groups_per_block = format.groups_per_record // format.blocks_per_record
    blocks = columns // (32 * groups_per_block)
    record = scratch + SCRATCH_BYTES
    for row in range(share_start(simd, rows, worker, workers), share_start(simd, rows, worker + 1, workers)):
        source = table + simd.load_i32(tokens + 4 * row) * blocks * format.block_bytes
        destination = output + row * output_stride
        for block in range(blocks):
            format.pack(simd, source + block * format.block_bytes, record, 0, 0)
            for group in range(groups_per_block):
                decode_group(simd, format, record, group, 0, 0, factor, scratch, destination)
                destination += 128


@kernel_function
def embedding_mapped_float(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """A table of a float format as it lies in the file."""
    table = word(simd, operands, 0)
    columns = word(simd, operands, 1)
    factor = float_word(simd, operands, 2)
    scratch = word(simd, operands, 3) + worker * MAPPED_SCRATCH_BYTES
    output = word(simd, operands, 4)
    output_stride = word(simd, operands, 5)
    rows = simd.load_i64(step + ROWS)
    tokens = simd.load_i64(step + TOKEN_IDS)
    for row in range(share_start(simd, rows, worker, workers), share_start(simd, rows, worker + 1, workers)):
        source = table + simd.load_i32(tokens + 4 * row) * columns * format.element_bytes
        destination = output + row * output_stride
        column = 0
        while column + 16 <= columns:
            simd.store_f32x16(destination + 4 * column, format.load(simd, source + column * format.element_bytes) * simd.splat_f32(factor))
            column += 16
        # the rest of the row, as the last vector of a copy that is long enough
        rest = (columns - column) * format.element_bytes
        for byte in range(rest):
            simd.store_u8(scratch + byte, simd.load_u8(source + column * format.element_bytes + byte))
        if rest > 0:
            kept = simd.keep_lanes(format.load(simd, scratch), 0, columns - column, simd.splat_f32(np.float32(0)))
            simd.store_f32x16(destination + 4 * column, kept * simd.splat_f32(factor))

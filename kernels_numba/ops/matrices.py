"""Linear operations of many rows where the CPU multiplies small matrices of bytes (`simd/targets/matrices.py`): what `ops.linear` does there with more rows
than a tile of tokens. The sums are the same exact integers, and each (row, token) has the same chain of additions over ascending groups: the same bits.

Instructions for matrices and for vectors do not run well side by side (on Emerald Rapids vectors take up to twice their time while one of the former is under
way), and either waits for what the other has just stored. So a row tile goes in chunks of groups: all codes are unpacked to memory in the first-level cache;
then, for each tile of tokens, all products are made, and all are scaled and added. The accumulators are kept in memory between chunks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN, PREFETCH_BYTES, ROW_TILES_IN_CACHE, bias_of, plane_bytes, word
from kernels_numba.simd.function import kernel_function

TILE_TOKENS = 16
BLOCK_BYTES = BLOCK_BYTES_PER_TOKEN * TILE_TOKENS
CODE_BYTES = 512
PART_BYTES = 192
PRODUCT_BYTES = 1024
TILE_BYTES = 64 * TILE_TOKENS

TOKEN_TILES = 8
"""Tiles of tokens for which a row tile's codes are unpacked once."""

CHUNK_GROUPS = 8
"""Groups of a chunk at most, whole records of every format: what a chunk writes and the activations that it reads stay in a first-level cache of 48 kB."""

# A kernel's scratch memory: accumulators of each tile of tokens, codes and scales of each group, products of each group and half, and what
# `begin_products` saves.
CODES_AT = TILE_BYTES * TOKEN_TILES
PARTS_AT = CODES_AT + CODE_BYTES * CHUNK_GROUPS
PRODUCTS_AT = PARTS_AT + PART_BYTES * CHUNK_GROUPS
SAVED_AT = PRODUCTS_AT + 2 * PRODUCT_BYTES * CHUNK_GROUPS
SCRATCH_BYTES = SAVED_AT + 64


@kernel_function
def keep_scale(simd: Any, format: Any, record: int, slot: int, parts: int) -> None:
    """Writes what a group's products are multiplied by, for formats of scale * code."""
    simd.store_f32x16(parts, format.scale(simd, record, slot))


@kernel_function
def keep_scale_and_minimum(simd: Any, format: Any, record: int, slot: int, parts: int) -> None:
    """For formats of scale * code + minimum."""
    simd.store_f32x16(parts, format.scale(simd, record, slot))
    simd.store_f32x16(parts + 64, format.minimum(simd, record, slot))


@kernel_function
def keep_sub_scales(simd: Any, format: Any, record: int, slot: int, parts: int) -> None:
    """For formats whose groups have two halves with integer scales of their own."""
    simd.store_f32x16(parts, format.scale(simd, record, slot))
    simd.store_f32x16(parts + 64, simd.f32_from_i32(format.low_scale(simd, record, slot)))
    simd.store_f32x16(parts + 128, simd.f32_from_i32(format.high_scale(simd, record, slot)))


@kernel_function
def multiply(simd: Any, codes: int, block: int, products: int) -> None:
    """The product of a group."""
    simd.product(codes, block, products)


@kernel_function
def multiply_halves(simd: Any, codes: int, block: int, products: int) -> None:
    """The two products of a group whose halves have scales of their own."""
    simd.product_of_halves(codes, block, products)


@kernel_function
def add_plain(simd: Any, tile: Any, products: int, block: int, parts: int) -> Any:
    """The tile after a group."""
    return simd.tile_add_product(tile, products, block, simd.load_f32x16(parts))


@kernel_function
def add_with_minimum(simd: Any, tile: Any, products: int, block: int, parts: int) -> Any:
    tile = simd.tile_add_product(tile, products, block, simd.load_f32x16(parts))
    return simd.tile_add_minimum(tile, block, 16, 0, 0, simd.load_f32x16(parts + 64))


@kernel_function
def add_with_sub_scales(simd: Any, tile: Any, products: int, block: int, parts: int) -> Any:
    scales = simd.load_f32x16(parts + 64), simd.load_f32x16(parts + 128)
    return simd.tile_add_product_of_halves(tile, products, block, simd.load_f32x16(parts), scales[0], scales[1])


@kernel_function
def unpack_chunk(simd: Any, format: Any, record: int, low: int, groups: int, scratch: int) -> None:
    """Codes and scales of `groups` groups from the start of a record on."""
    codes = scratch + CODES_AT
    parts = scratch + PARTS_AT
    for first in range(0, groups, format.groups_per_record):
        for slot in range(min(format.groups_per_record, groups - first)):
            simd.tile_store_signed(format.codes(simd, format, record, slot, low, 16), format.zero, codes)
            format.keep_parts(simd, format, record, slot, parts)
            codes += CODE_BYTES
            parts += PART_BYTES
            low += format.low_bytes
        record += format.record_bytes


@kernel_function
def products_of_chunk(simd: Any, format: Any, block: int, groups: int, scratch: int) -> None:
    """The products of a chunk with the blocks of a tile of tokens."""
    codes = scratch + CODES_AT
    products = scratch + PRODUCTS_AT
    for _ in range(groups):
        format.multiply(simd, codes, block, products)
        codes += CODE_BYTES
        block += BLOCK_BYTES
        products += format.products * PRODUCT_BYTES


@kernel_function
def tile_after_chunk(simd: Any, format: Any, tile: Any, block: int, groups: int, scratch: int, ahead: int, low_ahead: int) -> Any:
    """The accumulators after a chunk's products. Meanwhile weights are fetched for a chunk that follows, so many lines a group that they arrive as fast as they
    are used."""
    parts = scratch + PARTS_AT
    products = scratch + PRODUCTS_AT
    for _ in range(groups):
        simd.prefetch(ahead, format.group_lines)
        simd.prefetch(low_ahead, format.low_lines)
        ahead += format.group_bytes
        low_ahead += format.low_bytes
        tile = format.add_products(simd, tile, products, block, parts)
        parts += PART_BYTES
        block += BLOCK_BYTES
        products += format.products * PRODUCT_BYTES
    return tile


@kernel_function
def row_tile_of_matrices(
    simd: Any, format: Any, operands: int, weights: int, low: int, groups: int, blocks: int, rows: int, token: int, tiles: int, row_tile: int, scratch: int
) -> None:
    """A row tile for `tiles` tiles of tokens from `token` on, whose blocks are at `blocks`."""
    residual = word(simd, operands, 6)
    residual_stride = word(simd, operands, 7)
    output_stride = word(simd, operands, 10)
    output = word(simd, operands, 9) + token * output_stride + 64 * row_tile
    if residual != 0:
        residual += token * residual_stride + 64 * row_tile
    bias = bias_of(simd, word(simd, operands, 5), row_tile)
    for other in range(16 * tiles):
        simd.store_f32x16(scratch + 64 * other, simd.splat_f32(np.float32(0)))
    for first in range(0, groups, CHUNK_GROUPS):
        count = min(CHUNK_GROUPS, groups - first)
        record = weights + first // format.groups_per_record * format.record_bytes
        unpack_chunk(simd, format, record, low + first * format.low_bytes, count, scratch)
        ahead = record + PREFETCH_BYTES
        low_ahead = low + first * format.low_bytes + PREFETCH_BYTES // 2
        for index in range(tiles):
            block = blocks + BLOCK_BYTES * (index * groups + first)
            products_of_chunk(simd, format, block, count, scratch)
            tile = tile_after_chunk(simd, format, simd.tile_load(scratch + TILE_BYTES * index), block, count, scratch, ahead, low_ahead)
            if first + count < groups:
                simd.tile_keep(tile, scratch + TILE_BYTES * index)
            else:
                passed = 16 * index
                at_residual = residual
                if residual != 0:
                    at_residual += passed * residual_stride
                simd.tile_store(tile, rows - token - passed, bias, output + passed * output_stride, output_stride, at_residual, residual_stride)


@kernel_function
def linear_matrices(simd: Any, format: Any, operands: int, blocks: int, rows: int, first_row: int, end_row: int, first: int, end: int) -> None:
    """Row tiles first .. end for the tokens first_row .. end_row of `rows`; the activation `blocks` are in tiles of 16 tokens."""
    groups = (word(simd, operands, 2) + 31) // 32
    row_tile_bytes, low_tile_bytes = plane_bytes(simd, format, groups)
    weights = word(simd, operands, 0)
    low = weights + word(simd, operands, 1) * row_tile_bytes
    scratch = simd.scratch(SCRATCH_BYTES)
    simd.begin_products(scratch + SAVED_AT)
    for chunk in range(first, end, ROW_TILES_IN_CACHE):
        for token in range(first_row, end_row, TILE_TOKENS * TOKEN_TILES):
            tiles = min(TOKEN_TILES, (end_row - token + TILE_TOKENS - 1) // TILE_TOKENS)
            at = blocks + token // TILE_TOKENS * groups * BLOCK_BYTES
            for row_tile in range(chunk, min(chunk + ROW_TILES_IN_CACHE, end)):
                here = weights + row_tile * row_tile_bytes
                row_tile_of_matrices(simd, format, operands, here, low + row_tile * low_tile_bytes, groups, at, rows, token, tiles, row_tile, scratch)
    simd.end_products(scratch + SAVED_AT)

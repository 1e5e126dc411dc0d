"""The end of a burst's tape where the output matrix lies in two planes: nobody wants the logits, so the largest is found from bounds of all and few of them.

A pass over the upper plane of the codes (`layouts.planes`, 65 % of the bytes) gives each logit an upper bound; the logits of the row tile with the largest
bound give a value that the best logit reaches; whole codes are then read of those row tiles alone that have a bound no smaller. `docs/arithmetic.md` says why
no slack is needed for rounding. Steps that want logits use `linear`, which gives the bits of the plain form of the matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.executor.step import OUTPUTS, STATUS, STATUS_NON_FINITE
from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN, GROUP, plane_bytes, share_start, tile_width, word
from kernels_numba.ops.elementwise import LOWEST
from kernels_numba.ops.greedy import chosen_tokens, end_pass
from kernels_numba.ops.linear import FEW_ROWS, LINEAR_OPERANDS, linear_few, row_tile
from kernels_numba.simd.function import kernel_function

BOUND_LOGITS_OPERANDS = (
    *LINEAR_OPERANDS,  # per_output is 1; there is neither bias nor residual
    "width",  # of the output: the vocabulary
    "bound_blocks",  # per worker `bound_blocks_bytes`: activation blocks for bounds
    "bound_blocks_bytes",
    "bound_maxima",  # float32[rows, chunks]: the largest bound of a row in each chunk of row tiles
    "bound_maxima_stride",
)
REFINE_BOUNDS_OPERANDS = (
    "input",  # bounds
    "input_stride",
    "width",
    "weights",
    "row_tiles",
    "columns",
    "input_blocks",  # of the output matrix, as they are
    "bound_maxima",
    "bound_maxima_stride",
    "best",  # per worker BEST_BYTES
)
CHOOSE_BEST_OPERANDS = ("width", "best")

SCREENED_ROWS = FEW_ROWS
"""More rows are bound by computing, of which bounds need no less."""

CHUNK_TILES = 8
"""Row tiles of a chunk."""
CHUNK_COLUMNS = 16 * CHUNK_TILES

LARGEST_SCREENED_SCALE = np.float32(2.0**64)
"""Activations whose scale is below cannot make a sum infinite: |weight scale| < 2^16, |dot| < 2^20, and there are fewer than 2^27 groups."""

NOT_A_NUMBER = np.float32(np.nan)
INFINITY = np.float32(np.inf)

BEST_ROW = 64
BEST_EXACT = BEST_ROW + 16 * SCREENED_ROWS
BEST_BYTES = BEST_EXACT + 64
"""What a worker found: 16 lanes of scratch, then for each row a float32, and 8 bytes behind it an int64, the logit and its id; at last, on a cache line of its
own and never cleared, how many row tiles it has computed exactly."""


def chunks_of(row_tiles: int) -> int:
    return -(-row_tiles // CHUNK_TILES)


@kernel_function
def write_bounds(simd: Any, source: int, blocks: int, per_tile: int, output: int) -> None:
    """Activation blocks for bounds: in place of the first integer 7 * (sum of the positive codes) - 128 * (sum of the codes), which with 8 * (the sum of upper
    code * activation code) is no less than the exact sum. A scale that could make a sum infinite becomes NaN, so that nothing is ruled out."""
    zero = simd.splat_i32(0)
    for _ in range(blocks):
        for lane in range(per_tile):
            low = simd.load_i8x16(source + GROUP * lane)
            high = simd.load_i8x16(source + GROUP * lane + 16)
            low_codes = simd.sign_extend_i8(low)
            high_codes = simd.sign_extend_i8(high)
            positive = simd.sum_lanes_i32(simd.maximum_i32(low_codes, zero) + simd.maximum_i32(high_codes, zero))
            total = simd.sum_lanes_i32(low_codes + high_codes)
            scale = simd.load_f32(source + 32 * per_tile + 4 * lane)
            if not scale < LARGEST_SCREENED_SCALE:
                scale = NOT_A_NUMBER
            simd.store_i8x16(output + GROUP * lane, low)
            simd.store_i8x16(output + GROUP * lane + 16, high)
            simd.store_f32(output + 32 * per_tile + 4 * lane, scale)
            simd.store_i32(output + 40 * per_tile + 4 * lane, 7 * positive - 128 * total)
        source += BLOCK_BYTES_PER_TOKEN * per_tile
        output += BLOCK_BYTES_PER_TOKEN * per_tile


@kernel_function
def largest_bound(simd: Any, bounds: int, count: int) -> Any:
    """The largest of `count` (up to CHUNK_COLUMNS) bounds, infinity if any is not finite."""
    lowest = simd.splat_f32(LOWEST)
    zero = simd.splat_f32(np.float32(0))
    poison = zero
    largest = lowest
    for column in range(0, count, 16):
        value = simd.load_f32x16(bounds + 4 * column)
        largest = simd.maximum(simd.keep_lanes(value, 0, count - column, lowest), largest)
        poison = simd.fma(simd.keep_lanes(value, 0, count - column, zero), zero, poison)
    total = simd.sum_lanes(poison)
    if total != total:
        return INFINITY
    return simd.maximum_lanes(largest)


@kernel_function
def bound_logits(simd: Any, upper: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Bounds where `linear` would write logits, and the largest of each chunk of them. Each worker makes the blocks for bounds for itself."""
    rows = simd.load_i64(step + OUTPUTS)
    row_tiles = word(simd, operands, 1)
    groups = (word(simd, operands, 2) + GROUP - 1) // GROUP
    output = word(simd, operands, 9)
    output_stride = word(simd, operands, 10)
    width = word(simd, operands, 11)
    blocks = word(simd, operands, 12) + worker * word(simd, operands, 13)
    maxima = word(simd, operands, 14)
    maxima_stride = word(simd, operands, 15)
    per_tile = tile_width(simd, rows)
    write_bounds(simd, word(simd, operands, 3), (rows + per_tile - 1) // per_tile * groups, per_tile, blocks)
    chunks = (row_tiles + CHUNK_TILES - 1) // CHUNK_TILES
    for chunk in range(share_start(simd, chunks, worker, workers), share_start(simd, chunks, worker + 1, workers)):
        linear_few(simd, upper, operands, blocks, rows, CHUNK_TILES * chunk, min(CHUNK_TILES * (chunk + 1), row_tiles))
        for row in range(rows):
            at = output + row * output_stride + 4 * CHUNK_COLUMNS * chunk
            largest = largest_bound(simd, at, min(CHUNK_COLUMNS, width - CHUNK_COLUMNS * chunk))
            simd.store_f32(maxima + row * maxima_stride + 4 * chunk, largest)


@kernel_function
def tile_of_largest_bound(simd: Any, bounds: int, width: int, maxima: int) -> int:
    """A row tile that has the largest of a row's bounds; any, if one is not finite."""
    chunks = (width + CHUNK_COLUMNS - 1) // CHUNK_COLUMNS
    found = 0
    largest = simd.load_f32(maxima)
    for chunk in range(1, chunks):
        value = simd.load_f32(maxima + 4 * chunk)
        if value > largest:
            largest = value
            found = chunk
    first = CHUNK_TILES * found
    for tile in range(first, min(first + CHUNK_TILES, (width + 15) // 16)):
        if largest_bound(simd, bounds + 64 * tile, min(16, width - 16 * tile)) == largest:
            return tile
    return first


@kernel_function
def exact_tile(simd: Any, format: Any, operands: int, rows: int, row: int, tile: int) -> Any:
    """The 16 logits of a row tile for one row, with the bits of `linear`."""
    groups = (word(simd, operands, 5) + GROUP - 1) // GROUP
    upper_bytes, low_bytes = plane_bytes(simd, format, groups)
    weights = word(simd, operands, 3) + tile * upper_bytes
    low = word(simd, operands, 3) + word(simd, operands, 4) * upper_bytes + tile * low_bytes
    blocks = word(simd, operands, 6)
    if rows == 1:
        one = row_tile(simd, format, simd.tile_zero(1), weights, low, groups, blocks, 1, 0, 0)
        return one[0]
    blocks += row // 4 * groups * BLOCK_BYTES_PER_TOKEN * 4
    of_four = row_tile(simd, format, simd.tile_zero(1), weights, low, groups, blocks, 4, row % 4, 0)
    return of_four[0]


@kernel_function
def first_lane(simd: Any, value: Any, wanted: Any, scratch: int) -> int:
    """The first lane that equals `wanted`; the last one, if none does."""
    simd.store_f32x16(scratch, value)
    lane = 0
    while lane < 15 and simd.load_f32(scratch + 4 * lane) != wanted:
        lane += 1
    return lane


@kernel_function
def refine_row(simd: Any, format: Any, operands: int, step: int, row: int, best: int, worker: int, workers: int) -> None:
    """Finds the best of a row's logits in this worker's chunks, every `workers`-th, or elsewhere: what it knows from the tile with the largest bound. That tile
    is computed by each, so that nobody waits."""
    bounds = word(simd, operands, 0) + row * word(simd, operands, 1)
    width = word(simd, operands, 2)
    maxima = word(simd, operands, 7) + row * word(simd, operands, 8)
    rows = simd.load_i64(step + OUTPUTS)
    chunks = (width + CHUNK_COLUMNS - 1) // CHUNK_COLUMNS
    tiles = (width + 15) // 16
    lowest = simd.splat_f32(LOWEST)
    zero = simd.splat_f32(np.float32(0))
    poison = zero
    started = tile_of_largest_bound(simd, bounds, width, maxima)
    largest = LOWEST
    token = width
    computed = 0
    chunk = worker - workers  # the first turn is for the tile with the largest bound
    while chunk < chunks:
        first = started
        end = started + 1
        if chunk >= 0:
            first = CHUNK_TILES * chunk
            end = first
            if not simd.load_f32(maxima + 4 * chunk) < largest:
                end = min(first + CHUNK_TILES, tiles)
        for tile in range(first, end):
            lanes = min(16, width - 16 * tile)
            if chunk < 0 or (tile != started and not largest_bound(simd, bounds + 64 * tile, lanes) < largest):
                logits = exact_tile(simd, format, operands, rows, row, tile)
                computed += 1
                poison = simd.fma(simd.keep_lanes(logits, 0, lanes, zero), zero, poison)
                logits = simd.keep_lanes(logits, 0, lanes, lowest)
                top = simd.maximum_lanes(logits)
                if top > largest or (top == largest and 16 * tile < token):
                    largest = top
                    token = 16 * tile + first_lane(simd, logits, top, best)
        chunk += workers
    simd.store_f32(best + BEST_ROW + 16 * row, largest)
    simd.store_i64(best + BEST_ROW + 16 * row + 8, token)
    simd.store_i64(best + BEST_EXACT, simd.load_i64(best + BEST_EXACT) + computed)
    total = simd.sum_lanes(poison)
    if total != total and simd.load_i64(step + STATUS) == 0:
        simd.store_i64(step + STATUS, STATUS_NON_FINITE)


@kernel_function
def refine_bounds(simd: Any, format: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """The best logit of each row, among those that the bounds do not rule out. What is computed is checked as `check_logits` does it."""
    best = word(simd, operands, 9) + worker * BEST_BYTES
    for row in range(simd.load_i64(step + OUTPUTS)):
        refine_row(simd, format, operands, step, row, best, worker, workers)


@kernel_function
def choose_best(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """What `choose_tokens` does, from what the workers found."""
    if worker != 0:
        return
    chosen = chosen_tokens(simd, step)
    for row in range(simd.load_i64(step + OUTPUTS)):
        largest = LOWEST
        token = word(simd, operands, 0) - 1
        for other in range(workers):
            found = word(simd, operands, 1) + other * BEST_BYTES + BEST_ROW + 16 * row
            value = simd.load_f32(found)
            id = simd.load_i64(found + 8)
            if value > largest or (value == largest and id < token):
                largest = value
                token = id
        simd.store_i32(chosen + 4 * row, token)
    end_pass(simd, step)

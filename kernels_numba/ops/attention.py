"""Attention over paged keys and values, and the kernel that writes them.

A page holds 16 positions of every kv head of a store; per head first the keys transposed, [key_size][16], then the values, [16][value_size]; heads
follow each other. Page p of a store is at store + p * page_bytes.

Arithmetic (docs/arithmetic.md): queries are scaled once; a score is one fma chain over the head dimension; positions are grouped in spans of 256
absolute positions; a span gives (maximum, sum of weights, weighted values), each in ascending positions, and spans fold in ascending order. How
rows are grouped into query blocks, pages and workers therefore changes nothing: single rows take `attend_row`, blocks of up to 8 rows share their
loads in `attend_block`, and both do the same operations on every row.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.executor.step import (
    CACHE_GROUPS,
    PAGE_TABLES,
    QUERY_BLOCK_COUNT,
    QUERY_BLOCK_ROWS,
    QUERY_BLOCKS,
    ROW_SEQUENCES,
    ROWS,
    SLOTS,
    STATUS,
    STATUS_NON_FINITE,
)
from kernels_numba.ops.common import float_word, share_start, word
from kernels_numba.ops.elementwise import capped
from kernels_numba.ops.mathematics import exp
from kernels_numba.simd.function import Constant, kernel_function

STORE_KEYS_VALUES_OPERANDS = (
    "keys", "keys_stride", "values", "values_stride", "store", "page_bytes", "group", "kv_heads", "key_size", "value_size",
)  # fmt: skip
ATTENTION_OPERANDS = (
    "queries", "queries_stride", "store", "page_bytes", "group", "heads", "kv_heads", "key_size", "value_size", "scale", "window", "softcap",
    "scratch", "scratch_bytes_per_worker", "output", "output_stride",
)  # fmt: skip

PAGE_POSITIONS = 16
SPAN = 256
SCORES_STRIDE = 4 * SPAN + 64  # off a power of two, so that the rows of a block do not share cache sets
NEGATIVE_INFINITY = np.float32(-np.inf)
STATE_BYTES = 128  # maximum and sum, each in all lanes of a vector, before the weighted values


def page_bytes(kv_heads: int, key_size: int, value_size: int, element_bytes: int) -> int:
    """Bytes of a page of a store."""
    return PAGE_POSITIONS * kv_heads * (key_size + value_size) * element_bytes


def attention_scratch_bytes(key_size: int, value_size: int) -> int:
    """Scratch of one worker, in bytes (a multiple of 64): scaled queries, scores of a span, state of a span and running state of 8 rows."""
    return QUERY_BLOCK_ROWS * ((4 * key_size + 64) + SCORES_STRIDE + 2 * (4 * value_size + STATE_BYTES))


@kernel_function
def page_address(simd, pages, page, store, bytes_per_page):
    """Address of a sequence's page number `page`."""
    return store + simd.load_i32(pages + 4 * page) * bytes_per_page


@kernel_function
def page_table(simd, step, sequence, group):
    return simd.load_i64(simd.load_i64(step + PAGE_TABLES) + 8 * (sequence * simd.load_i64(step + CACHE_GROUPS) + group))


@kernel_function
def store_keys_values(simd, cache, operands, step, worker, workers):
    """Writes the keys and values of the step's rows into their pages, rounded to the cache type.

    Sets the step's status to STATUS_NON_FINITE for one that the type does not hold: as an infinity it could end as a weight of 0, unseen.
    """
    keys = word(simd, operands, 0)
    keys_stride = word(simd, operands, 1)
    values = word(simd, operands, 2)
    values_stride = word(simd, operands, 3)
    store = word(simd, operands, 4)
    bytes_per_page = word(simd, operands, 5)
    group = word(simd, operands, 6)
    kv_heads = word(simd, operands, 7)
    key_size = word(simd, operands, 8)
    value_size = word(simd, operands, 9)
    rows = simd.load_i64(step + ROWS)
    slots = simd.load_i64(step + SLOTS)
    sequences = simd.load_i64(step + ROW_SEQUENCES)
    head_bytes = PAGE_POSITIONS * (key_size + value_size) * cache.bytes
    largest = simd.splat_i32(0)  # bits of magnitudes, which order like the numbers, NaN above all
    for unit in range(share_start(simd, rows * kv_heads, worker, workers), share_start(simd, rows * kv_heads, worker + 1, workers)):
        head = unit // rows
        row = unit - head * rows
        slot = simd.load_i32(slots + 4 * row)
        pages = page_table(simd, step, simd.load_i32(sequences + 4 * row), group)
        place = slot % PAGE_POSITIONS
        page = page_address(simd, pages, slot // PAGE_POSITIONS, store, bytes_per_page) + head * head_bytes
        source = keys + row * keys_stride + 4 * head * key_size
        for dimension in range(0, key_size, 16):
            target = page + (dimension * PAGE_POSITIONS + place) * cache.bytes
            value = simd.load_f32x16(source + 4 * dimension)
            largest = simd.maximum_i32(largest, simd.bits_from_f32x16(simd.absolute(value)))
            cache.store_column(simd, target, value)
        source = values + row * values_stride + 4 * head * value_size
        target = page + (PAGE_POSITIONS * key_size + place * value_size) * cache.bytes
        for dimension in range(0, value_size, 16):
            value = simd.load_f32x16(source + 4 * dimension)
            largest = simd.maximum_i32(largest, simd.bits_from_f32x16(simd.absolute(value)))
            cache.store(simd, target + dimension * cache.bytes, value)
    if simd.maximum_lanes_i32(largest) >= cache.overflow and simd.load_i64(step + STATUS) == 0:
        simd.store_i64(step + STATUS, STATUS_NON_FINITE)


@kernel_function
def scale_query(simd, query, scale, key_size, target):
    for dimension in range(0, 4 * key_size, 64):
        simd.store_f32x16(target + dimension, simd.load_f32x16(query + dimension) * scale)


@kernel_function
def first_visible(simd, slot, window):
    """The first position that the row at `slot` sees."""
    if window > 0:
        return max(0, slot - window + 1)
    return 0


@kernel_function
def weigh_span(simd, scores, low, high, cap, state):
    """Scores of the positions [low, high) of a span -> their weights in place, exactly 0 in the other lanes of the same vectors.

    Writes (maximum, sum of weights) to `state`, each in all lanes.
    """
    zero = simd.splat_f32(np.float32(0))
    lowest = simd.splat_f32(NEGATIVE_INFINITY)
    largest = lowest
    first = low // 16 * 16
    for position in range(first, high, 16):
        value = simd.load_f32x16(scores + 4 * position)
        if cap != np.float32(0):
            value = capped(simd, value, simd.splat_f32(cap))
            simd.store_f32x16(scores + 4 * position, value)
        largest = simd.maximum(largest, simd.keep_lanes(value, low - position, high - position, lowest))
    largest = simd.splat_f32(simd.maximum_lanes(largest))
    total = zero
    for position in range(first, high, 16):
        weights = exp(simd, simd.load_f32x16(scores + 4 * position) - largest)
        weights = simd.keep_lanes(weights, low - position, high - position, zero)
        simd.store_f32x16(scores + 4 * position, weights)
        total = total + weights
    simd.store_f32x16(state, largest)
    simd.store_f32x16(state + 64, simd.splat_f32(simd.sum_lanes(total)))


@kernel_function
def fold_span(simd, state, span, value_size, first):
    """Folds a span's (maximum, sum, values) into the running state; the first span of a row becomes the state."""
    if first:
        for offset in range(0, STATE_BYTES + 4 * value_size, 64):
            simd.store_f32x16(state + offset, simd.load_f32x16(span + offset))
    else:
        old = simd.load_f32x16(state)
        new = simd.load_f32x16(span)
        largest = simd.maximum(old, new)
        old_factor = exp(simd, old - largest)
        new_factor = exp(simd, new - largest)
        simd.store_f32x16(state, largest)
        for offset in range(64, STATE_BYTES + 4 * value_size, 64):
            folded = simd.fma(simd.load_f32x16(span + offset), new_factor, simd.load_f32x16(state + offset) * old_factor)
            simd.store_f32x16(state + offset, folded)


@kernel_function
def finish_row(simd, state, value_size, output):
    inverse = simd.splat_f32(np.float32(1)) / simd.load_f32x16(state + 64)
    for offset in range(0, 4 * value_size, 64):
        simd.store_f32x16(output + offset, simd.load_f32x16(state + STATE_BYTES + offset) * inverse)


@kernel_function
def score_pages(simd, cache, query, pages, first_page, end_page, store, bytes_per_page, key_size, scores):
    """Scores of one row over whole pages; `scores` is where those of `first_page` go. Four pages at a time, so that four chains are in flight."""
    zero = simd.splat_f32(np.float32(0))
    line = PAGE_POSITIONS * cache.bytes
    page = first_page
    while page + 4 <= end_page:
        key0 = page_address(simd, pages, page, store, bytes_per_page)
        key1 = page_address(simd, pages, page + 1, store, bytes_per_page)
        key2 = page_address(simd, pages, page + 2, store, bytes_per_page)
        key3 = page_address(simd, pages, page + 3, store, bytes_per_page)
        score0 = zero
        score1 = zero
        score2 = zero
        score3 = zero
        for dimension in range(key_size):
            factor = simd.splat_f32(simd.load_f32(query + 4 * dimension))
            score0 = simd.fma(cache.load(simd, key0 + dimension * line), factor, score0)
            score1 = simd.fma(cache.load(simd, key1 + dimension * line), factor, score1)
            score2 = simd.fma(cache.load(simd, key2 + dimension * line), factor, score2)
            score3 = simd.fma(cache.load(simd, key3 + dimension * line), factor, score3)
        target = scores + 64 * (page - first_page)
        simd.store_f32x16(target, score0)
        simd.store_f32x16(target + 64, score1)
        simd.store_f32x16(target + 128, score2)
        simd.store_f32x16(target + 192, score3)
        page += 4
    while page < end_page:
        key0 = page_address(simd, pages, page, store, bytes_per_page)
        score0 = zero
        for dimension in range(key_size):
            factor = simd.splat_f32(simd.load_f32(query + 4 * dimension))
            score0 = simd.fma(cache.load(simd, key0 + dimension * line), factor, score0)
        simd.store_f32x16(scores + 64 * (page - first_page), score0)
        page += 1


@kernel_function
def weighted_values(simd, cache, weights, low, high, pages, store, bytes_per_page, values_offset, value_size, output):
    """Sum over the positions [low, high) of weight * value for one row; `weights` is where that of position 0 would be. Zeros come out as +0."""
    zero = simd.splat_f32(np.float32(0))
    dimension = 0
    while dimension + 64 <= value_size:
        sum0 = zero
        sum1 = zero
        sum2 = zero
        sum3 = zero
        for page in range(low // PAGE_POSITIONS, (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS):
            base = page_address(simd, pages, page, store, bytes_per_page) + values_offset + dimension * cache.bytes
            for position in range(max(low, page * PAGE_POSITIONS), min(high, (page + 1) * PAGE_POSITIONS)):
                weight = simd.splat_f32(simd.load_f32(weights + 4 * position))
                value = base + (position - page * PAGE_POSITIONS) * value_size * cache.bytes
                sum0 = simd.fma(cache.load(simd, value), weight, sum0)
                sum1 = simd.fma(cache.load(simd, value + 16 * cache.bytes), weight, sum1)
                sum2 = simd.fma(cache.load(simd, value + 32 * cache.bytes), weight, sum2)
                sum3 = simd.fma(cache.load(simd, value + 48 * cache.bytes), weight, sum3)
        simd.store_f32x16(output + 4 * dimension, sum0 + zero)
        simd.store_f32x16(output + 4 * dimension + 64, sum1 + zero)
        simd.store_f32x16(output + 4 * dimension + 128, sum2 + zero)
        simd.store_f32x16(output + 4 * dimension + 192, sum3 + zero)
        dimension += 64
    while dimension < value_size:
        sum0 = zero
        for page in range(low // PAGE_POSITIONS, (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS):
            base = page_address(simd, pages, page, store, bytes_per_page) + values_offset + dimension * cache.bytes
            for position in range(max(low, page * PAGE_POSITIONS), min(high, (page + 1) * PAGE_POSITIONS)):
                weight = simd.splat_f32(simd.load_f32(weights + 4 * position))
                sum0 = simd.fma(cache.load(simd, base + (position - page * PAGE_POSITIONS) * value_size * cache.bytes), weight, sum0)
        simd.store_f32x16(output + 4 * dimension, sum0 + zero)
        dimension += 16


@kernel_function
def attend_row(simd, cache, query, slot, pages, store, bytes_per_page, key_size, value_size, scale, window, cap, scratch, output):
    """One row and one head."""
    scaled = scratch
    scores = scaled + 4 * key_size
    span_state = scores + SCORES_STRIDE
    state = span_state + STATE_BYTES + 4 * value_size
    scale_query(simd, query, scale, key_size, scaled)
    start = first_visible(simd, slot, window)
    for span in range(start // SPAN, slot // SPAN + 1):
        origin = span * SPAN
        low = max(start, origin)
        high = min(slot + 1, origin + SPAN)
        first_page = low // PAGE_POSITIONS
        end_page = (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS
        first_scores = scores + 4 * (first_page * PAGE_POSITIONS - origin)
        score_pages(simd, cache, scaled, pages, first_page, end_page, store, bytes_per_page, key_size, first_scores)
        weigh_span(simd, scores, low - origin, high - origin, cap, span_state)
        weighted_values(
            simd, cache, scores - 4 * origin, low, high, pages, store, bytes_per_page, PAGE_POSITIONS * key_size * cache.bytes, value_size,
            span_state + STATE_BYTES,
        )  # fmt: skip
        fold_span(simd, state, span_state, value_size, span == start // SPAN)
    finish_row(simd, state, value_size, output)


@kernel_function
def attend_block(
    simd, cache, tile_rows: Constant, queries, queries_stride, rows, slot, slot_step, pages, store, bytes_per_page, key_size, value_size, scale,
    window, cap, scratch, output, output_stride,
):  # fmt: skip
    """Up to `tile_rows` (at most 8) rows of one sequence that share a kv head: `slot_step` 1 for consecutive slots and one head, 0 for one slot and
    consecutive heads. `queries_stride` and `output_stride` lead from one to the next."""
    zero = simd.splat_f32(np.float32(0))
    scaled_stride = 4 * key_size + 64
    state_stride = STATE_BYTES + 4 * value_size
    scaled = scratch
    scores = scaled + tile_rows * scaled_stride
    span_states = scores + tile_rows * SCORES_STRIDE
    states = span_states + tile_rows * state_stride
    line = PAGE_POSITIONS * cache.bytes
    for row in range(rows):
        scale_query(simd, queries + row * queries_stride, scale, key_size, scaled + row * scaled_stride)
    for row in range(rows, tile_rows):
        for offset in range(0, 4 * key_size, 64):
            simd.store_f32x16(scaled + row * scaled_stride + offset, zero)
    start = first_visible(simd, slot, window)
    stop = slot + (rows - 1) * slot_step + 1
    for span in range(start // SPAN, (stop - 1) // SPAN + 1):
        origin = span * SPAN
        low = max(start, origin)
        high = min(stop, origin + SPAN)
        first_page = low // PAGE_POSITIONS
        end_page = (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS
        for page in range(first_page, end_page):
            keys = page_address(simd, pages, page, store, bytes_per_page)
            tile = simd.tile_zero(tile_rows)
            for dimension in range(key_size):
                tile = simd.tile_fma(tile, cache.load(simd, keys + dimension * line), scaled + 4 * dimension, scaled_stride)
            simd.tile_store_rows(tile, scores + 4 * (page * PAGE_POSITIONS - origin), SCORES_STRIDE)
        first_column = first_page * PAGE_POSITIONS - origin
        end_column = end_page * PAGE_POSITIONS - origin
        for row in range(tile_rows):
            row_scores = scores + row * SCORES_STRIDE
            row_low = end_column
            row_high = end_column
            if row < rows:
                row_low = max(first_visible(simd, slot + row * slot_step, window), origin) - origin
                row_high = min(slot + row * slot_step + 1, origin + SPAN) - origin
            if row_low < row_high:
                weigh_span(simd, row_scores, row_low, row_high, cap, span_states + row * state_stride)
            else:
                row_low = end_column
                row_high = end_column
            for column in range(first_column, row_low // 16 * 16, 16):
                simd.store_f32x16(row_scores + 4 * column, zero)
            for column in range((row_high + 15) // 16 * 16, end_column, 16):
                simd.store_f32x16(row_scores + 4 * column, zero)
        for dimension in range(0, value_size, 16):
            tile = simd.tile_zero(tile_rows)
            for page in range(first_page, end_page):
                base = page_address(simd, pages, page, store, bytes_per_page) + (PAGE_POSITIONS * key_size + dimension) * cache.bytes
                for position in range(max(low, page * PAGE_POSITIONS), min(high, (page + 1) * PAGE_POSITIONS)):
                    value = cache.load(simd, base + (position - page * PAGE_POSITIONS) * value_size * cache.bytes)
                    tile = simd.tile_fma(tile, value, scores + 4 * (position - origin), SCORES_STRIDE)
            simd.tile_store_rows(tile, span_states + STATE_BYTES + 4 * dimension, state_stride)
        for row in range(rows):
            row_start = first_visible(simd, slot + row * slot_step, window)
            if max(row_start, origin) < min(slot + row * slot_step + 1, origin + SPAN):
                values = span_states + row * state_stride + STATE_BYTES
                for offset in range(0, 4 * value_size, 64):
                    simd.store_f32x16(values + offset, simd.load_f32x16(values + offset) + zero)
                fold_span(simd, states + row * state_stride, span_states + row * state_stride, value_size, span == row_start // SPAN)
    for row in range(rows):
        finish_row(simd, states + row * state_stride, value_size, output + row * output_stride)


@kernel_function
def heads_of_a_unit(simd, per_kv_head, kv_heads, rows, blocks, workers):
    """How many heads of a kv head one unit of work takes: 1 where blocks have several rows to share what they load; else up to 8, fewer if workers
    would have nothing to do."""
    if rows > blocks:
        return 1
    parts = (per_kv_head + QUERY_BLOCK_ROWS - 1) // QUERY_BLOCK_ROWS
    while parts < per_kv_head and kv_heads * parts * blocks < workers:
        parts *= 2
    return (per_kv_head + parts - 1) // parts


@kernel_function
def attention(simd, cache, operands, step, worker, workers):
    """softmax(q k^T * scale) v over the positions that each row sees, for all rows and heads of the step.

    A row at slot s sees positions 0 .. s, with `window` > 0 only s - window + 1 .. s; with `softcap` > 0 a score becomes
    softcap * tanh(score / softcap).
    The step's keys and values must be in the cache. Key and value sizes are multiples of 16. Units are (head or heads, query block), dealt
    out in turn, because later blocks of a prompt cost more.
    """
    queries = word(simd, operands, 0)
    queries_stride = word(simd, operands, 1)
    store = word(simd, operands, 2)
    bytes_per_page = word(simd, operands, 3)
    group = word(simd, operands, 4)
    heads = word(simd, operands, 5)
    kv_heads = word(simd, operands, 6)
    key_size = word(simd, operands, 7)
    value_size = word(simd, operands, 8)
    scale = simd.splat_f32(float_word(simd, operands, 9))
    window = word(simd, operands, 10)
    cap = float_word(simd, operands, 11)
    scratch = word(simd, operands, 12) + worker * word(simd, operands, 13)
    output = word(simd, operands, 14)
    output_stride = word(simd, operands, 15)
    blocks = simd.load_i64(step + QUERY_BLOCK_COUNT)
    table = simd.load_i64(step + QUERY_BLOCKS)
    per_kv_head = heads // kv_heads
    head_bytes = PAGE_POSITIONS * (key_size + value_size) * cache.bytes
    shared = heads_of_a_unit(simd, per_kv_head, kv_heads, simd.load_i64(step + ROWS), blocks, workers)
    parts = (per_kv_head + shared - 1) // shared
    for unit in range(worker, kv_heads * parts * blocks, workers):
        part = unit // blocks
        block = table + 16 * (unit - part * blocks)
        kv_head = part // parts
        head = kv_head * per_kv_head + (part - kv_head * parts) * shared
        row = simd.load_i32(block)
        rows = simd.load_i32(block + 4)
        pages = page_table(simd, step, simd.load_i32(block + 8), group)
        slot = simd.load_i32(block + 12)
        head_store = store + kv_head * head_bytes
        query = queries + row * queries_stride + 4 * head * key_size
        target = output + row * output_stride + 4 * head * value_size
        query_step = queries_stride
        output_step = output_stride
        slot_step = 1
        if rows == 1:
            rows = min(shared, (kv_head + 1) * per_kv_head - head)
            query_step = 4 * key_size
            output_step = 4 * value_size
            slot_step = 0
        if rows == 1:
            attend_row(
                simd, cache, query, slot, pages, head_store, bytes_per_page, key_size, value_size, scale, window, cap, scratch, target
            )  # fmt: skip
        elif rows <= 4 or simd.tile_tokens < 8:  # eight accumulators of 16 lanes do not fit the registers of most instruction sets
            for first in range(0, rows, 4):
                attend_block(
                    simd, cache, 4, query + first * query_step, query_step, min(4, rows - first), slot + first * slot_step, slot_step, pages,
                    head_store, bytes_per_page, key_size, value_size, scale, window, cap, scratch, target + first * output_step, output_step,
                )  # fmt: skip
        else:
            attend_block(
                simd, cache, 8, query, query_step, rows, slot, slot_step, pages, head_store, bytes_per_page, key_size, value_size, scale, window, cap,
                scratch, target, output_step,
            )  # fmt: skip

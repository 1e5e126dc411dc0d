"""The steps of attention within one span of 256 positions, for a tile of rows that share what they load. Only `attention` calls them.

A *row* here is one query row of one head. Rows of a unit of work are interleaved in scratch memory in lines of 16 float32: queries as
[key_size / 16][rows][16], scores and weights as [page][rows][16]. So the rows of a tile lie 64 bytes apart, which is a constant in the code, and one
pass over 16 dimensions or positions reads consecutive lines.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.ops.cache_types import PAGE_POSITIONS
from kernels_numba.ops.elementwise import capped
from kernels_numba.ops.mathematics import exp, exp_of_four_not_positive, exp_of_not_positive
from kernels_numba.ops.pages import page_address
from kernels_numba.simd.function import Constant, kernel_function

SPAN = 256
SPAN_PAGES = SPAN // PAGE_POSITIONS
LINE = 64
"""Bytes of 16 float32, and from a row to the next."""
NEGATIVE_INFINITY = np.float32(-np.inf)
STATE_BYTES = 2 * LINE
"""Maximum and sum of weights, each in all lanes of a vector, before the weighted values."""


@kernel_function
def state_stride(simd, value_size):
    """Bytes of a row's state."""
    return STATE_BYTES + 4 * value_size


@kernel_function
def scale_queries(simd, queries, queries_stride, rows, heads, scale, key_size, lines, target):
    """The unit's queries, scaled, in lines; zero in the rows that fill the last tile."""
    for row in range(rows):
        for head in range(heads):
            query = queries + row * queries_stride + 4 * head * key_size
            place = target + LINE * (row * heads + head)
            for chunk in range(key_size // 16):
                simd.store_f32x16(place + chunk * lines, simd.load_f32x16(query + LINE * chunk) * scale)
    for chunk in range(key_size // 16):
        for place in range(target + chunk * lines + LINE * rows * heads, target + (chunk + 1) * lines, LINE):
            simd.store_f32x16(place, simd.splat_f32(np.float32(0)))


@kernel_function
def score_tile(simd, cache, width: Constant, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores):
    """Scores of `width` rows over the pages [first_page, end_page); `scores` is where those of `first_page` go. `lines` are the bytes of a line of all
    rows: from 16 dimensions, or a page, to the next."""
    for page in range(first_page, end_page):
        keys = page_address(simd, pages, page, store, bytes_per_page)
        next_keys = page_address(simd, pages, min(page + 1, end_page - 1), store, bytes_per_page)
        query = queries
        tile = simd.tile_zero(width)
        for chunk in range(0, key_size, 16):
            if width <= 8:  # few rows wait for memory, and the next page may lie anywhere
                simd.prefetch(next_keys + PAGE_POSITIONS * cache.element_bytes * chunk, cache.key_lines)
            scale = cache.key_scale(simd, cache, keys, chunk, key_size)
            for dimension in range(16):
                tile = simd.tile_fma(tile, cache.key(simd, cache, keys, chunk + dimension, scale), query + 4 * dimension, LINE)
            query += lines
        simd.tile_store_rows(tile, scores, LINE)
        scores += lines


@kernel_function
def score_row(simd, cache, query, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores):
    """`score_tile` of one row, four pages at a time, so that four chains are in flight."""
    zero = simd.splat_f32(np.float32(0))
    page = first_page
    while page + 4 <= end_page:
        keys0 = page_address(simd, pages, page, store, bytes_per_page)
        keys1 = page_address(simd, pages, page + 1, store, bytes_per_page)
        keys2 = page_address(simd, pages, page + 2, store, bytes_per_page)
        keys3 = page_address(simd, pages, page + 3, store, bytes_per_page)
        score0 = zero
        score1 = zero
        score2 = zero
        score3 = zero
        for chunk in range(0, key_size, 16):
            scale0 = cache.key_scale(simd, cache, keys0, chunk, key_size)
            scale1 = cache.key_scale(simd, cache, keys1, chunk, key_size)
            scale2 = cache.key_scale(simd, cache, keys2, chunk, key_size)
            scale3 = cache.key_scale(simd, cache, keys3, chunk, key_size)
            factors = query + chunk // 16 * lines
            for dimension in range(chunk, chunk + 16):
                factor = simd.splat_f32(simd.load_f32(factors + 4 * (dimension - chunk)))
                score0 = simd.fma(cache.key(simd, cache, keys0, dimension, scale0), factor, score0)
                score1 = simd.fma(cache.key(simd, cache, keys1, dimension, scale1), factor, score1)
                score2 = simd.fma(cache.key(simd, cache, keys2, dimension, scale2), factor, score2)
                score3 = simd.fma(cache.key(simd, cache, keys3, dimension, scale3), factor, score3)
        simd.store_f32x16(scores, score0)
        simd.store_f32x16(scores + lines, score1)
        simd.store_f32x16(scores + 2 * lines, score2)
        simd.store_f32x16(scores + 3 * lines, score3)
        scores += 4 * lines
        page += 4
    score_tile(simd, cache, 1, query, lines, pages, page, end_page, store, bytes_per_page, key_size, scores)


@kernel_function
def largest_score(simd, scores, lines, first, end):
    """The largest of each lane over the vectors [first, end)."""
    lowest = simd.splat_f32(NEGATIVE_INFINITY)
    largest0 = lowest
    largest1 = lowest
    index = first
    while index + 2 <= end:
        largest0 = simd.maximum(largest0, simd.load_f32x16(scores + index * lines))
        largest1 = simd.maximum(largest1, simd.load_f32x16(scores + (index + 1) * lines))
        index += 2
    if index < end:
        largest0 = simd.maximum(largest0, simd.load_f32x16(scores + index * lines))
    return simd.maximum(largest0, largest1)


@kernel_function
def largest_visible(simd, scores, lines, low, high, cap):
    """The largest score of a row at the positions [low, high) of a span, in all lanes. Scores are capped in place, other lanes of their vectors are -inf."""
    lowest = simd.splat_f32(NEGATIVE_INFINITY)
    first = low // 16
    end = (high + 15) // 16
    if cap != np.float32(0):
        for index in range(first, end):
            simd.store_f32x16(scores + index * lines, capped(simd, simd.load_f32x16(scores + index * lines), simd.splat_f32(cap)))
    if low % 16 != 0:  # lanes that are not visible, at the start of a window and at the end
        place = scores + first * lines
        simd.store_f32x16(place, simd.keep_lanes(simd.load_f32x16(place), low % 16, 16, lowest))
    if high % 16 != 0:
        place = scores + (end - 1) * lines
        simd.store_f32x16(place, simd.keep_lanes(simd.load_f32x16(place), 0, high % 16, lowest))
    return simd.splat_f32(simd.maximum_lanes(largest_score(simd, scores, lines, first, end)))


@kernel_function
def weigh_whole(simd, scores, lines, first, end, largest, total):
    """Weights of the vectors [first, end), all of whose positions are visible; returns `total` plus them. Four chains of operations are in flight."""
    index = first
    while index + 4 <= end:
        place = scores + index * lines
        weights0, weights1, weights2, weights3 = exp_of_four_not_positive(
            simd,
            (
                simd.load_f32x16(place) - largest,
                simd.load_f32x16(place + lines) - largest,
                simd.load_f32x16(place + 2 * lines) - largest,
                simd.load_f32x16(place + 3 * lines) - largest,
            ),
        )
        simd.store_f32x16(place, weights0)
        simd.store_f32x16(place + lines, weights1)
        simd.store_f32x16(place + 2 * lines, weights2)
        simd.store_f32x16(place + 3 * lines, weights3)
        total = total + weights0
        total = total + weights1
        total = total + weights2
        total = total + weights3
        index += 4
    while index < end:
        weights = exp_of_not_positive(simd, simd.load_f32x16(scores + index * lines) - largest)
        simd.store_f32x16(scores + index * lines, weights)
        total = total + weights
        index += 1
    return total


@kernel_function
def weigh_row(simd, scores, lines, low, high, cap, state):
    """Scores of a row at the positions [low, high) of a span -> their weights in place, exactly 0 in the other lanes of the same vectors.

    Writes (maximum, sum of weights) to `state`, each in all lanes.
    """
    zero = simd.splat_f32(np.float32(0))
    first = low // 16
    end = (high + 15) // 16
    largest = largest_visible(simd, scores, lines, low, high, cap)
    total = zero
    index = first
    if low % 16 != 0:
        weights = exp_of_not_positive(simd, simd.load_f32x16(scores + first * lines) - largest)
        weights = simd.keep_lanes(weights, low % 16, min(high - 16 * first, 16), zero)
        simd.store_f32x16(scores + first * lines, weights)
        total = total + weights
        index += 1
    total = weigh_whole(simd, scores, lines, index, max(high // 16, index), largest, total)
    if high % 16 != 0 and index < end:
        index = end - 1
        weights = exp_of_not_positive(simd, simd.load_f32x16(scores + index * lines) - largest)
        weights = simd.keep_lanes(weights, 0, high % 16, zero)
        simd.store_f32x16(scores + index * lines, weights)
        total = total + weights
    simd.store_f32x16(state, largest)
    simd.store_f32x16(state + LINE, simd.splat_f32(simd.sum_lanes(total)))


@kernel_function
def first_visible(simd, slot, window):
    """The first position that the row at `slot` sees."""
    if window > 0:
        return max(0, slot - window + 1)
    return 0


@kernel_function
def visible(simd, origin, slot, window):
    """The positions [low, high) of the span from `origin` that the row at `slot` sees, counted from there."""
    return max(first_visible(simd, slot, window) - origin, 0), min(slot + 1 - origin, SPAN)


@kernel_function
def weigh(simd, scores, lines, rows, heads, origin, slot, window, cap, states, numbers, pages, store, bytes_per_page, values_at, value_size):
    """Scores of a unit's rows -> weights, 0 where a row sees nothing in the vectors that any row sees; maxima and sums to the states."""
    stride = state_stride(simd, value_size)
    first = max(first_visible(simd, slot, window) - origin, 0) // 16
    end = (min(slot + rows - origin, SPAN) + 15) // 16
    for row in range(rows):
        low, high = visible(simd, origin, slot + row, window)
        for place in range(row * heads, (row + 1) * heads):
            weights = scores + LINE * place
            if low < high:
                weigh_row(simd, weights, lines, low, high, cap, states + place * stride)
                clear_weights(simd, weights, lines, first, low // 16)
                clear_weights(simd, weights, lines, (high + 15) // 16, end)
            else:
                clear_weights(simd, weights, lines, first, end)


@kernel_function
def clear_weights(simd, weights, lines, first, end):
    """Zeros for a row in the vectors [first, end) of a span."""
    for index in range(first, end):
        simd.store_f32x16(weights + index * lines, simd.splat_f32(np.float32(0)))


@kernel_function
def value_tile(
    simd, cache, width: Constant, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers
):  # fmt: skip
    """Sums over the positions [low, high) of a span of weight * value, from `dimension` on, into the states of `width` rows. `pages` is the span's part
    of the page table, `weights` those of its first page. Zeros come out as +0."""
    zero = simd.splat_f32(np.float32(0))
    while dimension < value_size:
        tile = simd.tile_zero(width)
        for page in range(low // PAGE_POSITIONS, (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS):
            values = page_address(simd, pages, page, store, bytes_per_page) + values_at
            line = weights + page * lines
            first = max(low - page * PAGE_POSITIONS, 0)
            end = min(high - page * PAGE_POSITIONS, PAGE_POSITIONS)
            for position in range(first, end):
                tile = simd.tile_fma(tile, cache.value(simd, cache, values, position, dimension, value_size), line + 4 * position, LINE)
        simd.tile_store_rows(simd.tile_add(tile, zero), states + STATE_BYTES + 4 * dimension, state_stride(simd, value_size))
        dimension += 16


@kernel_function
def value_tile_64(
    simd, cache, width: Constant, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers
):  # fmt: skip
    """`value_tile` of the 64 dimensions from `dimension` at once, for few rows: whole cache lines are read, and a weight is used four times."""
    zero = simd.splat_f32(np.float32(0))
    tile0 = simd.tile_zero(width)
    tile1 = simd.tile_zero(width)
    tile2 = simd.tile_zero(width)
    tile3 = simd.tile_zero(width)
    for page in range(low // PAGE_POSITIONS, (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS):
        values = page_address(simd, pages, page, store, bytes_per_page) + values_at
        next_page = min(page + 1, (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS - 1)
        next_values = page_address(simd, pages, next_page, store, bytes_per_page) + values_at + dimension * cache.element_bytes
        line = weights + page * lines
        first = max(low - page * PAGE_POSITIONS, 0)
        end = min(high - page * PAGE_POSITIONS, PAGE_POSITIONS)
        for position in range(first, end):
            simd.prefetch(next_values + position * value_size * cache.element_bytes, cache.element_bytes)
            tile0 = simd.tile_fma(tile0, cache.value(simd, cache, values, position, dimension, value_size), line + 4 * position, LINE)
            tile1 = simd.tile_fma(tile1, cache.value(simd, cache, values, position, dimension + 16, value_size), line + 4 * position, LINE)
            tile2 = simd.tile_fma(tile2, cache.value(simd, cache, values, position, dimension + 32, value_size), line + 4 * position, LINE)
            tile3 = simd.tile_fma(tile3, cache.value(simd, cache, values, position, dimension + 48, value_size), line + 4 * position, LINE)
    target = states + STATE_BYTES + 4 * dimension
    stride = state_stride(simd, value_size)
    simd.tile_store_rows(simd.tile_add(tile0, zero), target, stride)
    simd.tile_store_rows(simd.tile_add(tile1, zero), target + LINE, stride)
    simd.tile_store_rows(simd.tile_add(tile2, zero), target + 2 * LINE, stride)
    simd.tile_store_rows(simd.tile_add(tile3, zero), target + 3 * LINE, stride)


@kernel_function
def fold_span(simd, state, span, value_size, first):
    """Folds a span's (maximum, sum, values) into the running state of a row; the first span of a row becomes the state."""
    if first:
        for offset in range(0, state_stride(simd, value_size), LINE):
            simd.store_f32x16(state + offset, simd.load_f32x16(span + offset))
    else:
        old = simd.load_f32x16(state)
        new = simd.load_f32x16(span)
        largest = simd.maximum(old, new)
        old_factor = exp(simd, old - largest)
        new_factor = exp(simd, new - largest)
        simd.store_f32x16(state, largest)
        for offset in range(LINE, state_stride(simd, value_size), LINE):
            folded = simd.fma(simd.load_f32x16(span + offset), new_factor, simd.load_f32x16(state + offset) * old_factor)
            simd.store_f32x16(state + offset, folded)


@kernel_function
def finish_row(simd, state, value_size, output):
    """output = values / sum."""
    inverse = simd.splat_f32(np.float32(1)) / simd.load_f32x16(state + LINE)
    for offset in range(0, 4 * value_size, LINE):
        simd.store_f32x16(output + offset, simd.load_f32x16(state + STATE_BYTES + offset) * inverse)

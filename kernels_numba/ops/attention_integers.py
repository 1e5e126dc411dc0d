"""The steps of attention within one span with 16-bit integers, for the cache type `q16_0`. They stand for those of `attention_spans`; only `attention` calls
them.

Queries, keys and values are codes (`cache_types` says how large, so that no sum leaves 32 bits whatever its order), and so are the weights of a span. Scratch
memory has the lines of `attention_spans`, but a line of 64 bytes holds 32 codes: queries as [key_size / 32][rows][32] and weights, over the scores that
they come from, as [span / 32][rows][32]. Behind the lines of the queries lies one more for each row, with the scales of its query and of its weights.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.ops.attention_spans import LINE, SPAN, STATE_BYTES, first_visible, largest_visible, state_stride, visible
from kernels_numba.ops.cache_types import LARGEST_CODE, PAGE_POSITIONS, q16_norm_scale
from kernels_numba.ops.common import SMALLEST_SCALED
from kernels_numba.ops.mathematics import exp_of_four_not_positive, exp_of_not_positive
from kernels_numba.ops.pages import page_address
from kernels_numba.simd.function import Constant, kernel_function

HALF_LINE = 32
WEIGHT_SCALE = 4
WEIGHT_INVERSE = 8
PAIRS = PAGE_POSITIONS // 2
WEIGHT_FACTOR = np.float32(1 / LARGEST_CODE)
SUM_FACTOR = np.float32(1 / (2**18 - 256))
"""The codes of a span's weights are at most 32767, and their sum, 256 roundings included, at most 2^18."""


@kernel_function
def quantize_queries(simd, queries, queries_stride, rows, heads, scale, key_size, lines, target):
    """The unit's queries, scaled, as codes in lines, and their scales; zero in the rows that fill the last tile."""
    scales = target + key_size // 16 * lines
    for row in range(rows):
        for head in range(heads):
            query = queries + row * queries_stride + 4 * head * key_size
            place = target + LINE * (row * heads + head)
            number, inverse = q16_norm_scale(simd, query, key_size, scale)
            simd.store_f32(scales + LINE * (row * heads + head), number)
            for dimension in range(0, key_size, 16):
                codes = simd.round_i32(simd.load_f32x16(query + 4 * dimension) * scale * inverse)
                simd.store_i16x16(place + dimension // 32 * lines + 2 * (dimension % 32), codes)
    zero = simd.splat_f32(np.float32(0))
    for line in range((key_size + 31) // 32):
        for place in range(target + line * lines + LINE * rows * heads, target + (line + 1) * lines, LINE):
            simd.store_f32x16(place, zero)
    for place in range(scales + LINE * rows * heads, scales + lines, LINE):
        simd.store_f32x16(place, zero)


@kernel_function
def score_tile_integers(simd, cache, width: Constant, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores):
    """`score_tile` of codes."""
    for page in range(first_page, end_page):
        keys = page_address(simd, pages, page, store, bytes_per_page)
        next_keys = page_address(simd, pages, min(page + 1, end_page - 1), store, bytes_per_page)
        tile = simd.tile_zero_i32(width)
        for dimension in range(0, key_size, 16):
            if width <= 8:  # few rows wait for memory, and the next page may lie anywhere
                simd.prefetch(next_keys + 2 * PAGE_POSITIONS * dimension, 8)
            query = queries + dimension // 32 * lines + 2 * (dimension % 32)
            line = keys + 2 * PAGE_POSITIONS * dimension
            for pair in range(8):
                tile = simd.tile_dot_i16(tile, simd.load_i32x16(line + LINE * pair), query + 4 * pair, LINE)
        scales = simd.load_f32x16(keys + 2 * PAGE_POSITIONS * key_size)
        simd.tile_store_rows(simd.tile_scaled(tile, scales, queries + key_size // 16 * lines, LINE), scores, LINE)
        scores += lines


@kernel_function
def score_row_integers(simd, cache, query, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores):
    """`score_tile_integers` of one row, four pages at a time, so that four chains are in flight."""
    zero = simd.splat_i32(0)
    scale = simd.splat_f32(simd.load_f32(query + key_size // 16 * lines))
    scales_at = 2 * PAGE_POSITIONS * key_size
    page = first_page
    while page + 4 <= end_page:
        keys0 = page_address(simd, pages, page, store, bytes_per_page)
        keys1 = page_address(simd, pages, page + 1, store, bytes_per_page)
        keys2 = page_address(simd, pages, page + 2, store, bytes_per_page)
        keys3 = page_address(simd, pages, page + 3, store, bytes_per_page)
        dot0 = zero
        dot1 = zero
        dot2 = zero
        dot3 = zero
        for dimension in range(0, key_size, 16):
            codes = query + dimension // 32 * lines + 2 * (dimension % 32)
            place = 2 * PAGE_POSITIONS * dimension
            for pair in range(8):
                code = simd.splat_i32(simd.load_i32(codes + 4 * pair))
                dot0 = simd.dot_i16(dot0, simd.load_i32x16(keys0 + place + LINE * pair), code)
                dot1 = simd.dot_i16(dot1, simd.load_i32x16(keys1 + place + LINE * pair), code)
                dot2 = simd.dot_i16(dot2, simd.load_i32x16(keys2 + place + LINE * pair), code)
                dot3 = simd.dot_i16(dot3, simd.load_i32x16(keys3 + place + LINE * pair), code)
        simd.store_f32x16(scores, simd.f32_from_i32(dot0) * simd.load_f32x16(keys0 + scales_at) * scale)
        simd.store_f32x16(scores + lines, simd.f32_from_i32(dot1) * simd.load_f32x16(keys1 + scales_at) * scale)
        simd.store_f32x16(scores + 2 * lines, simd.f32_from_i32(dot2) * simd.load_f32x16(keys2 + scales_at) * scale)
        simd.store_f32x16(scores + 3 * lines, simd.f32_from_i32(dot3) * simd.load_f32x16(keys3 + scales_at) * scale)
        scores += 4 * lines
        page += 4
    score_tile_integers(simd, cache, 1, query, lines, pages, page, end_page, store, bytes_per_page, key_size, scores)


@kernel_function
def scale_weights(simd, place, weights, scales, sums):
    """Keeps weights times the scales of their values, and adds to (sum of weights, sum of these, largest of these)."""
    total, scaled_total, largest = sums
    scaled = weights * scales
    simd.store_f32x16(place, scaled)
    return total + weights, scaled_total + scaled, simd.maximum(largest, scaled)


@kernel_function
def weigh_some_integers(simd, place, first, end, row_largest, scales, sums):
    """`scale_weights` of a vector of which the lanes [first, end) are visible. What lies in place of the scales of others may be anything."""
    zero = simd.splat_f32(np.float32(0))
    weights = simd.keep_lanes(exp_of_not_positive(simd, simd.load_f32x16(place) - row_largest), first, end, zero)
    return scale_weights(simd, place, weights, simd.keep_lanes(simd.load_f32x16(scales), first, end, zero), sums)


@kernel_function
def weigh_row_integers(simd, scores, lines, low, high, state, numbers, pages, store, bytes_per_page, scales_at):
    """Scores of a row at the positions [low, high) of a span -> weights times the scales of their values. The largest score is in `state`; writes the sum of
    weights to it, and the scale of the codes of weights, and its inverse, to the row's numbers."""
    zero = simd.splat_f32(np.float32(0))
    row_largest = simd.load_f32x16(state)
    sums = (zero, zero, zero)
    index = low // 16
    end = high // 16
    if low % 16 != 0:
        scales = page_address(simd, pages, index, store, bytes_per_page) + scales_at
        sums = weigh_some_integers(simd, scores + index * lines, low % 16, min(high - 16 * index, 16), row_largest, scales, sums)
        index += 1
    while index + 4 <= end:
        place = scores + index * lines
        weights0, weights1, weights2, weights3 = exp_of_four_not_positive(
            simd,
            (
                simd.load_f32x16(place) - row_largest,
                simd.load_f32x16(place + lines) - row_largest,
                simd.load_f32x16(place + 2 * lines) - row_largest,
                simd.load_f32x16(place + 3 * lines) - row_largest,
            ),
        )
        scales0 = simd.load_f32x16(page_address(simd, pages, index, store, bytes_per_page) + scales_at)
        scales1 = simd.load_f32x16(page_address(simd, pages, index + 1, store, bytes_per_page) + scales_at)
        scales2 = simd.load_f32x16(page_address(simd, pages, index + 2, store, bytes_per_page) + scales_at)
        scales3 = simd.load_f32x16(page_address(simd, pages, index + 3, store, bytes_per_page) + scales_at)
        sums = scale_weights(simd, place, weights0, scales0, sums)
        sums = scale_weights(simd, place + lines, weights1, scales1, sums)
        sums = scale_weights(simd, place + 2 * lines, weights2, scales2, sums)
        sums = scale_weights(simd, place + 3 * lines, weights3, scales3, sums)
        index += 4
    while index < end:
        weights = exp_of_not_positive(simd, simd.load_f32x16(scores + index * lines) - row_largest)
        scales = page_address(simd, pages, index, store, bytes_per_page) + scales_at
        sums = scale_weights(simd, scores + index * lines, weights, simd.load_f32x16(scales), sums)
        index += 1
    if 16 * index < high:
        scales = page_address(simd, pages, index, store, bytes_per_page) + scales_at
        sums = weigh_some_integers(simd, scores + index * lines, 0, high % 16, row_largest, scales, sums)
    total, scaled_total, largest = sums
    simd.store_f32x16(state + LINE, simd.splat_f32(simd.sum_lanes(total)))
    scale = max(simd.sum_lanes(scaled_total) * SUM_FACTOR, simd.maximum_lanes(largest) * WEIGHT_FACTOR)
    inverse = np.float32(0)
    if simd.bits_from_f32(scale) < SMALLEST_SCALED:
        scale = np.float32(0)
    else:
        inverse = np.float32(1) / scale
    simd.store_f32(numbers + WEIGHT_SCALE, scale)
    simd.store_f32(numbers + WEIGHT_INVERSE, inverse)


@kernel_function
def quantize_weights(simd, weights, lines, first, end, numbers):
    """The weights of a row in the vectors [first, end) -> codes, each vector's in half a line."""
    factor = simd.splat_f32(simd.load_f32(numbers + WEIGHT_INVERSE))
    for index in range(first, end):
        codes = simd.round_i32(simd.load_f32x16(weights + index * lines) * factor)
        simd.store_i16x16(weights + index // 2 * lines + HALF_LINE * (index % 2), codes)


@kernel_function
def weigh_integers(simd, scores, lines, rows, heads, origin, slot, window, cap, states, numbers, pages, store, bytes_per_page, values_at, value_size):
    """`weigh`, with codes as weights. In three passes, so that a row need not wait for the largest and the sums of itself."""
    stride = state_stride(simd, value_size)
    scales_at = values_at + 2 * PAGE_POSITIONS * value_size
    for row in range(rows):
        low, high = visible(simd, origin, slot + row, window)
        if low < high:
            for place in range(row * heads, (row + 1) * heads):
                simd.store_f32x16(states + place * stride, largest_visible(simd, scores + LINE * place, lines, low, high, cap))
    for row in range(rows):
        low, high = visible(simd, origin, slot + row, window)
        if low < high:
            for place in range(row * heads, (row + 1) * heads):
                weigh_row_integers(
                    simd, scores + LINE * place, lines, low, high, states + place * stride, numbers + LINE * place, pages, store, bytes_per_page, scales_at
                )  # fmt: skip
    first = max(first_visible(simd, slot, window) - origin, 0) // 16
    end = (min(slot + rows - origin, SPAN) + 15) // 16
    for row in range(rows):
        low, high = visible(simd, origin, slot + row, window)
        for place in range(row * heads, (row + 1) * heads):
            weights = scores + LINE * place
            if low < high:
                quantize_weights(simd, weights, lines, low // 16, (high + 15) // 16, numbers + LINE * place)
                clear_codes(simd, weights, lines, first, low // 16)
                clear_codes(simd, weights, lines, (high + 15) // 16, end)
            else:
                clear_codes(simd, weights, lines, first, end)


@kernel_function
def clear_codes(simd, weights, lines, first, end):
    """Zeros for a row in place of the codes of the vectors [first, end) of a span."""
    for index in range(first, end):
        simd.store_i16x16(weights + index // 2 * lines + HALF_LINE * (index % 2), simd.splat_i32(0))


@kernel_function
def value_tile_integers(
    simd, cache, width: Constant, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers
):  # fmt: skip
    """`value_tile` of codes. Positions of the same pages outside [low, high) have codes of 0 as weights."""
    one = simd.splat_f32(np.float32(1))
    while dimension < value_size:
        tile = simd.tile_zero_i32(width)
        for page in range(low // PAGE_POSITIONS, (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS):
            values = page_address(simd, pages, page, store, bytes_per_page) + values_at + 4 * dimension
            line = weights + page // 2 * lines + HALF_LINE * (page % 2)
            for pair in range(PAIRS):
                tile = simd.tile_dot_i16(tile, simd.load_i32x16(values + 4 * value_size * pair), line + 4 * pair, LINE)
        simd.tile_store_rows(simd.tile_scaled(tile, one, numbers + WEIGHT_SCALE, LINE), states + STATE_BYTES + 4 * dimension, state_stride(simd, value_size))
        dimension += 16


@kernel_function
def value_tile_64_integers(
    simd, cache, width: Constant, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers
):  # fmt: skip
    """`value_tile_integers` of the 64 dimensions from `dimension` at once, for few rows: whole cache lines are read, and a weight is used four times."""
    one = simd.splat_f32(np.float32(1))
    tile0 = simd.tile_zero_i32(width)
    tile1 = simd.tile_zero_i32(width)
    tile2 = simd.tile_zero_i32(width)
    tile3 = simd.tile_zero_i32(width)
    end = (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS
    for page in range(low // PAGE_POSITIONS, end):
        values = page_address(simd, pages, page, store, bytes_per_page) + values_at + 4 * dimension
        next_values = page_address(simd, pages, min(page + 1, end - 1), store, bytes_per_page) + values_at + 4 * dimension
        line = weights + page // 2 * lines + HALF_LINE * (page % 2)
        for pair in range(PAIRS):
            place = values + 4 * value_size * pair
            simd.prefetch(next_values + 4 * value_size * pair, 4)
            tile0 = simd.tile_dot_i16(tile0, simd.load_i32x16(place), line + 4 * pair, LINE)
            tile1 = simd.tile_dot_i16(tile1, simd.load_i32x16(place + LINE), line + 4 * pair, LINE)
            tile2 = simd.tile_dot_i16(tile2, simd.load_i32x16(place + 2 * LINE), line + 4 * pair, LINE)
            tile3 = simd.tile_dot_i16(tile3, simd.load_i32x16(place + 3 * LINE), line + 4 * pair, LINE)
    target = states + STATE_BYTES + 4 * dimension
    stride = state_stride(simd, value_size)
    simd.tile_store_rows(simd.tile_scaled(tile0, one, numbers + WEIGHT_SCALE, LINE), target, stride)
    simd.tile_store_rows(simd.tile_scaled(tile1, one, numbers + WEIGHT_SCALE, LINE), target + LINE, stride)
    simd.tile_store_rows(simd.tile_scaled(tile2, one, numbers + WEIGHT_SCALE, LINE), target + 2 * LINE, stride)
    simd.tile_store_rows(simd.tile_scaled(tile3, one, numbers + WEIGHT_SCALE, LINE), target + 3 * LINE, stride)

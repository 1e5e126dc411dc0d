"""Attention over paged keys and values: who computes what. The steps within a span are in `attention_spans`, the pages in `pages`.

Arithmetic (docs/arithmetic.md): queries are scaled once; a score is one fma chain over the head dimension; positions are grouped in spans of 256
absolute positions; a span gives (maximum, sum of weights, weighted values), each in ascending positions, and spans fold in ascending order. The cache
type has the steps within a span (`caches`): with `q16_0` these sum products of integers, in any order. How query rows and heads form units that share
their loads, and which worker takes which unit or which spans of one, changes nothing.

A *unit* is a query block (up to 8 rows of a sequence) with some heads of one kv head: up to 32 rows of one head each. The units' positions, one after
the other, are cut into equal shares. A unit of one query row may be cut between spans, so that a long context with one kv head keeps all workers
busy: the worker that has its first spans folds them as always; the others keep each span's state, and who finishes last folds these in order.
"""

from __future__ import annotations

from kernels_numba.executor.step import QUERY_BLOCK_COUNT, QUERY_BLOCKS
from kernels_numba.ops.attention_spans import (
    LINE,
    SPAN,
    SPAN_PAGES,
    STATE_BYTES,
    finish_row,
    first_visible,
    fold_span,
    state_stride,
)
from kernels_numba.ops.cache_types import PAGE_POSITIONS
from kernels_numba.ops.common import float_word, word
from kernels_numba.ops.pages import page_table
from kernels_numba.simd.function import kernel_function

ATTENTION_OPERANDS = (
    "queries", "queries_stride", "store", "page_bytes", "group", "heads", "kv_heads", "key_size", "value_size", "scale", "window", "softcap",
    "scratch", "scratch_bytes_per_worker", "output", "output_stride",
)  # fmt: skip

UNIT_ROWS = 32
"""Rows of a unit, a query row of each head counted as one."""
SHARED_ROWS = 16
"""Rows of a unit whose spans may be shared between workers."""
ROW_OVERHEAD = 4
"""What a unit's loads cost, in rows."""

# Scratch of a worker: a line whose first word counts those who have finished a shared unit (0 between steps), the scaled queries, the scores of a span,
# the states of a span, the running states, and the states of the spans that it keeps for a shared unit.
QUERIES_AT = LINE


def attention_scratch_bytes(key_size: int, value_size: int, positions: int) -> int:
    """Scratch of one worker for contexts of up to `positions`, in bytes (a multiple of 64). Its first 64 bytes must be 0 before the first step."""
    state = STATE_BYTES + 4 * value_size
    spans = -(-positions // SPAN)
    return QUERIES_AT + UNIT_ROWS * (4 * key_size + LINE + SPAN_PAGES * LINE + 2 * state) + spans * SHARED_ROWS * state


@kernel_function
def padded_rows(simd, rows):
    """Rows that scratch memory has room for: whole tiles."""
    return (rows + 7) // 8 * 8


@kernel_function
def scores_at(simd, scratch, key_size):
    return scratch + QUERIES_AT + UNIT_ROWS * (4 * key_size + LINE)


@kernel_function
def span_states_at(simd, scratch, key_size):
    return scores_at(simd, scratch, key_size) + UNIT_ROWS * SPAN_PAGES * LINE


@kernel_function
def states_at(simd, scratch, key_size, value_size):
    return span_states_at(simd, scratch, key_size) + UNIT_ROWS * state_stride(simd, value_size)


@kernel_function
def kept_states_at(simd, scratch, key_size, value_size):
    return states_at(simd, scratch, key_size, value_size) + UNIT_ROWS * state_stride(simd, value_size)


@kernel_function
def tile_rows(simd, rows):
    """Rows of the next tile where `rows` are left: those whose sums the registers hold, or fewer."""
    if rows == 1:
        return 1
    if rows <= 4 or simd.tile_tokens < 16:
        return 4
    if rows <= 8:
        return 8
    if rows <= 16:
        return 16
    return 24


@kernel_function
def score_rows(simd, cache, tile, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores):
    """`score_tile` of a width known at run time."""
    if tile == 1:
        cache.score_row(simd, cache, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores)
    elif tile == 4:
        cache.score_tile(simd, cache, 4, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores)
    elif simd.tile_tokens >= 16:
        if tile == 8:
            cache.score_tile(simd, cache, 8, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores)
        elif tile == 16:
            cache.score_tile(simd, cache, 16, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores)
        else:
            cache.score_tile(simd, cache, 24, queries, lines, pages, first_page, end_page, store, bytes_per_page, key_size, scores)


@kernel_function
def sum_values(simd, cache, tile, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, states, numbers):
    """`value_tile` of a width known at run time."""
    dimension = 0
    if tile == 1:
        while dimension + 64 <= value_size:
            cache.value_tile_64(
                simd, cache, 1, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers
            )  # fmt: skip
            dimension += 64
        cache.value_tile(simd, cache, 1, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers)
    elif tile == 4:
        if simd.tile_tokens >= 16:
            while dimension + 64 <= value_size:
                cache.value_tile_64(
                    simd, cache, 4, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers
                )  # fmt: skip
                dimension += 64
        cache.value_tile(simd, cache, 4, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, dimension, states, numbers)
    elif simd.tile_tokens >= 16:
        if tile == 8:
            cache.value_tile(simd, cache, 8, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, 0, states, numbers)
        elif tile == 16:
            cache.value_tile(simd, cache, 16, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, 0, states, numbers)
        else:
            cache.value_tile(simd, cache, 24, weights, lines, low, high, pages, store, bytes_per_page, values_at, value_size, 0, states, numbers)


@kernel_function
def attend_span(
    simd, cache, origin, rows, heads, slot, pages, store, bytes_per_page, key_size, value_size, window, cap, scratch, lines, states
):  # fmt: skip
    """The states of a unit's rows over the span that starts at `origin`. Of rows that see none of it, the state is undefined."""
    queries = scratch + QUERIES_AT
    scores = scores_at(simd, scratch, key_size)
    numbers = queries + key_size // 16 * lines
    values_at = cache.head_bytes(simd, cache, key_size)
    stride = state_stride(simd, value_size)
    span_pages = pages + 4 * (origin // PAGE_POSITIONS)
    total = rows * heads
    row = 0
    while row < total:
        tile = tile_rows(simd, total - row)
        low = max(first_visible(simd, slot + row // heads, window) - origin, 0)
        high = min(slot + min(row + tile - 1, total - 1) // heads + 1 - origin, SPAN)
        if low < high:
            first_page = low // PAGE_POSITIONS
            score_rows(
                simd, cache, tile, queries + LINE * row, lines, span_pages, first_page, (high + PAGE_POSITIONS - 1) // PAGE_POSITIONS, store,
                bytes_per_page, key_size, scores + first_page * lines + LINE * row,
            )  # fmt: skip
        row += tile
    cache.weigh(
        simd, scores, lines, rows, heads, origin, slot, window, cap, states, numbers, span_pages, store, bytes_per_page, values_at, value_size
    )  # fmt: skip
    row = 0
    while row < total:
        tile = tile_rows(simd, total - row)
        low = max(first_visible(simd, slot + row // heads, window) - origin, 0)
        high = min(slot + min(row + tile - 1, total - 1) // heads + 1 - origin, SPAN)
        if low < high:
            sum_values(
                simd, cache, tile, scores + LINE * row, lines, low, high, span_pages, store, bytes_per_page, values_at, value_size,
                states + row * stride, numbers + LINE * row,
            )  # fmt: skip
        row += tile


@kernel_function
def attend(
    simd, cache, queries, queries_stride, rows, heads, slot, pages, store, bytes_per_page, key_size, value_size, scale, window, cap, first_span,
    end_span, keep, scratch,
):  # fmt: skip
    """A unit's spans [first_span, end_span): folded into the running states, or with `keep` each into states of its own among the kept ones."""
    lines = LINE * padded_rows(simd, rows * heads)
    stride = state_stride(simd, value_size)
    span_states = span_states_at(simd, scratch, key_size)
    states = states_at(simd, scratch, key_size, value_size)
    kept = kept_states_at(simd, scratch, key_size, value_size)
    cache.prepare_queries(simd, queries, queries_stride, rows, heads, scale, key_size, lines, scratch + QUERIES_AT)
    for span in range(first_span, end_span):
        target = span_states
        if keep:
            target = kept + (span - first_span) * SHARED_ROWS * stride
        elif span == first_span:
            target = states
        attend_span(
            simd, cache, span * SPAN, rows, heads, slot, pages, store, bytes_per_page, key_size, value_size, window, cap, scratch, lines, target
        )  # fmt: skip
        if not keep and span > first_span:
            for row in range(rows):
                start = first_visible(simd, slot + row, window)
                if start < (span + 1) * SPAN and slot + row >= span * SPAN:
                    for place in range(row * heads, (row + 1) * heads):
                        fold_span(simd, states + place * stride, target + place * stride, value_size, start // SPAN == span)


@kernel_function
def fold_kept(simd, states, kept, spans, heads, value_size):
    """Folds the kept states of `spans` spans into the running states of a unit of one query row."""
    stride = state_stride(simd, value_size)
    for span in range(spans):
        for place in range(heads):
            fold_span(simd, states + place * stride, kept + (span * SHARED_ROWS + place) * stride, value_size, False)


@kernel_function
def finish(simd, states, rows, heads, value_size, output, output_stride):
    for row in range(rows):
        for head in range(heads):
            state = states + (row * heads + head) * state_stride(simd, value_size)
            finish_row(simd, state, value_size, output + row * output_stride + 4 * head * value_size)


@kernel_function
def division(simd, rows, slot, window, per_kv_head, others, workers):
    """(parts, heads): how the heads of a kv head are divided for a block. Fewer parts share more loads; there are more of them where a unit would be too
    large, or where workers would have nothing to do because there are few `others` (kv heads times blocks) and no spans to share."""
    most = UNIT_ROWS
    if rows == 1:
        most = SHARED_ROWS
    parts = (per_kv_head * rows + most - 1) // most
    if rows > 1 or slot // SPAN == first_visible(simd, slot, window) // SPAN:
        while parts < per_kv_head and others * parts < workers:
            parts *= 2
    heads = (per_kv_head + parts - 1) // parts
    return (per_kv_head + heads - 1) // heads, heads


@kernel_function
def spans_before(simd, border, unit, weight, start, end, divisible):
    """How many of a unit's spans lie before the border of two workers' shares: none or all of one that is not divisible. `unit` is where the unit begins
    among all, each of its positions [start, end) counts `weight`."""
    spans = (end - 1) // SPAN - start // SPAN + 1
    inside = border - unit
    if inside <= 0:
        return 0
    if inside >= (end - start) * weight:
        return spans
    if divisible:
        return min(max((start + inside // weight + SPAN // 2) // SPAN - start // SPAN, 0), spans)
    if 2 * inside < (end - start) * weight:
        return 0
    return spans


@kernel_function
def finish_shared(
    simd, total, unit, weight, start, end, workers, heads, scratch, scratch_bytes, key_size, value_size, output, output_stride
):  # fmt: skip
    """Counts this worker as one that has done its spans of a shared unit; the last one folds and writes the output."""
    spans = (end - 1) // SPAN - start // SPAN + 1
    owner = 0
    sharing = 0
    for worker in range(workers):
        before = spans_before(simd, total * worker // workers, unit, weight, start, end, True)
        after = spans_before(simd, total * (worker + 1) // workers, unit, weight, start, end, True)
        if before < after:
            sharing += 1
            if before == 0:
                owner = worker
    home = scratch + owner * scratch_bytes
    if simd.atomic_add(home, 1) == sharing - 1:
        simd.atomic_store(home, 0)
        states = states_at(simd, home, key_size, value_size)
        done = spans_before(simd, total * (owner + 1) // workers, unit, weight, start, end, True)
        worker = owner + 1
        while done < spans:
            after = spans_before(simd, total * (worker + 1) // workers, unit, weight, start, end, True)
            kept = kept_states_at(simd, scratch + worker * scratch_bytes, key_size, value_size)
            fold_kept(simd, states, kept, after - done, heads, value_size)
            done = after
            worker += 1
        finish(simd, states, 1, heads, value_size, output, output_stride)


@kernel_function
def attention(simd, cache, operands, step, worker, workers):
    """softmax(q k^T * scale) v over the positions that each row sees, for all rows and heads of the step.

    A row at slot s sees positions 0 .. s, with `window` > 0 only s - window + 1 .. s; with `softcap` > 0 a score becomes
    softcap * tanh(score / softcap).
    The step's keys and values must be in the cache. Key and value sizes are multiples of 16.
    """
    queries = word(simd, operands, 0)
    queries_stride = word(simd, operands, 1)
    bytes_per_page = word(simd, operands, 3)
    group = word(simd, operands, 4)
    kv_heads = word(simd, operands, 6)
    per_kv_head = word(simd, operands, 5) // kv_heads
    key_size = word(simd, operands, 7)
    value_size = word(simd, operands, 8)
    scale = simd.splat_f32(float_word(simd, operands, 9))
    window = word(simd, operands, 10)
    cap = float_word(simd, operands, 11)
    scratch_bytes = word(simd, operands, 13)
    scratch = word(simd, operands, 12)
    output_stride = word(simd, operands, 15)
    blocks = simd.load_i64(step + QUERY_BLOCK_COUNT)
    table = simd.load_i64(step + QUERY_BLOCKS)
    head_bytes = cache.head_bytes(simd, cache, key_size) + cache.head_bytes(simd, cache, value_size)
    total = 0
    for block in range(table, table + 16 * blocks, 16):
        rows = simd.load_i32(block + 4)
        slot = simd.load_i32(block + 12)
        parts, heads = division(simd, rows, slot, window, per_kv_head, kv_heads * blocks, workers)
        total += parts * (slot + rows - first_visible(simd, slot, window)) * (rows * heads + ROW_OVERHEAD)
    total *= kv_heads
    share = total * worker // workers
    share_end = total * (worker + 1) // workers
    unit = 0
    for kv_head in range(kv_heads):
        store = word(simd, operands, 2) + kv_head * head_bytes
        for block in range(table, table + 16 * blocks, 16):
            row = simd.load_i32(block)
            rows = simd.load_i32(block + 4)
            slot = simd.load_i32(block + 12)
            start = first_visible(simd, slot, window)
            parts, heads = division(simd, rows, slot, window, per_kv_head, kv_heads * blocks, workers)
            weight = rows * heads + ROW_OVERHEAD
            for part in range(parts):
                first = spans_before(simd, share, unit, weight, start, slot + rows, rows == 1)
                end = spans_before(simd, share_end, unit, weight, start, slot + rows, rows == 1)
                if first < end:
                    pages = page_table(simd, step, simd.load_i32(block + 8), group)
                    head = kv_head * per_kv_head + part * heads
                    some = min(heads, per_kv_head - part * heads)
                    output = word(simd, operands, 14) + row * output_stride + 4 * head * value_size
                    own = scratch + worker * scratch_bytes
                    attend(
                        simd, cache, queries + row * queries_stride + 4 * head * key_size, queries_stride, rows, some, slot, pages, store, bytes_per_page,
                        key_size, value_size, scale, window, cap, start // SPAN + first, start // SPAN + end, first > 0, own,
                    )  # fmt: skip
                    if end - first == (slot + rows - 1) // SPAN - start // SPAN + 1:
                        finish(simd, states_at(simd, own, key_size, value_size), rows, some, value_size, output, output_stride)
                    else:
                        finish_shared(
                            simd, total, unit, weight, start, slot + rows, workers, some, scratch, scratch_bytes, key_size, value_size, output,
                            output_stride,
                        )  # fmt: skip
                unit += (slot + rows - start) * weight

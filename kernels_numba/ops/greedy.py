"""The kernel that chooses tokens greedily, and in a burst prepares the next pass: the last entry of a tape, behind `elementwise.check_logits` and
`sampling.sample_tokens`."""

from __future__ import annotations

from typing import Any

from kernels_numba.executor.step import (
    END_ID_COUNT,
    END_IDS,
    INTERRUPT,
    LARGEST,
    OUTPUTS,
    PASSES_DONE,
    PASSES_LEFT,
    QUERY_BLOCK_BYTES,
    QUERY_BLOCK_SLOT,
    QUERY_BLOCKS,
    ROPE_POSITIONS,
    SLOTS,
    TOKEN_IDS,
)  # fmt: skip
from kernels_numba.ops.common import word
from kernels_numba.ops.draw_weights import draw_of
from kernels_numba.ops.elementwise import MAXIMA_COLUMNS, largest_of_maxima
from kernels_numba.simd.function import kernel_function

CHOOSE_TOKENS_OPERANDS = ("input", "input_stride", "width", "block_maxima", "block_maxima_stride")


@kernel_function
def first_largest(simd: Any, row: int, width: int, maxima: int) -> int:
    """The lowest column of the largest of `width` finite logits, of which `maxima` are those of `check_logits`: one block of them is read, by the lanes
    that hold the largest."""
    blocks = (width + MAXIMA_COLUMNS - 1) // MAXIMA_COLUMNS
    largest = largest_of_maxima(simd, maxima, blocks)
    found = 0
    while found < blocks - 1 and simd.maximum_lanes(simd.load_f32x16(maxima + 64 * found)) < largest:
        found += 1
    best = min(width, (found + 1) * MAXIMA_COLUMNS) - 1
    for lane in range(16):
        if simd.load_f32(maxima + 64 * found + 4 * lane) == largest:
            column = found * MAXIMA_COLUMNS + lane
            while column < best and simd.load_f32(row + 4 * column) != largest:
                column += 16
            best = min(best, column)
    return best


@kernel_function
def is_end(simd: Any, step: int, token: int) -> int:
    """1 if a burst ends with this token: always with one that is undecided."""
    if token < 0:
        return 1
    end_ids = simd.load_i64(step + END_IDS)
    for index in range(simd.load_i64(step + END_ID_COUNT)):
        if simd.load_i32(end_ids + 4 * index) == token:
            return 1
    return 0


@kernel_function
def advance_row(simd: Any, step: int, row: int, token: int) -> None:
    """The row is `token` at the next position of its sequence."""
    simd.store_i32(simd.load_i64(step + TOKEN_IDS) + 4 * row, token)
    slot = simd.load_i64(step + SLOTS) + 4 * row
    position = simd.load_i64(step + ROPE_POSITIONS) + 4 * row
    block_slot = simd.load_i64(step + QUERY_BLOCKS) + QUERY_BLOCK_BYTES * row + QUERY_BLOCK_SLOT
    simd.store_i32(slot, simd.load_i32(slot) + 1)
    simd.store_i32(position, simd.load_i32(position) + 1)
    simd.store_i32(block_slot, simd.load_i32(block_slot) + 1)


@kernel_function
def chosen_tokens(simd: Any, step: int) -> int:
    """Where the ids that this pass chooses go: int32[outputs]."""
    return simd.load_i64(step + LARGEST) + 4 * simd.load_i64(step + OUTPUTS) * simd.load_i64(step + PASSES_DONE)


@kernel_function
def end_pass(simd: Any, step: int) -> None:
    """Counts the pass, whose tokens are chosen. In a burst, unless it ends here, every row becomes its token at the next position."""
    outputs = simd.load_i64(step + OUTPUTS)
    done = simd.load_i64(step + PASSES_DONE)
    left = simd.load_i64(step + PASSES_LEFT) - 1
    chosen = chosen_tokens(simd, step)
    for row in range(outputs):
        if left > 0 and is_end(simd, step, simd.load_i32(chosen + 4 * row)) != 0:
            left = 0
    if left > 0 and simd.atomic_load(simd.load_i64(step + INTERRUPT)) != 0:
        left = 0
    if left > 0:
        for row in range(outputs):
            advance_row(simd, step, row, simd.load_i32(chosen + 4 * row))
    simd.store_i64(step + PASSES_DONE, done + 1)
    simd.store_i64(step + PASSES_LEFT, left)


@kernel_function
def choose_tokens(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Notes the lowest id of each output row's largest logit in `largest`, unless `sampling` has drawn a token there, and counts the pass. In a burst,
    unless it ends here, every row becomes that token at the next position. All by worker 0, whom the others await: a row takes it about a microsecond."""
    if worker != 0:
        return
    logits = word(simd, operands, 0)
    stride = word(simd, operands, 1)
    width = word(simd, operands, 2)
    maxima = word(simd, operands, 3)
    maxima_stride = word(simd, operands, 4)
    chosen = chosen_tokens(simd, step)
    for row in range(simd.load_i64(step + OUTPUTS)):
        if draw_of(simd, step, row) == 0:
            simd.store_i32(chosen + 4 * row, first_largest(simd, logits + row * stride, width, maxima + row * maxima_stride))
    end_pass(simd, step)

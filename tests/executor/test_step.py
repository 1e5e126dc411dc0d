"""The step record: its words and arrays against a row-by-row twin, and the refusal of steps that point outside of themselves."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kernels_numba.executor.step import QUERY_BLOCK_ROWS, STEP_WORDS, StepRecord, row_blocks


def read(record: StepRecord, word: str) -> int:
    """A word, read through the address as a kernel does."""
    return ctypes.c_int64.from_address(record.address + 8 * STEP_WORDS.index(word)).value


def read_array(record: StepRecord, word: str, count: int) -> list[int]:
    return list((ctypes.c_int32 * count).from_address(read(record, word)))


def blocks_row_by_row(sequences: list[int], slots: list[int]) -> list[list[int]]:
    blocks: list[list[int]] = []
    for row, (sequence, slot) in enumerate(zip(sequences, slots)):
        if blocks:
            _first, rows, last_sequence, first_slot = blocks[-1]
            if sequence == last_sequence and slot == first_slot + rows and rows < QUERY_BLOCK_ROWS:
                blocks[-1][1] += 1
                continue
        blocks.append([row, 1, sequence, slot])
    return blocks


def fill(record: StepRecord, sequences: list[int], slots: list[int], output_rows: list[int], pages: list[list[np.ndarray]]) -> None:
    rows = np.arange(len(slots), dtype=np.int32)
    record.fill(rows + 100, rows + 7, np.array(slots, np.int32), np.array(sequences, np.int32), np.array(output_rows, np.int32), pages)


@pytest.mark.parametrize("seed", range(30))
def test_query_blocks_equal_those_cut_row_by_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    sequences: list[int] = []
    slots: list[int] = []
    count = int(random.integers(1, 6))
    for sequence in range(count):
        slot = int(random.integers(0, 50))
        for _ in range(int(random.integers(1, 30))):
            sequences.append(sequence)
            slots.append(slot)
            slot += 1 if random.random() < 0.95 else 3
    record = StepRecord(256, 8, 1)
    pages = [[np.arange(4, dtype=np.int32)] for _ in range(count)]
    fill(record, sequences, slots, [0], pages)
    expected = blocks_row_by_row(sequences, slots)
    assert read(record, "query_block_count") == len(expected)
    assert read_array(record, "query_blocks", 4 * len(expected)) == [value for block in expected for value in block]


def test_words_and_arrays_are_where_kernels_look() -> None:
    record = StepRecord(16, 4, 2)
    assert record.address % 64 == 0
    pages = [[np.array([3, 1], np.int32), np.array([9], np.int32)], [np.array([4], np.int32), np.array([5], np.int32)]]
    fill(record, [0, 0, 1], [4, 5, 0], [1, 2], pages)
    assert read(record, "rows") == record.rows == 3
    assert read_array(record, "token_ids", 3) == [100, 101, 102]
    assert read_array(record, "rope_positions", 3) == [7, 8, 9]
    assert read_array(record, "slots", 3) == [4, 5, 0]
    assert read_array(record, "row_sequences", 3) == [0, 0, 1]
    assert read(record, "outputs") == 2
    assert read_array(record, "output_rows", 2) == [1, 2]
    assert read(record, "cache_groups") == 2
    tables = list((ctypes.c_int64 * 4).from_address(read(record, "page_tables")))
    assert [ctypes.c_int32.from_address(address).value for address in tables] == [3, 9, 4, 5]
    assert read(record, "status") == 0 and read(record, "cancel") == 0


def test_filling_again_takes_back_status_and_cancel() -> None:
    record = StepRecord(4, 1, 0)
    fill(record, [0], [0], [], [[]])
    record.cancel()
    record.words[STEP_WORDS.index("status")] = 1
    assert record.cancelled and record.status == 1
    fill(record, [0], [1], [], [[]])
    assert not record.cancelled and record.status == 0
    assert read(record, "outputs") == 0


@pytest.mark.parametrize(
    "sequences, slots, outputs, pages, message",
    [
        ([], [], [], [[]], "0 rows"),
        ([0] * 5, list(range(5)), [], [[]], "5 rows; this record holds 1 to 4"),
        ([1], [0], [], [[]], "row sequences must be from 0 to 0"),
        ([-1], [0], [], [[]], "row sequences must be from 0 to 0"),
        ([0, 0], [0, 1], [2], [[]], "output rows must be from 0 to 1"),
        ([0, 0], [0, 1], [0, 1, 1], [[]], "3 output rows; this record holds 2"),
        ([0], [0], [], [[], []], "2 sequences; this record holds 1"),
        ([0], [0], [], [[np.zeros(1, np.int32)]], "has 1 page tables, the model has 0"),
    ],
)
def test_a_step_that_points_outside_is_refused(sequences, slots, outputs, pages, message) -> None:
    record = StepRecord(4, 1, 0, maximum_outputs=2)
    with pytest.raises(ValueError, match=message):
        fill(record, sequences, slots, outputs, pages)


def test_a_burst_is_what_kernels_find() -> None:
    record = StepRecord(4, 3, 0, maximum_passes=5)
    fill(record, [0, 1, 2], [4, 9, 0], [0, 1, 2], [[], [], []])
    assert read(record, "passes_left") == 1 and record.passes_done == 0
    end_ids, interrupt = np.array([7, 9], np.int32), np.array([41], np.int64)
    record.make_burst(5, end_ids, interrupt)
    assert read(record, "passes_left") == 5
    assert read_array(record, "end_ids", read(record, "end_id_count")) == [7, 9]
    assert ctypes.c_int64.from_address(read(record, "interrupt")).value == 41
    (ctypes.c_int32 * 6).from_address(read(record, "largest"))[:] = [10, 11, 12, 20, 21, 22]
    record.words[STEP_WORDS.index("passes_done")] = 2
    assert record.largest.tolist() == [[10, 11, 12], [20, 21, 22]]
    assert read(record, "draws") == read(record, "uniforms") == 0
    draws, uniforms = np.array([[0.5] * 6] * 3), np.arange(15.0).reshape(5, 3)
    record.make_burst(5, end_ids, interrupt, draws, uniforms)
    assert (ctypes.c_double * 15).from_address(read(record, "uniforms"))[:] == list(range(15))
    assert (ctypes.c_double * 18).from_address(read(record, "draws"))[:] == [0.5] * 18
    fill(record, [0], [1], [], [[]])
    assert read(record, "draws") == 0
    assert read(record, "passes_left") == 1 and record.largest.shape == (0, 0)


@pytest.mark.parametrize(
    "sequences, slots, outputs, passes, message",
    [
        ([0, 1], [0, 0], [0, 1], 6, "6 passes; this record is for 1 to 5"),
        ([0, 1], [0, 0], [0, 1], 0, "0 passes"),
        ([0, 1], [0, 0], [1], 2, "an output"),
        ([0, 0], [0, 1], [0, 1], 2, "a sequence of its own"),
        ([1, 0], [0, 0], [0, 1], 2, "a sequence of its own"),
    ],
)
def test_a_burst_that_kernels_would_get_wrong_is_refused(sequences, slots, outputs, passes, message) -> None:
    record = StepRecord(4, 2, 0, maximum_passes=5)
    fill(record, sequences, slots, outputs, [[], []])
    with pytest.raises(ValueError, match=message):
        record.make_burst(passes, np.zeros(0, np.int32), np.zeros(1, np.int64))


@pytest.mark.parametrize("table", [np.zeros(4, np.int64), np.zeros(8, np.int32)[::2]])
def test_a_page_table_that_kernels_would_misread_is_refused(table) -> None:
    with pytest.raises(ValueError, match="must be contiguous int32"):
        fill(StepRecord(4, 1, 1), [0], [0], [], [[table]])


@pytest.mark.parametrize(("rows", "workers", "blocks"), [
    (1, 2, 0), (127, 2, 0),  # few rows
    (512, 1, 16), (512, 2, 16), (500, 2, 16), (512, 4, 16),
    (144, 1, 5), (144, 2, 0), (304, 2, 10),  # 9 tiles for two are 5 and 4, too uneven; 19 are 10 and 9
    (128, 16, 0), (512, 3, 18), (512, 6, 0),
])  # fmt: skip
def test_many_rows_are_shared_if_they_can_be_shared_evenly(rows: int, workers: int, blocks: int) -> None:
    assert row_blocks(rows, workers) == blocks

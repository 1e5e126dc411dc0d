"""The step's words: what every kernel may read about the step. Filled by the backend before a step (`StepRecord`), read by kernels; free of Numba.

The record is int64 words at a 64-byte aligned address; `STEP_WORDS` names them in order and `Word` gives their indices to kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernels_numba.executor.aligned import address_of, aligned_zeros

STEP_WORDS = (
    "rows",  # tokens of the step
    "token_ids",  # address of int32[rows]
    "rope_positions",  # address of int32[rows]
    "slots",  # address of int32[rows]: position in the sequence's cache
    "row_sequences",  # address of int32[rows]: index of the sequence in this step
    "outputs",  # rows whose logits are asked for
    "output_rows",  # address of int32[outputs]: their indices among the rows
    "query_blocks",  # address of int32[query_block_count, 4]: first row, rows (1 to 8, consecutive slots of one sequence), sequence, first slot
    "query_block_count",
    "page_tables",  # address of int64[sequences, cache_groups]: addresses of int32 page ids
    "cache_groups",
    "status",  # 0, or the first fault that a kernel found: STATUS_...
    "cancel",  # not 0: stop between operations
    "passes_left",  # passes over the tape that are still to be run, the one that runs included (0 counts as 1): a burst if more than one
    "passes_done",
    "largest",  # address of int32[passes, outputs]: the lowest id of each row's largest logit, pass by pass
    "end_ids",  # address of int32[end_id_count]: a burst ends after the pass in which a row chose one of them
    "end_id_count",
    "interrupt",  # address of an int64, or 0: a burst ends after the pass during which it became other than 0
    "draws",  # address of a record per output row that says how its token is drawn (`ops.sampling`); 0: all take their largest logit
    "uniforms",  # address of float64[passes, outputs] in [0, 1): the points of the draws
    "row_blocks",  # 0: workers share columns; else they share rows, cut into so many blocks (`row_blocks`)
)

(
    ROWS, TOKEN_IDS, ROPE_POSITIONS, SLOTS, ROW_SEQUENCES, OUTPUTS, OUTPUT_ROWS, QUERY_BLOCKS, QUERY_BLOCK_COUNT, PAGE_TABLES, CACHE_GROUPS, STATUS, CANCEL,
    PASSES_LEFT, PASSES_DONE, LARGEST, END_IDS, END_ID_COUNT, INTERRUPT, DRAWS, UNIFORMS, ROW_BLOCKS,
) = (8 * index for index in range(len(STEP_WORDS)))  # fmt: skip
"""Byte offsets of the words."""

STATUS_NON_FINITE = 1
QUERY_BLOCK_ROWS = 8
QUERY_BLOCK_BYTES = 16
QUERY_BLOCK_SLOT = 12
"""Offset of a block's first slot."""
ROW_TILE = 16
"""Rows of which a worker takes all or none, where workers share rows: a tile of quantized activations of many tokens."""
MANY_ROWS = 128
"""Fewer rows do not pay for each worker's reading all weights."""
BLOCK_TILES = 2
"""Row tiles of a block, about: what a block's rows take between two linear operations stays in the second-level cache."""
MOST_IDLE = 0.06
"""Of the time of all workers, what may be lost to shares of whole row tiles."""


def row_blocks(rows: int, workers: int) -> int:
    """The step's word `row_blocks` for a run by so many workers: 0 if there are too few rows, or if their tiles cannot be shared evenly."""
    if rows < MANY_ROWS:
        return 0
    tiles = -(-rows // ROW_TILE)
    most = -(-tiles // workers)
    if tiles < (1 - MOST_IDLE) * most * workers:
        return 0
    return -(-most // BLOCK_TILES) * workers


class StepRecord:
    """The memory of a step's words and arrays, made once for the largest step and filled for each. Not thread-safe, but for `cancel`."""

    def __init__(
        self, maximum_rows: int, maximum_sequences: int, cache_groups: int, maximum_outputs: int | None = None, maximum_passes: int = 1
    ) -> None:
        outputs = maximum_rows if maximum_outputs is None else maximum_outputs
        self.maximum_rows = maximum_rows
        self.maximum_passes = maximum_passes
        self.words: NDArray[np.int64] = aligned_zeros(len(STEP_WORDS), np.int64)
        self.token_ids: NDArray[np.int32] = aligned_zeros(maximum_rows, np.int32)
        self.rope_positions: NDArray[np.int32] = aligned_zeros(maximum_rows, np.int32)
        self.slots: NDArray[np.int32] = aligned_zeros(maximum_rows, np.int32)
        self.row_sequences: NDArray[np.int32] = aligned_zeros(maximum_rows, np.int32)
        self.output_rows: NDArray[np.int32] = aligned_zeros(max(1, outputs), np.int32)[:outputs]
        self.query_blocks: NDArray[np.int32] = aligned_zeros((maximum_rows, 4), np.int32)
        self.page_tables: NDArray[np.int64] = aligned_zeros((maximum_sequences, max(1, cache_groups)), np.int64)[:, :cache_groups]
        self._largest: NDArray[np.int32] = aligned_zeros(max(1, maximum_passes * outputs), np.int32)
        self._kept: tuple[object, ...] = ()  # alive while the record holds their addresses
        for offset, array in (
            (TOKEN_IDS, self.token_ids), (ROPE_POSITIONS, self.rope_positions), (SLOTS, self.slots), (ROW_SEQUENCES, self.row_sequences),
            (OUTPUT_ROWS, self.output_rows), (QUERY_BLOCKS, self.query_blocks), (PAGE_TABLES, self.page_tables), (LARGEST, self._largest),
        ):  # fmt: skip
            self.words[offset // 8] = address_of(array)
        self.words[CACHE_GROUPS // 8] = cache_groups
        self.address = address_of(self.words)
        self._view = self.words.data  # the same words, for Python: NumPy takes ten times as long for one

    def fill(
        self,
        token_ids: NDArray[np.int32],
        rope_positions: NDArray[np.int32],
        slots: NDArray[np.int32],
        row_sequences: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        page_tables: Sequence[Sequence[NDArray[np.int32]]],
    ) -> None:
        """Writes a step: per row its token, position for rope, slot in its sequence's cache and index of its sequence (int32[rows] each), the rows
        whose logits are asked for (ascending), and per sequence and cache group the page ids (contiguous int32[pages], kept alive until the next fill).

        Clears status and cancel. Raises ValueError for a step that is empty, larger than the record, or that points outside of itself: kernels check
        nothing.
        """
        rows = len(token_ids)
        if not 1 <= rows <= self.maximum_rows:
            raise ValueError(f"a step of {rows} rows; this record holds 1 to {self.maximum_rows}")
        for name, array in (("rope positions", rope_positions), ("slots", slots), ("row sequences", row_sequences)):
            if len(array) != rows:
                raise ValueError(f"{len(array)} {name} for {rows} rows")
        outputs = len(output_rows)
        if outputs > len(self.output_rows):
            raise ValueError(f"{outputs} output rows; this record holds {len(self.output_rows)}")
        _check_range("row sequences", row_sequences, len(page_tables))
        _check_range("output rows", output_rows, rows)
        self.token_ids[:rows] = token_ids
        self.rope_positions[:rows] = rope_positions
        self.slots[:rows] = slots
        self.row_sequences[:rows] = row_sequences
        self.output_rows[:outputs] = output_rows
        self._fill_page_tables(page_tables)
        words = self._view
        words[ROWS // 8] = rows
        words[OUTPUTS // 8] = outputs
        words[QUERY_BLOCK_COUNT // 8] = self._fill_query_blocks(rows)
        words[STATUS // 8] = 0
        words[CANCEL // 8] = 0
        words[PASSES_LEFT // 8] = 1
        words[PASSES_DONE // 8] = 0
        words[DRAWS // 8] = 0
        self._kept = (page_tables,)

    def make_burst(
        self,
        passes: int,
        end_ids: NDArray[np.int32],
        interrupt: NDArray[np.int64],
        draws: NDArray[np.float64] | None = None,
        uniforms: NDArray[np.float64] | None = None,
    ) -> None:
        """Makes the step that was just filled a burst of up to `passes` passes: after each, every row goes on with the token of its largest logit, at the
        next position (`ops.greedy`). It ends early as the words of the record say; `interrupt` is int64[1], and anybody may write it at any time.

        With `draws`, a record of `ops.sampling` for each row, and `uniforms`, float64[passes, rows], tokens are drawn instead.

        Raises ValueError unless every row has a sequence of its own and is an output, or for more passes than the record was made for. The page tables must
        lead to pages for the positions of all passes.
        """
        words, rows = self._view, self.rows
        if not 1 <= passes <= self.maximum_passes:
            raise ValueError(f"a burst of {passes} passes; this record is for 1 to {self.maximum_passes}")
        if words[OUTPUTS // 8] != rows or (rows > 1 and not np.array_equal(self.row_sequences[:rows], np.arange(rows))):
            raise ValueError("each row of a burst must have a sequence of its own, and be an output")
        words[PASSES_LEFT // 8] = passes
        words[END_IDS // 8] = address_of(end_ids)
        words[END_ID_COUNT // 8] = len(end_ids)
        words[INTERRUPT // 8] = address_of(interrupt)
        if draws is not None and uniforms is not None:
            words[DRAWS // 8] = address_of(draws)
            words[UNIFORMS // 8] = address_of(uniforms)
        self._kept = (*self._kept, end_ids, interrupt, draws, uniforms)

    @property
    def rows(self) -> int:
        return self._view[ROWS // 8]

    @property
    def status(self) -> int:
        """0, or the first fault that a kernel found since the step was filled: STATUS_..."""
        return self._view[STATUS // 8]

    @property
    def passes_done(self) -> int:
        """Passes that ran to their end since the step was filled."""
        return self._view[PASSES_DONE // 8]

    @property
    def largest(self) -> NDArray[np.int32]:
        """int32[passes that ran, outputs]: the lowest id of each row's largest logit, or the token that was drawn. A view: the next step overwrites it."""
        passes, outputs = self.passes_done, self._view[OUTPUTS // 8]
        return self._largest[: passes * outputs].reshape(passes, outputs)

    @property
    def cancelled(self) -> bool:
        return self._view[CANCEL // 8] != 0

    def cancel(self) -> None:
        """Stops the running step between two operations; from any thread. Filling the record for another step takes it back."""
        self.words[CANCEL // 8] = 1

    def _fill_page_tables(self, page_tables: Sequence[Sequence[NDArray[np.int32]]]) -> None:
        sequences, groups = self.page_tables.shape
        if len(page_tables) > sequences:
            raise ValueError(f"page tables of {len(page_tables)} sequences; this record holds {sequences}")
        for sequence, tables in enumerate(page_tables):
            if len(tables) != groups:
                raise ValueError(f"sequence {sequence} has {len(tables)} page tables, the model has {groups} cache groups")
            for group, table in enumerate(tables):
                if table.dtype != np.int32 or not table.flags.c_contiguous:
                    raise ValueError(f"the page table of sequence {sequence}, cache group {group} must be contiguous int32, not {table.dtype}")
                self.page_tables[sequence, group] = address_of(table)

    def _fill_query_blocks(self, rows: int) -> int:
        """Cuts the rows into runs of consecutive slots of one sequence, and the runs into blocks. Returns the number of blocks."""
        if rows == 1:  # a step of decoding, whose time counts
            self.query_blocks[0] = (0, 1, int(self.row_sequences[0]), int(self.slots[0]))
            return 1
        slots, sequences = self.slots[:rows], self.row_sequences[:rows]
        starts_run = np.ones(rows, bool)
        np.not_equal(sequences[1:], sequences[:-1], out=starts_run[1:])
        starts_run[1:] |= slots[1:] != slots[:-1] + 1
        indices = np.arange(rows)
        run_start = np.maximum.accumulate(np.where(starts_run, indices, 0))
        first_rows = np.flatnonzero((indices - run_start) % QUERY_BLOCK_ROWS == 0)
        count = len(first_rows)
        blocks = self.query_blocks[:count]
        blocks[:, 0] = first_rows
        blocks[:-1, 1] = first_rows[1:] - first_rows[:-1]
        blocks[-1, 1] = rows - first_rows[-1]
        blocks[:, 2] = sequences[first_rows]
        blocks[:, 3] = slots[first_rows]
        return count


def _check_range(name: str, values: NDArray[np.int32], end: int) -> None:
    if not len(values):
        return
    single = len(values) == 1  # a reduction costs more than all the rest of a row
    lowest, highest = (int(values[0]), int(values[0])) if single else (int(values.min()), int(values.max()))
    if not (lowest >= 0 and highest < end):
        raise ValueError(f"{name} must be from 0 to {end - 1}, not {lowest} to {highest}")

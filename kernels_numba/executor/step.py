"""The step's words: what every kernel may read about the step. Written by the backend before a step, read by kernels; free of Numba.

The record is int64 words at a 64-byte aligned address; `STEP_WORDS` names them in order and `Word` gives their indices to kernels.
"""

from __future__ import annotations

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
)

(
    ROWS, TOKEN_IDS, ROPE_POSITIONS, SLOTS, ROW_SEQUENCES, OUTPUTS, OUTPUT_ROWS, QUERY_BLOCKS, QUERY_BLOCK_COUNT, PAGE_TABLES, CACHE_GROUPS, STATUS, CANCEL,
) = (8 * index for index in range(len(STEP_WORDS)))  # fmt: skip
"""Byte offsets of the words."""

STATUS_NON_FINITE = 1
QUERY_BLOCK_ROWS = 8

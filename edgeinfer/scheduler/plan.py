"""What a step is to compute: chunks of sequences within budgets of rows and outputs, and the record that a backend gets. The scheduler plans with it."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.steps import Burst, OutputKind, SequenceTable, Step
from edgeinfer.scheduler.sequence import Sequence

_NONE, _LOGITS, _HIDDEN = int(OutputKind.NONE), int(OutputKind.LOGITS), int(OutputKind.HIDDEN)  # NumPy converts members of an enumeration slowly


@dataclass(frozen=True)
class Chunk:
    """Rows of one sequence in a step: positions from `start` to before `end`; those from `first_output` on deliver outputs."""

    sequence: Sequence
    start: int
    end: int
    first_output: int

    @property
    def rows(self) -> int:
        return self.end - self.start

    @property
    def outputs(self) -> int:
        return max(0, self.end - self.first_output)


class StepPlan:
    """The chunks of a step that is being planned, and what is left of its budgets."""

    def __init__(self, rows: int, outputs: int) -> None:
        self.rows_left = rows
        self.outputs_left = outputs
        self._chunks: dict[Sequence, Chunk] = {}

    @property
    def chunks(self) -> list[Chunk]:
        return list(self._chunks.values())

    def add(self, chunk: Chunk) -> None:
        self._chunks[chunk.sequence] = chunk
        self.rows_left -= chunk.rows
        self.outputs_left -= chunk.outputs

    def remove(self, sequence: Sequence) -> None:
        """Gives back what the sequence was to spend, if anything."""
        chunk = self._chunks.pop(sequence, None)
        if chunk is not None:
            self.rows_left += chunk.rows
            self.outputs_left += chunk.outputs


def build_step(chunks: Items[Chunk], burst: Burst | None = None, abort: NDArray[np.int64] | None = None) -> Step:
    """The step record for `chunks`, in their order."""
    token_ids: list[int] = []
    sequence: list[int] = []
    slots: list[int] = []
    outputs: list[int] = []
    tables = []
    for index, chunk in enumerate(chunks):
        token_ids += chunk.sequence.tokens[chunk.start : chunk.end]
        sequence += [index] * chunk.rows
        slots += range(chunk.start, chunk.end)
        outputs += [_NONE] * (chunk.rows - chunk.outputs) + [_HIDDEN if chunk.sequence.wants_hidden else _LOGITS] * chunk.outputs
        tables.append(SequenceTable(chunk.sequence.identifier, chunk.start, tuple(table.ids[: table.count] for table in chunk.sequence.tables)))
    positions = np.array(slots, dtype=np.int32)
    return Step(
        np.array(token_ids, dtype=np.int32),
        np.array(sequence, dtype=np.int32),
        positions,
        positions.copy(),
        np.zeros(len(positions), dtype=np.int32),
        np.array(outputs, dtype=np.uint8),
        tuple(tables),
        burst,
        abort,
    )


def next_chunk(sequence: Sequence, rows_left: int, outputs_left: int) -> Chunk:
    """As many rows as the sequence is behind and both budgets allow."""
    start = sequence.computed
    first_output = max(sequence.next_output, start)
    end = min(start + min(sequence.behind, rows_left), first_output + outputs_left)
    return Chunk(sequence, start, max(start, end), first_output)

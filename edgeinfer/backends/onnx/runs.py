"""The calls of a session that a step takes. Called by the backend; knows nothing of ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.steps import Step


@dataclass(frozen=True)
class Run:
    """One call of the session: rows `rows` of the step (indices), as `count` sequences from slot `first` on, with `length` rows each."""

    first: int
    count: int
    rows: NDArray[np.intp]

    @property
    def length(self) -> int:
        return len(self.rows) // self.count


def runs_of(step: Step, slots: NDArray[np.intp], rows_at_once: int) -> list[Run]:
    """The calls that a step takes: sequences with several rows one by one and so many at once, those with one row together where their slots are neighbours."""
    counts = np.bincount(step.sequence, minlength=len(slots))
    starts = np.concatenate([[0], np.cumsum(counts)])
    runs = [
        Run(int(slots[index]), 1, np.arange(start, min(start + rows_at_once, starts[index + 1])))
        for index in np.flatnonzero(counts > 1)
        for start in range(starts[index], starts[index + 1], rows_at_once)
    ]
    single = np.flatnonzero(counts == 1)
    single = single[np.argsort(slots[single])]
    for group in np.split(single, np.flatnonzero(np.diff(slots[single]) != 1) + 1):
        if len(group):
            runs.append(Run(int(slots[group[0]]), len(group), starts[group]))
    return runs


def single_rows(step: Step, slots: NDArray[np.intp]) -> list[Run]:
    """A call for each row, in the order of the step."""
    return [Run(int(slots[index]), 1, np.array([row])) for row, index in enumerate(step.sequence)]

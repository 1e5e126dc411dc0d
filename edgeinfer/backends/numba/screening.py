"""Bursts that find their tokens from bounds (`kernels_numba.ops.screen`): their tape, and whether the next one does, by what that cost lately. Which way a
burst takes changes no result. For `backend`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.numba.late import LateTape
from kernels_numba.ops.screen import BEST_BYTES, BEST_EXACT, SCREENED_ROWS

LARGEST_SHARE = 0.25
"""Of the row tiles, what a pass may compute exactly: bounds leave out a third of the matrix, and tiles here and there cost more than in a row."""
PAUSE = 32
"""Bursts without bounds after one in which they did not pay: the text may have become one that is easier to guess."""


class Screening:
    """`tape` and counts of one model. `best` is the memory of that name that workers write to (uint8), `row_tiles` those of the output matrix."""

    def __init__(self, tape: LateTape, best: NDArray[np.uint8], row_tiles: int) -> None:
        self.tape = tape
        self._computed = best.reshape(-1, BEST_BYTES)[:, BEST_EXACT : BEST_EXACT + 8]
        self._row_tiles = row_tiles
        self._pauses = [0] * (SCREENED_ROWS + 1)  # by rows: bursts to come without bounds
        self._counted = 0
        self.passes = 0
        self.exact_tiles = 0

    def wants(self, rows: int) -> bool:
        """Whether the next burst, of so many rows, shall use bounds. To be asked once for each."""
        if rows > SCREENED_ROWS:
            return False
        if self._pauses[rows]:
            self._pauses[rows] -= 1
            return False
        return True

    def note(self, rows: int, passes: int) -> None:
        """A burst with bounds ran so many passes."""
        counted = int(self._computed.copy().view(np.int64).sum())
        computed, self._counted = counted - self._counted, counted
        self.passes += passes
        self.exact_tiles += computed
        if computed > LARGEST_SHARE * self._row_tiles * passes:
            self._pauses[rows] = PAUSE

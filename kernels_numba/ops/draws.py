"""The records that tell `sampling` how the rows of a burst are drawn, and what can be drawn. Written by the backend; free of Numba."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# A record is float64, but for top_k, which is an int64.
DRAW_BYTES = 48
DRAW_TEMPERATURE = 0  # 0: the row takes its largest logit
DRAW_INVERSE = 8  # 1 / temperature, rounded
DRAW_TOP_K = 16  # 0: off
DRAW_TOP_P = 24  # 1: off
DRAW_MIN_P = 32  # 0: off
DRAW_LOWEST = 40  # a score that no candidate of min_p is below: its logarithm less 1


def draw_records(params: Sequence[tuple[float, int, float, float]]) -> NDArray[np.float64]:
    """float64[rows, 6]: the records of rows with these (temperature, top_k, top_p, min_p)."""
    records = np.zeros((len(params), DRAW_BYTES // 8))
    for record, (temperature, top_k, top_p, min_p) in zip(records, params, strict=True):
        if temperature > 0.0:
            record[:] = (temperature, 1.0 / temperature, 0.0, top_p, min_p, math.log(min_p) - 1.0 if min_p > 0.0 else 0.0)
            record[DRAW_TOP_K // 8 : DRAW_TOP_K // 8 + 1].view(np.int64)[0] = top_k
    return records

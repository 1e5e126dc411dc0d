"""Hints at weights that a worker is about to read: the first lines of its share of a matrix, asked for while it still does something else.

A linear operation that starts cold waits some 0.7 us for its first lines (address translation, then memory); from there on the hardware fetches ahead.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.executor.step import ROW_BLOCKS
from kernels_numba.ops.common import share_start, word
from kernels_numba.simd.function import kernel_function

PREFETCH_WEIGHTS_OPERANDS = ("weights", "row_tiles", "row_tile_bytes")

FIRST_LINES = 16
"""More of them bring nothing: they would find no free miss buffers."""


@kernel_function
def prefetch_weights(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """The first lines of the rows that `linear` gives this worker. Reads and writes nothing that counts."""
    if simd.load_i64(step + ROW_BLOCKS) != 0:  # there is no wait to be used, and no share of columns
        return
    units = (word(simd, operands, 1) + 1) // 2
    first = 2 * share_start(simd, units, worker, workers)
    simd.prefetch(word(simd, operands, 0) + first * word(simd, operands, 2), FIRST_LINES)

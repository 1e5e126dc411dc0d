"""Embedding kernels: a row gathered from the packed matrix, or from the file's bytes, has the bits of the format's `decode` times the factor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.executor import step as step_words
from kernels_numba.formats import format_by_name
from kernels_numba.ops import reference_linear
from kernels_numba.ops.embedding import MAPPED_SCRATCH_BYTES, SCRATCH_BYTES
from tests.kernels.support import Memory, StepWords, float_bits, run
from tests.kernels.weights import FORMATS, Bytes, column_counts, extreme_rows, levels_and_formats, pack, random_rows

ROWS = 37
TOKENS = [36, 0, 15, 16, 17, 31, 32, 0, 36]


def embedding(
    level: str, format_name: str, table: Bytes, columns: int, tokens: Sequence[int], factor: float, mapped: bool, workers: int
) -> NDArray[np.float32]:
    memory = Memory()
    step = StepWords(len(tokens))
    step.words[step_words.TOKEN_IDS // 8] = step.memory.copy(np.array(tokens, np.int32)).ctypes.data
    output = memory.matrix((len(tokens), columns))
    scratch = memory.allocate(workers * (MAPPED_SCRATCH_BYTES if mapped else SCRATCH_BYTES))
    function = "embedding" + ("_mapped" if mapped else "") + ("" if format_by_name(format_name).quantized else "_float")
    operands = [table.ctypes.data, columns, float_bits(factor), scratch.ctypes.data, output.address, output.stride]
    run(level, "ops.embedding", function, (format_name,), operands, step, workers)
    memory.check()
    return output.values


@pytest.mark.parametrize("mapped", [False, True], ids=["packed", "mapped"])
@pytest.mark.parametrize(("level", "format_name"), levels_and_formats(FORMATS))
def test_rows_have_the_bits_of_decode(level: str, format_name: str, mapped: bool) -> None:
    for columns in column_counts(format_name):
        for stored in (random_rows(format_name, ROWS, columns), extreme_rows(format_name, ROWS, columns)):
            memory = Memory()
            table, packed_memory = (memory.copy(stored), memory) if mapped else pack(level, format_name, stored, columns)
            for factor, tokens, workers in ((1.0, TOKENS, 1), (22.627417, TOKENS, 3), (1.0, range(ROWS), 2), (-0.5, [36], 2)):
                expected = reference_linear.embedding(format_name, stored, np.array(tokens), factor)
                actual = embedding(level, format_name, table, columns, tokens, factor, mapped, workers)
                np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
            packed_memory.check()

"""The kernels that measure the machine do the work that is counted: every byte is read once, every product is computed in every round."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernels_numba.executor.compile import assembly
from kernels_numba.ops import roofline
from kernels_numba.simd.levels import level_by_name
from tests.kernels.support import Memory, StepWords, every_level, run

READS = ("read_one_stream", "read_one_stream_prefetched", "read_four_streams", "read_four_streams_prefetched")
PEAKS = {"int8_peak_small": 4, "int8_peak_large": 12}
# Instructions of one dot product of 64 bytes.
DOTS = {
    "x86_amx": (r"\bvpdpbusd\b", 1), "x86_avx512vnni": (r"\bvpdpbusd\b", 1), "x86_cascadelake": (r"\bvpdpbusd\b", 1), "x86_avxvnni": (r"\bvpdpbusd\b", 2),
    "x86_avx2": (r"\bvpmaddubsw\b", 2), "arm_i8mm": (r"\bsdot\b", 4), "arm_dotprod": (r"\bsdot\b", 4),
    "arm_neon": (r"\bsmull2?\b", 8),
}  # fmt: skip


@every_level
@pytest.mark.parametrize("function", READS)
def test_every_byte_is_read_once(level: str, function: str) -> None:
    for workers in (1, 3):
        memory, step = Memory(), StepWords(1)
        buffer = memory.copy(np.random.default_rng(0).integers(-(1 << 31), 1 << 31, 8 * 4 * roofline.READ_UNIT // 4, dtype=np.int64).astype(np.int32))
        results = memory.allocate(64 * workers, fill=0xFF)
        run(level, "ops.roofline", function, (), (buffer.ctypes.data, buffer.nbytes, results.ctypes.data), step, workers)
        expected = buffer.reshape(-1, 16).sum(axis=0, dtype=np.int32)
        np.testing.assert_array_equal(results.view(np.int32).reshape(workers, 16).sum(axis=0, dtype=np.int32), expected)
        memory.check()


@every_level
@pytest.mark.parametrize("function", PEAKS)
def test_every_product_is_added_in_every_round(level: str, function: str) -> None:
    memory, step = Memory(), StepWords(1)
    operands = memory.copy(np.random.default_rng(1).integers(0, 128, 512).astype(np.uint8))
    operands[256:] += 64  # the second operands are signed
    results = memory.allocate(64 * 2)
    run(level, "ops.roofline", function, (), (7, operands.ctypes.data, results.ctypes.data), step, 2)
    first, second = operands[:256].view(np.uint8).reshape(4, 16, 4).astype(np.int64), operands[256:].view(np.int8).reshape(4, 16, 4).astype(np.int64)
    rows, columns = (2, 2) if function == "int8_peak_small" else (4, 3)
    expected = 7 * sum((first[row] * second[column]).sum(axis=1) for row in range(rows) for column in range(columns))
    np.testing.assert_array_equal(results.view(np.int32).reshape(2, 16), [expected, expected])
    memory.check()


@pytest.mark.parametrize("level", DOTS)
@pytest.mark.parametrize("function", PEAKS)
def test_no_product_left_the_loop(level: str, function: str) -> None:
    code = assembly(level_by_name(level), "kernel", getattr(roofline, function), ())
    pattern, each = DOTS[level]
    loops = re.split(r"^\.?LBB\w+:|^\.LBB\w+:", code, flags=re.MULTILINE)
    assert max(len(re.findall(pattern, block)) for block in loops) >= PEAKS[function] * each

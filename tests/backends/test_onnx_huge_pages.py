"""Large pages for a session's weights: which memory is gathered, that nothing of it changes, and that what is not in use stays so."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest

from edgeinfer.backends.onnx.huge_pages import _without, gather_pages, private_spans

LARGE = 2 << 20


@pytest.mark.parametrize(
    ("taken", "rest"),
    [
        ([], [(10, 20), (30, 40)]),
        ([(0, 5), (20, 30), (50, 60)], [(10, 20), (30, 40)]),
        ([(12, 15)], [(10, 12), (15, 20), (30, 40)]),
        ([(10, 20)], [(30, 40)]),
        ([(5, 12), (18, 33)], [(12, 18), (33, 40)]),
        ([(0, 100)], []),
    ],
)
def test_memory_that_was_there_before_is_left_out(taken: list[tuple[int, int]], rest: list[tuple[int, int]]) -> None:
    assert list(_without([(10, 20), (30, 40)], taken)) == rest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc and gathers pages")
def test_used_memory_is_gathered_unchanged_and_unused_memory_stays_unused() -> None:
    before = private_spans()
    assert before
    pages = mmap.mmap(-1, 10 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    begin = -memory.ctypes.data % LARGE
    memory[begin : begin + 4 * LARGE] = np.random.default_rng(0).integers(0, 256, 4 * LARGE, np.uint8)
    copy = memory[begin : begin + 4 * LARGE].copy()
    pages.madvise(mmap.MADV_HUGEPAGE)
    unused = memory.ctypes.data + begin + 5 * LARGE
    made = gather_pages(before)
    assert np.array_equal(memory[begin : begin + 4 * LARGE], copy)
    assert not any(present(unused + place * mmap.PAGESIZE) for place in range(LARGE // mmap.PAGESIZE))
    if not made:
        pytest.skip("this kernel gathers no pages (Linux does from 6.1 on, where large pages are not switched off)")
    assert huge_bytes(memory.ctypes.data + begin) >= 4 * LARGE
    assert gather_pages(private_spans()) == 0, "everything was there before"


def present(address: int) -> bool:
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        return bool(int.from_bytes(pagemap.read(8), sys.byteorder) >> 63)


def huge_bytes(address: int) -> int:
    """Bytes in large pages of the mapping in which an address lies."""
    inside = False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):
                start, end = (int(part, 16) for part in words[0].split("-"))
                inside = start <= address < end
            elif inside and words[0] == "AnonHugePages:":
                return 1024 * int(words[1])
    raise AssertionError(f"no mapping holds {address:#x}")

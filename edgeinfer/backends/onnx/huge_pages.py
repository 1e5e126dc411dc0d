"""Weights of a session in pages of 2 MB, so that reading them once a token is not held up by looking for pages. Called when a session was made.

ONNX Runtime allocates its packed weights itself, in pages of 4 KB where the system gives large ones only to who asks. Linux can be asked afterwards: since
6.1 `madvise` gathers pages that are there into a large one. Where it cannot, nothing changes but speed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

Span = tuple[int, int]
"""First address, and the one after the last."""

_HUGE = 2 << 20
_PAGE = 4096
_PRESENT = np.uint64(1 << 63)  # of an entry of pagemap
_MADV_COLLAPSE = 25
_FILLED = 0.9
"""The share of a large page that has to be in use for it to be made, since what is not in use takes memory from then on."""


def private_spans() -> list[Span]:
    """Memory of this process that no file stands behind, in the order of addresses; nothing where the system does not tell."""
    found = []
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split()  # addresses, permissions, offset, device, inode, path
            if words[1] == "rw-p" and words[4] == "0" and (len(words) == 5 or words[5] == "[heap]"):
                start, end = (int(part, 16) for part in words[0].split("-"))
                found.append((start, end))
    return found


def gather_pages(before: Sequence[Span]) -> int:
    """Makes large pages of the private memory that is in use now and does not lie in `before`. How many were made."""
    if not sys.platform.startswith("linux"):
        return 0
    madvise = ctypes.CDLL(None).madvise
    made = 0
    with suppress(OSError, AttributeError), open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start in _whole_pages(_without(private_spans(), before)):
            pagemap.seek(start // _PAGE * 8)
            present = np.frombuffer(pagemap.read(_HUGE // _PAGE * 8), np.uint64) & _PRESENT
            if np.count_nonzero(present) >= _FILLED * _HUGE // _PAGE and madvise(ctypes.c_void_p(start), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE) == 0:
                made += 1
    return made


def _without(spans: Sequence[Span], taken: Sequence[Span]) -> Iterator[Span]:
    """What of `spans` lies in none of `taken`."""
    for start, end in spans:
        for low, high in taken:
            if high <= start or low >= end:
                continue
            if low > start:
                yield start, low
            start = max(start, high)
        if start < end:
            yield start, end


def _whole_pages(spans: Iterator[Span]) -> Iterator[int]:
    """Addresses of the large pages that lie whole in a span."""
    for start, end in spans:
        yield from range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE)

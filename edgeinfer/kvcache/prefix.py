"""The hash chain of prefix reuse: the key of a page stands for all tokens up to its end, so equal keys mean equal cache contents. The scheduler
asks here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from edgeinfer.kvcache.blocks import PagePool


def page_keys(tokens: Sequence[int], page_size: int, known: list[bytes], pages: int) -> list[bytes]:
    """Extends `known`, the keys of the first pages of `tokens`, in place to `pages` full pages, and returns it.

    A key is a 128-bit BLAKE2b digest of the key before and the page's token ids: long enough that two different prefixes never meet.
    """
    for index in range(len(known), pages):
        before = known[index - 1] if index else b""
        ids = np.array(tokens[index * page_size : (index + 1) * page_size], dtype="<i4")
        known.append(hashlib.blake2b(before + ids.tobytes(), digest_size=16).digest())
    return known


def longest_match(pools: Sequence[PagePool], windows: Sequence[int], keys: Sequence[bytes]) -> int:
    """How many of the pages named by `keys` every pool still has, as far as a sequence that continues after them needs them.

    A pool without a window (0) needs them all; one with a window w only those that hold positions less than w before the end of the match.
    """
    for count in range(_longest_unbroken(pools, windows, keys), 0, -1):
        if all(_holds(pool, window, keys, count) for pool, window in zip(pools, windows, strict=True)):
            return count
    return 0


def first_needed_page(page_size: int, window: int, computed: int) -> int:
    """The first page that a position at or after `computed` may still look at; the pages before it can go."""
    return max(0, computed - window) // page_size if window else 0


def _longest_unbroken(pools: Sequence[PagePool], windows: Sequence[int], keys: Sequence[bytes]) -> int:
    unbounded = [pool for pool, window in zip(pools, windows, strict=True) if not window]
    for index, key in enumerate(keys):
        if any(pool.find(key) is None for pool in unbounded):
            return index
    return len(keys)


def _holds(pool: PagePool, window: int, keys: Sequence[bytes], count: int) -> bool:
    if not window:
        return True
    first = first_needed_page(pool.page_size, window, count * pool.page_size)
    return all(pool.find(key) is not None for key in keys[first:count])

"""The pages of the cache, group by group: what sequences hold, what still fits, what a new one finds there already. The scheduler owns this and decides
who goes when nothing fits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgeinfer.backends.base import Capabilities
from edgeinfer.kvcache.blocks import PagePool
from edgeinfer.kvcache.prefix import first_needed_page, longest_match, page_keys
from edgeinfer.scheduler.sequence import PageTable, Sequence

Tables = tuple[PageTable, ...]
"""Of one sequence: a table for each group."""


class CachePages:
    """A pool for each cache group that a backend declares. With `prefix_reuse` pages that are full are found again by what they hold, where the backend
    keeps its cache in them."""

    def __init__(self, capabilities: Capabilities, prefix_reuse: bool) -> None:
        groups = capabilities.cache_groups
        self.pools = tuple(PagePool(group.name, group.pages, group.page_size) for group in groups)
        self.windows = tuple(group.window for group in groups)
        self._maximum_step_rows = capabilities.maximum_step_rows
        page_sizes = {group.page_size for group in groups}
        # A hit must give the same bits as computing, and one hash chain serves all groups: both are conditions of reuse.
        self._reuses = prefix_reuse and capabilities.uses_block_tables and capabilities.bit_exact_chunks and len(page_sizes) == 1
        fitting = [self._group_context(pool, window, capabilities.context) for pool, window in zip(self.pools, self.windows, strict=True)]
        self.context = min([capabilities.context, *fitting])
        """The longest sequence that fits when it is alone."""

    def empty_tables(self) -> Tables:
        return tuple(PageTable(np.full(16, -1, dtype=np.int32)) for _ in self.pools)

    def release(self, tables: Tables) -> None:
        """Gives up all that the tables hold."""
        for pool, table in zip(self.pools, tables, strict=True):
            pool.release(table.clear())

    def match(self, sequence: Sequence, tables: Tables) -> int:
        """Holds the longest known prefix of the sequence in `tables`; returns its tokens. A position whose logits are wanted is always computed."""
        if not self._reuses:
            return 0
        page_size = self.pools[0].page_size
        pages = sequence.next_output // page_size
        keys = page_keys(sequence.tokens, page_size, sequence.page_keys, pages)[:pages]
        count = longest_match(self.pools, self.windows, keys)
        for pool, window, table in zip(self.pools, self.windows, tables, strict=True):
            first = first_needed_page(page_size, window, count * page_size)
            found = [pool.find(key) for key in keys[first:count]]
            held = [page for page in found if page is not None]
            for page in held:
                pool.hold(page)
            table.append([-1] * first + held)
            table.first = first
        return count * page_size

    def fits(self, sequence: Sequence, tables: Tables, running: Iterable[Sequence]) -> bool:
        """Whether a sequence that holds `tables` has room beside what the running ones will still need."""
        others = list(running)
        for index, pool in enumerate(self.pools):
            promised = sum(self._missing_of(index, other, other.tables[index]) for other in others)
            if promised + self._missing_of(index, sequence, tables[index]) > pool.available:
                return False
        return True

    def has_room(self, ends: Iterable[tuple[Sequence, int]]) -> bool:
        """Whether there are pages for the positions before `end` of each (sequence, end), all together."""
        wanted = list(ends)
        return all(
            sum(_missing(sequence.tables[index], end, pool) for sequence, end in wanted) <= pool.available for index, pool in enumerate(self.pools)
        )

    def take(self, sequence: Sequence, end: int) -> None:
        """Takes pages for the positions before `end`."""
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            table.append(pool.allocate(_missing(table, end, pool)))

    def remember(self, sequence: Sequence, start: int) -> None:
        """Pages that were filled from position `start` on can serve other sequences from now on."""
        if not self._reuses:
            return
        page_size = self.pools[0].page_size
        full = sequence.computed // page_size
        if full == start // page_size:
            return
        keys = page_keys(sequence.tokens, page_size, sequence.page_keys, full)
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            for index in range(max(table.first, start // page_size), full):
                pool.remember(int(table.ids[index]), keys[index])

    def release_behind_windows(self, sequence: Sequence) -> None:
        for pool, window, table in zip(self.pools, self.windows, sequence.tables, strict=True):
            if window:
                pool.release(table.drop_before(first_needed_page(pool.page_size, window, sequence.computed)))

    def check(self, holders: Iterable[Tables]) -> None:
        """Raises AssertionError if a page is lost, doubled or miscounted; `holders` are all tables that hold any."""
        held = list(holders)
        for index, pool in enumerate(self.pools):
            pool.check([tables[index].held() for tables in held])

    def _missing_of(self, group: int, sequence: Sequence, table: PageTable) -> int:
        """Pages that the known tokens of a sequence will still need in a group."""
        pool, window = self.pools[group], self.windows[group]
        missing = _missing(table, len(sequence.tokens), pool)
        return min(missing, max(0, self._window_pages(pool, window) - (table.count - table.first))) if window else missing

    def _group_context(self, pool: PagePool, window: int, context: int) -> int:
        """The longest sequence that fits the pool when it is alone."""
        return context if window and self._window_pages(pool, window) <= pool.pages else pool.pages * pool.page_size

    def _window_pages(self, pool: PagePool, window: int) -> int:
        """Pages that one sequence holds at most in a group with a window: the window, a whole step, and a page cut at either end."""
        return _pages(window + self._maximum_step_rows, pool.page_size) + 2


def _missing(table: PageTable, end: int, pool: PagePool) -> int:
    """Pages that the table lacks for the positions before `end`."""
    return max(0, _pages(end, pool.page_size) - table.count)


def _pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)

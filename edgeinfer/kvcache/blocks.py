"""Pages of one cache group: a free list, reference counts, and full pages that stay remembered by their key after their last holder has left.

The scheduler owns a pool per cache group and is the only caller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PagePool:
    """Hands out the page ids 0 to `pages` - 1 of `page_size` tokens each.

    A page is free, held by one or more sequences, or idle: held by nobody, but remembered under a key (see prefix.py), so that a later sequence can
    take it as it is. Idle pages are handed out again when no free one is left, the longest idle first.
    """

    def __init__(self, name: str, pages: int, page_size: int) -> None:
        self.name = name
        self.pages = pages
        self.page_size = page_size
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that `allocate` can hand out now."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.pages - self.available

    def allocate(self, count: int) -> list[int]:
        """`count` pages, held once each. The caller has compared `count` with `available`."""
        taken = []
        for _ in range(count):
            if self._free:
                page = self._free.pop()
            else:
                page, _ = self._idle.popitem(last=False)
                self._forget(page)
            self._holders[page] = 1
            taken.append(page)
        return taken

    def hold(self, page: int) -> None:
        """One more sequence holds a remembered page."""
        if self._holders[page] == 0:
            del self._idle[page]
        self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each page. A remembered page becomes idle, any other free.

        Give the end of a sequence first: of idle pages, the first released is the first to be handed out again.
        """
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] < 0:
                raise AssertionError(f"page {page} of cache group {self.name} was released more often than held")
            if self._holders[page] == 0:
                if page in self._key_of:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def remember(self, page: int, key: bytes) -> None:
        """The held page `page` is full and holds what `key` stands for. If another page already does, that one stays the remembered one."""
        if key not in self._page_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def find(self, key: bytes) -> int | None:
        """The page that holds what `key` stands for."""
        return self._page_of.get(key)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless the counts agree with `holders`, the pages that each living sequence holds, and no page is lost or doubled."""
        counted = [0] * self.pages
        for pages in holders:
            for page in pages:
                counted[page] += 1
        if counted != self._holders:
            wrong = [page for page in range(self.pages) if counted[page] != self._holders[page]]
            raise AssertionError(f"cache group {self.name}: the holders of pages {wrong[:8]} are miscounted")
        unheld = sorted([*self._free, *self._idle])
        if unheld != [page for page in range(self.pages) if counted[page] == 0]:
            raise AssertionError(f"cache group {self.name}: free and idle pages do not make up the pages that nobody holds")
        if any(page not in self._key_of for page in self._idle) or any(page in self._key_of for page in self._free):
            raise AssertionError(f"cache group {self.name}: a free page is remembered or an idle one is not")

    def _forget(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)]

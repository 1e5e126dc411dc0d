"""Prefix reuse over a backend that keeps its own cache: sequences that have ended stay in the backend, for others to begin with. The scheduler owns this.

Pages are only counted here. A page that two sequences share is held by both, as the backend's cells are, unless the backend copies it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from edgeinfer.backends.base import PrefixSharingBackend
from edgeinfer.kvcache.blocks import PagePool
from edgeinfer.kvcache.prefix import page_keys
from edgeinfer.scheduler.sequence import PageTable, Sequence


@dataclass(frozen=True)
class KeptSequence:
    """A sequence that has ended, with the keys of its full pages and the pages that are counted for it."""

    identifier: int
    page_keys: tuple[bytes, ...]
    tables: tuple[PageTable, ...]


@dataclass(frozen=True)
class Donor:
    """Who holds the first `pages` pages of a sequence."""

    holder: KeptSequence | Sequence
    pages: int


class KeptSequences:
    """At most `limit` sequences, the least recently useful first, which is the first to go."""

    def __init__(self, backend: PrefixSharingBackend, pool: PagePool, limit: int) -> None:
        self._backend = backend
        self._copies = backend.capabilities.copies_prefixes
        self._pool = pool
        self._limit = limit
        self._kept: list[KeptSequence] = []

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[KeptSequence]:
        return iter(self._kept)

    def keep(self, sequence: Sequence) -> bool:
        """Takes over a sequence that has ended, with its pages; False if it has nothing to offer."""
        keys = self._keys(sequence, sequence.computed)
        if not keys:
            return False
        self._kept.append(KeptSequence(sequence.identifier, keys, sequence.tables))
        if len(self._kept) > self._limit:
            self.drop_one()
        return True

    def drop_one(self) -> None:
        """Forgets the first to go."""
        kept = self._kept.pop(0)
        self._pool.release(kept.tables[0].clear())
        self._backend.release([kept.identifier])

    def find_donor(self, sequence: Sequence, running: Items[Sequence]) -> Donor | None:
        """Whoever holds most of what the sequence begins with, at least a page. One that was kept is thereby the last to go."""
        wanted = self._keys(sequence, sequence.next_output)
        donors = [Donor(other, _common(wanted, self._keys(other, other.computed))) for other in running]
        donors += [Donor(other, _common(wanted, other.page_keys)) for other in self._kept]
        best = max(donors, key=lambda donor: donor.pages, default=None)
        if best is None or not best.pages:
            return None
        if isinstance(best.holder, KeptSequence):
            self._kept.remove(best.holder)
            self._kept.append(best.holder)
        return best

    def hold(self, donor: Donor, table: PageTable) -> bool:
        """Counts the donor's pages for `table` as well, or pages for a copy of them; False if there is no room for a copy."""
        if self._copies:
            if self._pool.available < donor.pages:
                return False
            table.append(self._pool.allocate(donor.pages))
            return True
        pages = donor.holder.tables[0].ids[: donor.pages].tolist()
        for page in pages:
            self._pool.hold(page)
        table.append(pages)
        return True

    def share(self, donor: Donor, sequence: Sequence) -> None:
        """Lets the sequence begin with what the donor holds, in the backend."""
        self._backend.share_prefix(donor.holder.identifier, sequence.identifier, donor.pages * self._pool.page_size)

    def gone(self, donor: Donor | None) -> bool:
        """Whether the donor was dropped in the meantime."""
        return donor is not None and isinstance(donor.holder, KeptSequence) and donor.holder not in self._kept

    def _keys(self, sequence: Sequence, tokens: int) -> tuple[bytes, ...]:
        """The keys of the full pages among the first `tokens` tokens."""
        pages = tokens // self._pool.page_size
        return tuple(page_keys(sequence.tokens, self._pool.page_size, sequence.page_keys, pages)[:pages])


def _common(first: Items[bytes], second: Items[bytes]) -> int:
    """How many leading keys are equal."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count

"""The cache of the standard dialects: as `SlotCache`, but with only as many places a sequence as the longest living one needs.

Their graphs take every place for a key to be looked at, so a place that holds nothing costs time; and runtimes prepare themselves for each size of cache
that they see, so it changes seldom. A run gives back the keys and values of its new rows alone, and `write` puts them where they belong: the cache is
never copied for a token. Called by `standard_backend`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.onnx.cache import ELEMENT_BYTES, SlotCache
from edgeinfer.model.program import CacheStore

GROWTH = 128
"""Places that a sequence gets at a time."""


class GrowingCache(SlotCache):
    """Keys and values of at most `slots` sequences of at most `length` tokens, float32[slots, kv_heads, places, size] each."""

    def __init__(self, stores: Sequence[CacheStore], slots: int, length: int) -> None:
        super().__init__(stores, slots, length)
        self._length = length
        self.places = 0
        self._place(0)

    def fit(self, tokens: int = 0) -> bool:
        """Makes room for sequences of so many tokens beside those that it holds, or gives room back when much less is needed. Says whether anything moved,
        so that views of before are no longer right."""
        needed = max(tokens, *self._lengths.values(), 0)
        places = min(-(-needed // GROWTH) * GROWTH, self._length)
        if self.places // 2 < places <= self.places or places == self.places:
            return False
        self._place(places)
        return True

    def empty(self, count: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """The same names as `arrays`, with no places: for runs of sequences that hold nothing yet."""
        for name, _, array in self._regions:
            yield name, np.empty((count, array.shape[1], 0, array.shape[3]), np.float32)

    def write(self, first: int, starts: NDArray[np.int64], values: Mapping[str, NDArray[np.float32]]) -> None:
        """Puts new rows float32[count, kv_heads, rows, size], by name, into slots from `first` on, at each one's start. There must be room."""
        rows = next(iter(values.values())).shape[2]
        slots = np.arange(first, first + len(starts))
        at = starts[:, np.newaxis] + np.arange(rows)
        for name, _, array in self._regions:
            array[slots[:, np.newaxis], :, at] = values[name].transpose(0, 2, 1, 3)
        for slot, start in zip(slots.tolist(), starts.tolist()):
            self._lengths[slot] = start + rows

    def _place(self, places: int) -> None:
        """Lays every array out for so many places, inside its own memory: from the end when rows move apart, from the front when they move together."""
        held = sorted(self._lengths.items(), reverse=places > self.places)
        for index, (name, region, old) in enumerate(self._regions):
            slots, heads, _, size = old.shape
            new = region.bytes[: slots * heads * places * size * ELEMENT_BYTES].view(np.float32).reshape(slots, heads, places, size)
            old = region.bytes[: slots * heads * self.places * size * ELEMENT_BYTES].view(np.float32).reshape(slots, heads, self.places, size)
            for slot, length in held:
                for head in range(heads - 1, -1, -1) if places > self.places else range(heads):
                    new[slot, head, :length] = old[slot, head, :length]
            self._regions[index] = (name, region, new)
        self.places = places

    def _give_back(self, slot: int) -> None:
        for _, region, array in self._regions:
            region.discard(slot * array[0].nbytes, array[0].nbytes)

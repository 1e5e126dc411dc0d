"""The cache of the dialect `cpu`: for every store of the program one array with a slot a sequence, bound to the graph in place.

Neighbouring slots can be bound together, so sequences that decode at the same time share one run. Memory that was never written takes no room, and what
a sequence wrote is given back when it is released. Called by the backend.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.numba.memory import Region
from edgeinfer.core.errors import EdgeInferError, InvalidRequestError
from edgeinfer.model.program import CacheStore

ELEMENT_BYTES = 4


def token_bytes(stores: Sequence[CacheStore]) -> int:
    """Bytes that a token takes in all stores."""
    return sum(store.kv_heads * (store.key_size + store.value_size) for store in stores) * ELEMENT_BYTES


class SlotCache:
    """Keys and values of at most `slots` sequences of at most `length` tokens, float32[slots, kv_heads, length, size] each."""

    def __init__(self, stores: Sequence[CacheStore], slots: int, length: int) -> None:
        self._slots = slots
        self._regions: list[tuple[str, Region, NDArray[np.float32]]] = []
        self._free = list(range(slots))
        self._slot_of: dict[int, int] = {}
        self._lengths: dict[int, int] = {}  # slot -> tokens that it holds
        try:
            for store in stores:
                for what, size in (("key", store.key_size), ("value", store.value_size)):
                    region = Region(slots * store.kv_heads * length * size * ELEMENT_BYTES, "KV cache")
                    array = region.bytes.view(np.float32).reshape(slots, store.kv_heads, length, size)
                    self._regions.append((f"{store.index}.{what}", region, array))
        except BaseException:
            self.close()
            raise

    def slot(self, sequence_id: int, start: int) -> int:
        """The slot of a sequence, which from now on holds the tokens before `start` and no others."""
        if sequence_id not in self._slot_of:
            if not self._free:
                raise EdgeInferError(f"more than {self._slots} sequences are alive in the onnx backend")
            self._slot_of[sequence_id] = heapq.heappop(self._free)
        slot = self._slot_of[sequence_id]
        held = self._lengths.get(slot, 0)
        if held < start:
            raise InvalidRequestError(f"a step starts at position {start} of a sequence of which the onnx backend holds {held} tokens")
        return slot

    def copy(self, source: int, target: int, length: int) -> None:
        """A new sequence `target` holds the first `length` tokens of `source`. Raises InvalidRequestError if it is not new, or if the source has fewer."""
        held = self._lengths.get(self._slot_of.get(source, -1), 0)
        if target in self._slot_of or not 0 < length <= held:
            raise InvalidRequestError(
                f"sequence {target} cannot take over {length} tokens of sequence {source}, of which the onnx backend holds {held}; the target must be new"
            )
        here, there = self._slot_of[source], self.slot(target, 0)
        for _, _, array in self._regions:
            array[there, :, :length] = array[here, :, :length]
        self._lengths[there] = length

    def filled(self, slot: int, length: int) -> None:
        """The slot now holds so many tokens."""
        self._lengths[slot] = length

    def release(self, sequence_id: int) -> None:
        """Forgets a sequence, if it is known, and gives its memory back."""
        slot = self._slot_of.pop(sequence_id, None)
        if slot is None:
            return
        heapq.heappush(self._free, slot)
        if self._lengths.pop(slot, 0):
            self._give_back(slot)

    def _give_back(self, slot: int) -> None:
        """The memory of a slot."""
        for _, region, _ in self._regions:
            size = region.size // self._slots
            region.discard(slot * size, size)

    def arrays(self, first: int, count: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """("3.key", float32[count, kv_heads, length, size]) and so on: views of the slots from `first` on."""
        for name, _, array in self._regions:
            yield name, array[first : first + count]

    def close(self) -> None:
        regions, self._regions = self._regions, []
        for _, region, _ in regions:
            region.close()

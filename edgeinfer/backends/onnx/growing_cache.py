"""The cache of the standard dialects: their graphs read the keys and values of a sequence and give them back with the new ones at the end, so what a run
gave is what the next one reads. Nothing is copied in Python, but the graph itself copies the whole cache of a sequence in every run.

Called by `standard_backend`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgeinfer.core.errors import EdgeInferError, InvalidRequestError
from edgeinfer.model.program import CacheStore


@dataclass
class _Held:
    """A sequence's tokens, and by name its keys and values as ONNX Runtime has them, float32[1, kv_heads, tokens, size] each."""

    length: int = 0
    values: dict[str, Any] = field(default_factory=dict)


class GrowingCache:
    """Keys and values of at most `slots` sequences."""

    def __init__(self, library: Any, stores: Sequence[CacheStore], slots: int) -> None:
        self._library = library
        self._slots = slots
        self._empty = {
            f"{store.index}.{what}": library.OrtValue.ortvalue_from_numpy(np.zeros((1, store.kv_heads, 0, size), np.float32))
            for store in stores
            for what, size in (("key", store.key_size), ("value", store.value_size))
        }
        self._free = list(range(slots))
        self._slot_of: dict[int, int] = {}
        self._held: dict[int, _Held] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """("0.key", "0.value", "1.key" ...), in the order of `filled`."""
        return tuple(self._empty)

    def slot(self, sequence_id: int, start: int) -> int:
        """The slot of a sequence, which from now on holds the tokens before `start` and no others: what it holds beyond is cut off, by a copy."""
        if sequence_id not in self._slot_of:
            if not self._free:
                raise EdgeInferError(f"more than {self._slots} sequences are alive in the onnx backend")
            self._slot_of[sequence_id] = heapq.heappop(self._free)
        slot = self._slot_of[sequence_id]
        held = self._held.setdefault(slot, _Held())
        if held.length < start:
            raise InvalidRequestError(f"a step starts at position {start} of a sequence of which the onnx backend holds {held.length} tokens")
        if held.length > start:
            shorter = self._library.OrtValue.ortvalue_from_numpy
            held.values = {name: shorter(np.ascontiguousarray(value.numpy()[:, :, :start])) for name, value in held.values.items()} if start else {}
            held.length = start
        return slot

    def past(self, slot: int) -> tuple[int, dict[str, Any]]:
        """Tokens of a slot, and its keys and values by name."""
        held = self._held[slot]
        return held.length, held.values or self._empty

    def grown(self, slot: int, length: int, values: Sequence[Any]) -> None:
        """The slot now holds so many tokens, whose keys and values a run gave, in the order of `names`."""
        self._held[slot] = _Held(length, dict(zip(self._empty, values, strict=True)))

    def release(self, sequence_id: int) -> None:
        """Forgets a sequence, if it is known."""
        slot = self._slot_of.pop(sequence_id, None)
        if slot is not None:
            heapq.heappush(self._free, slot)
            self._held.pop(slot, None)

    def close(self) -> None:
        self._held.clear()
        self._empty.clear()

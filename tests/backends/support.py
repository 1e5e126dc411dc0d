"""A plain driver of a backend for the contract suite: it hands out pages in a scattered order and builds steps by hand, without the scheduler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Backend
from edgeinfer.core.steps import OutputKind, SequenceTable, Step

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """Tokens of a sequence from position `start` on; logits are wanted for the last `outputs` of them (None: all)."""

    identifier: int
    start: int
    tokens: Sequence[int]
    outputs: int | None = None

    @property
    def wanted(self) -> int:
        return len(self.tokens) if self.outputs is None else self.outputs


class Driver:
    """Runs rows on a backend. Every sequence gets pages of its own, in an order that has nothing to do with the positions."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._free = [list(range(group.pages)) for group in backend.capabilities.cache_groups]
        for pages in self._free:
            random.Random(len(pages)).shuffle(pages)
        self._held: dict[int, list[list[int]]] = {}

    def run(self, *parts: Rows) -> list[Logits]:
        """One step; per part float32[outputs, vocabulary] (copies)."""
        token_ids, sequence, slots, outputs, tables = [], [], [], [], []
        for index, part in enumerate(parts):
            token_ids += list(part.tokens)
            sequence += [index] * len(part.tokens)
            slots += range(part.start, part.start + len(part.tokens))
            outputs += [OutputKind.NONE] * (len(part.tokens) - part.wanted) + [OutputKind.LOGITS] * part.wanted
            tables.append(SequenceTable(part.identifier, part.start, self._tables(part.identifier, part.start + len(part.tokens))))
        positions = np.array(slots, dtype=np.int32)
        flags = np.array(outputs, dtype=np.uint8)
        step = Step(
            np.array(token_ids, dtype=np.int32), np.array(sequence, dtype=np.int32), positions, positions.copy(),
            np.zeros(len(slots), dtype=np.int32), flags, tuple(tables),
        )  # fmt: skip
        result = self.backend.step(step)
        assert result.rows.tolist() == np.flatnonzero(flags == OutputKind.LOGITS).tolist()
        assert result.logits.shape == (len(result.rows), self.backend.capabilities.vocabulary) and result.logits.dtype == np.float32
        if result.largest is not None:
            assert result.largest.tolist() == result.logits.argmax(axis=1).tolist()
        ends = np.cumsum([part.wanted for part in parts])
        return [result.logits[end - part.wanted : end].copy() for part, end in zip(parts, ends, strict=True)]

    def whole(self, identifier: int, tokens: Sequence[int], chunk: int = 64) -> Logits:
        """Logits of every position of a sequence, in chunks, and the sequence forgotten afterwards."""
        blocks = [self.run(Rows(identifier, start, tokens[start : start + chunk]))[0] for start in range(0, len(tokens), chunk)]
        self.release(identifier)
        return np.concatenate(blocks)

    def release(self, *identifiers: int) -> None:
        for identifier in identifiers:
            for free, pages in zip(self._free, self._held.pop(identifier), strict=True):
                free += pages
        self.backend.release(identifiers)

    def _tables(self, identifier: int, length: int) -> tuple[NDArray[np.int32], ...]:
        held = self._held.setdefault(identifier, [[] for _ in self._free])
        for group, free, pages in zip(self.backend.capabilities.cache_groups, self._free, held, strict=True):
            while len(pages) * group.page_size < length:
                pages.append(free.pop())
        return tuple(np.array(pages, dtype=np.int32) for pages in held)

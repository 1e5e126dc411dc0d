"""Engines without a model, for the tests of verify: logits are a fixed function of the last two tokens, with an error that can be set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

VOCABULARY = 40


class FakeEngine:
    """Logits after (previous, token) are a seeded random row plus `error` times another; blocks have `block` rows."""

    def __init__(self, error: float = 0.0, block: int = 5, seed: int = 0) -> None:
        generator = np.random.default_rng(1)
        self._table = generator.normal(0, 2, (VOCABULARY, VOCABULARY, VOCABULARY)).astype(np.float32)
        self._table += (error * np.random.default_rng(100 + seed).normal(0, 1, self._table.shape)).astype(np.float32)
        self._block = block
        self.calls = 0

    def row(self, token_ids: Sequence[int], position: int) -> np.ndarray:
        previous = token_ids[position - 1] if position else 0
        return self._table[previous, token_ids[position]]

    def logits(self, token_ids: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        self.calls += 1
        for start in range(0, len(token_ids), self._block):
            end = min(start + self._block, len(token_ids))
            yield start, np.stack([self.row(token_ids, position) for position in range(start, end)])

    def greedy(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        ids = list(token_ids)
        for _ in range(count):
            ids.append(int(self.row(ids, len(ids) - 1).argmax()))
        return ids[len(token_ids) :]

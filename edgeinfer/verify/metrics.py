"""How far two sets of logits are apart: Kullback-Leibler divergence, perplexity, agreement of the largest. Pure NumPy; anyone may import it.

Rows are taken one at a time, so that a block of logits is never held in float64 (64 rows of 262,144 would be 134 MB for each engine).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.errors import NonFiniteError

Logits = NDArray[Any]  # float32 or float64 [rows, vocabulary], or [vocabulary]
Pair = tuple[str, str]


def log_softmax(row: Logits) -> NDArray[np.float64]:
    """Natural logarithms of the probabilities, float64[vocabulary], of one row of logits; the sum is taken relative to the largest logit."""
    wide = np.asarray(row, dtype=np.float64)
    shifted = wide - wide.max()
    return np.asarray(shifted - math.log(float(np.exp(shifted).sum())))


def kl_divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> float:
    """KL(p || q) = sum of p (log p - log q), in nats, of two rows of log probabilities. Never below zero but for rounding (about 1e-15)."""
    return float(np.dot(np.exp(log_p), log_p - log_q))


@dataclass(frozen=True)
class Agreement:
    """Means over `positions`: `kl[p, q]` is KL(p || q) in nats, `kl_worst` its largest value, `top1[p, q]` the share of equal arg-maxima,
    `perplexity[engine]` exp of the mean negative log-likelihood of the tokens that really follow. `kl_each` has the divergence of every position."""

    positions: int
    kl: Mapping[Pair, float]
    kl_worst: Mapping[Pair, float]
    top1: Mapping[Pair, float]
    perplexity: Mapping[str, float]
    kl_each: Mapping[Pair, Sequence[float]]


class AgreementTally:
    """Adds up, position by position, what an `Agreement` is the mean of. `pairs` are the (p, q) whose KL(p || q) is wanted."""

    def __init__(self, engines: Sequence[str], pairs: Sequence[Pair]) -> None:
        self._engines = tuple(engines)
        self._pairs = tuple(pairs)
        self._positions = 0
        self._kl: dict[Pair, list[float]] = {pair: [] for pair in self._pairs}
        self._equal = dict.fromkeys(self._pairs, 0)
        self._negative_log_likelihood = dict.fromkeys(self._engines, 0.0)

    def add(self, blocks: Mapping[str, Logits], targets: Sequence[int]) -> None:
        """One block for each engine, all [rows, vocabulary]; `targets[i]` is the token that follows row i.

        Raises NonFiniteError if an engine gave an infinity or a NaN, and ValueError if the blocks differ in shape.
        """
        shapes = {engine: blocks[engine].shape for engine in self._engines}
        if len(set(shapes.values())) != 1 or len(targets) != next(iter(shapes.values()))[0]:
            raise ValueError(f"the engines gave blocks of different shapes: {shapes}, for {len(targets)} tokens")
        for index, target in enumerate(targets):
            logs: dict[str, NDArray[np.float64]] = {}
            best: dict[str, int] = {}
            for engine in self._engines:
                row = blocks[engine][index]
                unusable = np.count_nonzero(~np.isfinite(row))
                if unusable:
                    raise NonFiniteError(f"{engine} gave {unusable} logits that are not finite at position {self._positions}")
                logs[engine] = log_softmax(row)
                best[engine] = int(row.argmax())
                self._negative_log_likelihood[engine] -= float(logs[engine][target])
            for pair in self._pairs:
                self._kl[pair].append(kl_divergence(logs[pair[0]], logs[pair[1]]))
                self._equal[pair] += best[pair[0]] == best[pair[1]]
            self._positions += 1

    def merge(self, other: AgreementTally) -> None:
        """Adds the positions of another tally over the same engines and pairs."""
        self._positions += other._positions
        for pair in self._pairs:
            self._kl[pair] += other._kl[pair]
            self._equal[pair] += other._equal[pair]
        for engine in self._engines:
            self._negative_log_likelihood[engine] += other._negative_log_likelihood[engine]

    def result(self) -> Agreement:
        """The means so far. Raises ValueError before the first position."""
        if self._positions == 0:
            raise ValueError("no position has been compared yet")
        count = self._positions
        return Agreement(
            positions=count,
            kl={pair: sum(self._kl[pair]) / count for pair in self._pairs},
            kl_worst={pair: max(0.0, *self._kl[pair]) for pair in self._pairs},
            top1={pair: self._equal[pair] / count for pair in self._pairs},
            perplexity={engine: math.exp(self._negative_log_likelihood[engine] / count) for engine in self._engines},
            kl_each={pair: tuple(self._kl[pair]) for pair in self._pairs},
        )

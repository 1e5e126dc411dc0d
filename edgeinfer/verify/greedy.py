"""Greedy generation, ours against the oracle's: how long they agree, and whether where they part is within the errors that are measured there.

At a divergence the reference tells how close the race was: its gap between the two tokens. Whichever engine the reference contradicts must have erred by
at least that gap, so the gap is compared with two things: with the errors of the gap as measured there, which fails for an engine that generates something
else than its logits say; and with the errors of other tokens at the same place, which fails for an engine that is wrong about these two alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgeinfer.verify.metrics import Logits
from edgeinfer.verify.teacher_forcing import LogitSource

COMPARED_TOKENS = 64
"""Tokens, the best by the reference, whose errors tell what is usual at a place."""
SPREAD_LIMIT = 3.0
"""Standard deviations of the error of a gap that a divergence may need."""


class GreedySource(LogitSource, Protocol):
    """An engine that can also generate: the `count` tokens after `token_ids`, each the largest logit (ties: the lower id), end of text ignored."""

    def greedy(self, token_ids: Sequence[int], count: int) -> Sequence[int]: ...


@dataclass(frozen=True)
class Divergence:
    """Where two greedy generations part. Gaps are (logit of our token) minus (logit of the oracle's token), as each engine computes them."""

    our_token: int
    oracle_token: int
    reference_gap: float
    our_gap: float
    oracle_gap: float
    our_error: float  # largest |ours - reference| on the two logits
    oracle_error: float
    our_spread: float  # standard deviation of (ours - reference) over the reference's best tokens but these two
    oracle_spread: float

    @property
    def our_gap_error(self) -> float:
        """How far our gap is from the reference's."""
        return abs(self.our_gap - self.reference_gap)

    @property
    def oracle_gap_error(self) -> float:
        """How far the oracle's gap is from the reference's."""
        return abs(self.oracle_gap - self.reference_gap)

    @property
    def usual_gap_error(self) -> float:
        """Standard deviation of a gap's error, at this place and on other tokens, of the engine that the reference contradicts here."""
        return float(np.sqrt(2.0)) * (self.oracle_spread if self.reference_gap > 0 else self.our_spread)

    @property
    def within_error(self) -> bool:
        """Whether the errors measured at this place explain the divergence: those of the two tokens together, and SPREAD_LIMIT times the usual one."""
        gap = abs(self.reference_gap)
        return gap <= self.our_gap_error + self.oracle_gap_error and gap <= SPREAD_LIMIT * self.usual_gap_error


@dataclass(frozen=True)
class GreedyComparison:
    """One prompt. `agreed` tokens are equal from the start; `divergence` is None when all `tokens` are.

    `same_as_logits`: each of our generated tokens is the arg-max of our own logits under teacher forcing, so that decode and prefill agree.
    """

    prompt: str
    tokens: int
    agreed: int
    same_as_logits: bool
    divergence: Divergence | None


def row_at(source: LogitSource, token_ids: Sequence[int], position: int) -> Logits:
    """The logits after token `position` of `token_ids`, as a copy [vocabulary]."""
    for start, block in source.logits(token_ids):
        if start <= position < start + len(block):
            found = np.array(block[position - start], dtype=np.float64)
    return found


def compare_greedy(prompt: str, token_ids: Sequence[int], count: int, ours: GreedySource, oracle: GreedySource, reference: LogitSource) -> GreedyComparison:
    """Generates `count` tokens with both after `token_ids`, and measures the first difference."""
    our_tokens = list(ours.greedy(token_ids, count))
    oracle_tokens = list(oracle.greedy(token_ids, count))
    if len(our_tokens) != len(oracle_tokens):
        raise ValueError(f"one engine generated {len(our_tokens)} tokens and the other {len(oracle_tokens)}, of {count}")
    agreed = next((i for i, (mine, theirs) in enumerate(zip(our_tokens, oracle_tokens)) if mine != theirs), len(our_tokens))
    forced = [*token_ids, *our_tokens[:-1]]
    same, our_row = _replay(ours, forced, our_tokens, len(token_ids) - 1, agreed)
    divergence = None
    if agreed < len(our_tokens):
        common = forced[: len(token_ids) + agreed]
        pair = [our_tokens[agreed], oracle_tokens[agreed]]
        oracle_row = row_at(oracle, common, len(common) - 1)
        reference_row = row_at(reference, common, len(common) - 1)
        mine, theirs, true = our_row[pair], oracle_row[pair], reference_row[pair]
        divergence = Divergence(
            our_token=pair[0],
            oracle_token=pair[1],
            reference_gap=float(true[0] - true[1]),
            our_gap=float(mine[0] - mine[1]),
            oracle_gap=float(theirs[0] - theirs[1]),
            our_error=float(np.abs(mine - true).max()),
            oracle_error=float(np.abs(theirs - true).max()),
            our_spread=error_spread(our_row, reference_row, pair),
            oracle_spread=error_spread(oracle_row, reference_row, pair),
        )
    return GreedyComparison(prompt, len(our_tokens), agreed, same, divergence)


def error_spread(row: Logits, reference: Logits, pair: Sequence[int]) -> float:
    """Standard deviation of row - reference over the reference's best tokens without `pair`, which is what is to be judged by it."""
    best = np.argsort(-reference, kind="stable")[: COMPARED_TOKENS + len(pair)]
    others = best[~np.isin(best, pair)][:COMPARED_TOKENS]
    return float((row[others] - reference[others]).std())


def _replay(source: LogitSource, forced: Sequence[int], generated: Sequence[int], first: int, wanted: int) -> tuple[bool, Logits]:
    """Whether every generated token is the arg-max of its row of `source` over `forced`, and a copy of row `wanted` of these.

    The row of the first generated token is row `first` of `forced`.
    """
    same = True
    kept: Logits = np.empty(0)
    for start, block in source.logits(forced):
        for offset, row in enumerate(block):
            index = start + offset - first
            if index < 0:
                continue
            same = same and int(row.argmax()) == generated[index]
            if index == wanted:
                kept = np.array(row, dtype=np.float64)
    return same, kept


def compare_all_greedy(
    prompts: Sequence[tuple[str, Sequence[int]]],
    count: int,
    ours: GreedySource,
    oracle: GreedySource,
    reference: LogitSource,
    progress: Callable[[int], None] = lambda prompts: None,
) -> list[GreedyComparison]:
    """`compare_greedy` for each (prompt, token ids); `progress(1)` is called after each."""
    results = []
    for prompt, token_ids in prompts:
        results.append(compare_greedy(prompt, token_ids, count, ours, oracle, reference))
        progress(1)
    return results

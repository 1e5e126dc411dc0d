"""What scheduler tests share: a consumer that records, and the loop that runs a scheduler dry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.fake import FakeBackend
from edgeinfer.scheduler import Scheduler, Sequence, Verdict


class Recorder:
    """Takes the largest logit until it has `limit` tokens; keeps all logits that it was given by position."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens: list[int] = []
        self.logits: dict[int, NDArray[np.float32]] = {}
        self.error: BaseException | None = None
        self.paused = False
        self.finished = False

    def rows(self, sequence: Sequence, first_position: int, logits: NDArray[np.float32], largest: NDArray[np.int64] | None) -> Verdict:
        for offset, row in enumerate(logits):
            assert first_position + offset not in self.logits, "a position was delivered twice"
            self.logits[first_position + offset] = row.copy()
        if self.limit == 0:  # teacher forcing
            self.finished = first_position + len(logits) == len(sequence.tokens)
            return Verdict(finished=self.finished)
        self.tokens.append(int(np.argmax(logits[-1])))
        self.finished = len(self.tokens) == self.limit
        return Verdict((self.tokens[-1],), self.finished)

    def failed(self, error: BaseException) -> None:
        self.error = error


class Bench:
    """A scheduler over a fake backend."""

    def __init__(
        self, context: int = 256, chunk: int = 64, sequences: int = 8, cache_tokens: int | None = None,
        windows: tuple[int, ...] = (), prefix_reuse: bool = True, backend: Callable[[BackendOptions], Backend] | None = None,
    ) -> None:  # fmt: skip
        options = BackendOptions(context=context, maximum_step_rows=chunk, maximum_sequences=sequences, cache_tokens=cache_tokens)
        self.backend = backend(options) if backend else FakeBackend(options, windows=windows)
        self.scheduler = Scheduler(self.backend, prefix_reuse)
        self.count = 0

    def submit(self, tokens: list[int], limit: int = 8) -> tuple[Sequence, Recorder]:
        recorder = Recorder(limit)
        sequence = Sequence(self.count, list(tokens), len(tokens) - 1 if limit else 0, recorder)
        self.count += 1
        self.scheduler.submit(sequence)
        return sequence, recorder

    def run(self) -> int:
        """Steps until nothing is left; checks the pages after each step. Returns the steps."""
        steps = 0
        while self.scheduler.step():
            self.scheduler.check()
            steps += 1
            assert steps < 20_000, "the scheduler does not come to an end"
        assert not self.scheduler.has_work or any(s.consumer.paused for s in self.scheduler._running + self.scheduler._waiting)
        return steps

    @property
    def used(self) -> int:
        return sum(self.scheduler.state.pages_used.values())


def alone(tokens: list[int], limit: int, context: int = 256) -> list[int]:
    """What the fake backend answers, without any scheduler."""
    known = list(tokens)
    rule = FakeBackend(BackendOptions(context=context))._rule
    for _ in range(limit):
        known.append(rule(known))
    return known[len(tokens) :]

"""What scheduler tests share: a consumer that records, and the loop that runs a scheduler dry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.fake import FakeBackend
from edgeinfer.core.errors import NonFiniteError
from edgeinfer.core.requests import SamplingParams
from edgeinfer.core.steps import OutputKind, Step, StepOutputs
from edgeinfer.scheduler import Scheduler, Sequence, Verdict


class Recorder:
    """Takes the largest logit until it has `limit` tokens; keeps all logits that it was given by position.

    With `greedy` it need not see the logits. One of `ends` ends it unforeseen, as a stop text would; those of `end_ids` are told beforehand.
    """

    def __init__(self, limit: int, greedy: bool = False, ends: Collection[int] = (), end_ids: Collection[int] = ()) -> None:
        self.limit = limit
        self.greedy = greedy
        self.ends = frozenset([*ends, *end_ids])
        self.end_ids = end_ids
        self.drawn_with: SamplingParams | None = None
        self.bursts: list[int] = []  # how many tokens came together each time
        self.tokens: list[int] = []
        self.logits: dict[int, NDArray[np.float32]] = {}
        self.error: BaseException | None = None
        self.paused = False
        self.finished = False

    def rows(self, sequence: Sequence, first_position: int, logits: NDArray[np.float32], largest: NDArray[np.int32] | None) -> Verdict:
        for offset, row in enumerate(logits):
            assert first_position + offset not in self.logits, "a position was delivered twice"
            self.logits[first_position + offset] = row.copy()
        if self.limit == 0:  # teacher forcing
            self.finished = first_position + len(logits) == len(sequence.tokens)
            return Verdict(finished=self.finished)
        return self._take(int(np.argmax(logits[-1])))

    def uniforms(self, count: int) -> list[float]:
        return [(7 * (len(self.tokens) + index) % 10) / 10 for index in range(count)]

    @property
    def unseen_tokens(self) -> int:
        return self.limit - len(self.tokens) if self.greedy else 0

    def chosen(self, sequence: Sequence, tokens: Items[int]) -> Verdict:
        assert self.greedy and 0 < len(tokens) <= self.unseen_tokens and not set(tokens[:-1]) & set(self.end_ids)
        self.bursts.append(len(tokens))
        for count, token in enumerate(tokens, start=1):
            if self._take(token).finished:
                return Verdict(tuple(tokens[:count]), True)
        return Verdict(tuple(tokens))

    def _take(self, token: int) -> Verdict:
        self.tokens.append(token)
        self.finished = len(self.tokens) == self.limit or token in self.ends
        return Verdict((token,), self.finished)

    def failed(self, error: BaseException) -> None:
        self.error = error


class OwnCacheBackend(FakeBackend):
    """The fake backend with a cache of its own by sequence id, in cells that sequences may share; it notices cells and sequences that it has no room for.

    A token of `poison` makes its step fail.
    """

    def __init__(self, options: BackendOptions, kept: int = 3, poison: int | None = None) -> None:
        super().__init__(options)
        self.capabilities = dataclasses.replace(
            self.capabilities, uses_block_tables=False, bit_exact_chunks=False, kept_sequences=kept, maximum_passes=1
        )
        self.cells: dict[int, list[list[int]]] = {}
        self.shared = 0
        self._poison = poison

    def step(self, step: Step) -> StepOutputs:
        for table in step.sequences:
            cells = self.cells.setdefault(table.sequence_id, [])
            assert len(cells) >= table.start, "positions are missing"
            del cells[table.start :]
        logits = []
        for row, token in enumerate(step.token_ids.tolist()):
            if token == self._poison:
                raise NonFiniteError("poison")
            cells = self.cells[step.sequences[step.sequence[row]].sequence_id]
            cells.append([token])
            if step.outputs[row] == OutputKind.LOGITS:
                logits.append(np.zeros(self.capabilities.vocabulary, np.float32))
                logits[-1][self._rule([cell[0] for cell in cells])] = 1
        self.check_room()
        rows = np.flatnonzero(step.outputs == OutputKind.LOGITS).astype(np.int32)
        return StepOutputs(np.array(logits, np.float32).reshape(len(rows), self.capabilities.vocabulary), rows)

    def share_prefix(self, source: int, target: int, length: int) -> None:
        assert target not in self.cells and 0 < length <= len(self.cells[source])
        self.cells[target] = self.cells[source][:length]
        self.shared += length
        self.check_room()

    def release(self, sequence_ids: Items[int]) -> None:
        super().release(sequence_ids)
        for identifier in sequence_ids:
            self.cells.pop(identifier, None)

    def check_room(self) -> None:
        group = self.capabilities.cache_groups[0]
        assert len(self.cells) <= self.capabilities.maximum_sequences + self.capabilities.kept_sequences, "too many sequences"
        assert len({id(cell) for cells in self.cells.values() for cell in cells}) <= group.pages * group.page_size, "too many cells"


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

    def submit(self, tokens: list[int], limit: int = 8, **choices: Any) -> tuple[Sequence, Recorder]:
        recorder = Recorder(limit, **choices)
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

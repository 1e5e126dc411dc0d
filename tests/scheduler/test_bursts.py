"""Bursts over the fake backend: several greedy tokens in one step, with the same answers, pages and ends as one by one."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.fake import MAXIMUM_PASSES, FakeBackend
from edgeinfer.core.errors import NonFiniteError
from edgeinfer.core.requests import SamplingParams
from edgeinfer.core.steps import UNDECIDED, Step, StepOutputs
from edgeinfer.scheduler.bursts import Pace
from tests.scheduler.support import Bench, alone


def _prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(512), k=length)


def test_tokens_come_in_bursts_but_the_first_two_alone() -> None:
    """The first comes with the end of the prompt, the second tells how long a token takes; the last burst is as long as the limit leaves."""
    bench = Bench()
    _, recorder = bench.submit(_prompt(20), 30, greedy=True)
    assert bench.run() == 1 + 1 + 4
    assert recorder.tokens == alone(_prompt(20), 30)
    assert recorder.bursts == [1] + [MAXIMUM_PASSES] * 3 + [28 - 3 * MAXIMUM_PASSES]
    assert bench.used == 0


def test_a_burst_takes_no_longer_than_it_may() -> None:
    pace = Pace(limit=32, seconds=0.02)
    assert pace.passes(1) == 1  # nothing is known yet
    pace.note(1, 0.0019, 1)
    assert pace.passes(1) == 10 and pace.passes(2) == 1  # two sequences together may be slower
    pace.note(1, 0.080, 10)
    assert pace.passes(1) == 2
    pace.note(1, 0.05, 1)
    assert pace.passes(1) == 1
    pace.note(1, 1e-6, 1)
    assert pace.passes(1) == 32


def test_a_backend_without_bursts_is_not_asked_for_any() -> None:
    def without(options: BackendOptions) -> FakeBackend:
        backend = FakeBackend(options)
        backend.capabilities = dataclasses.replace(backend.capabilities, maximum_passes=1)
        return backend

    bench = Bench(backend=without)
    _, recorder = bench.submit(_prompt(20), 30, greedy=True)
    assert bench.run() == 30 and not recorder.bursts
    assert recorder.tokens == alone(_prompt(20), 30)


@pytest.mark.parametrize("told", [True, False], ids=["end token", "stop text"])
@pytest.mark.parametrize("place", range(2, 20))
def test_an_end_within_a_burst_leaves_nothing_behind_it(place: int, told: bool) -> None:
    """What was computed for tokens after the end is not in the prefix cache, and what stands before it is."""
    prompt = _prompt(40, 1)
    expected = alone(prompt, 64)
    end = expected[place]
    assert end not in expected[:place]
    bench = Bench()
    _, recorder = bench.submit(prompt, 64, greedy=True, **{"end_ids" if told else "ends": [end]})
    bench.run()
    assert recorder.tokens == expected[: place + 1] and recorder.bursts
    continued = prompt + expected[:place] + [7] * 30
    again, answer = bench.submit(continued, 20, greedy=True)
    bench.run()
    assert again.cached_tokens == (40 + place) // 16 * 16
    assert answer.tokens == alone(continued, 20)


def test_pages_taken_for_a_burst_serve_what_follows_it() -> None:
    """One of two sequences ends every burst early; the other's pages are neither lost nor taken twice."""
    first, second = alone(_prompt(30, 1), 60), alone(_prompt(30, 2), 60)
    end = next(index for index in range(30, 60) if second[index] not in second[:index])
    assert first[9] not in second
    bench = Bench()
    _, one = bench.submit(_prompt(30, 1), 60, greedy=True)
    _, two = bench.submit(_prompt(30, 2), 60, greedy=True, end_ids=[first[9], second[end]])  # the former ends a burst, but neither sequence
    bench.run()
    assert one.tokens == first and two.tokens == second[: end + 1]
    assert bench.used == 0


def test_sampled_sequences_and_waiting_ones_get_their_steps() -> None:
    bench = Bench(sequences=2)
    _, sampled = bench.submit(_prompt(20, 1), 10)
    _, greedy = bench.submit(_prompt(20, 2), 40, greedy=True)
    for _ in range(6):
        bench.scheduler.step()
    assert not greedy.bursts and len(greedy.tokens) == len(sampled.tokens) == 6
    _, late = bench.submit(_prompt(20, 3), 10, greedy=True)
    while not sampled.finished:
        bench.scheduler.step()
    assert not greedy.bursts
    bench.run()
    assert greedy.bursts and late.bursts
    assert greedy.tokens == alone(_prompt(20, 2), 40) and late.tokens == alone(_prompt(20, 3), 10)


def test_a_new_sequence_is_not_kept_waiting_by_a_paused_one_nor_bursts_by_it() -> None:
    bench = Bench()
    _, scored = bench.submit(_prompt(200, 1), 0)
    bench.scheduler.step()
    scored.paused = True
    _, greedy = bench.submit(_prompt(20, 2), 30, greedy=True)
    while not greedy.finished:
        assert bench.scheduler.step()
    assert greedy.bursts and greedy.tokens == alone(_prompt(20, 2), 30)
    scored.paused = False
    bench.run()
    assert sorted(scored.logits) == list(range(200))


def test_too_few_pages_end_bursts_before_they_preempt() -> None:
    bench = Bench(context=96, sequences=2, cache_tokens=96, prefix_reuse=False)
    _, one = bench.submit(_prompt(30, 1), 18, greedy=True)
    _, two = bench.submit(_prompt(30, 2), 18, greedy=True)
    bench.run()
    assert bench.scheduler.state.preemptions == 0
    assert one.tokens == alone(_prompt(30, 1), 18) and two.tokens == alone(_prompt(30, 2), 18)


def test_an_interrupted_burst_ends_after_a_token() -> None:
    bench = Bench()
    _, recorder = bench.submit(_prompt(20), 60, greedy=True)
    for _ in range(3):
        bench.scheduler.step()
    bench.scheduler.interrupt_burst()
    bench.scheduler.step()
    bench.scheduler.step()
    assert recorder.bursts == [1, MAXIMUM_PASSES, 1, 1]
    bench.scheduler.allow_bursts()
    bench.run()
    assert recorder.bursts[4] == MAXIMUM_PASSES and recorder.tokens == alone(_prompt(20), 60)


def test_cancelling_between_bursts_gives_everything_back() -> None:
    bench = Bench()
    sequence, recorder = bench.submit(_prompt(20), 60, greedy=True)
    for _ in range(4):
        bench.scheduler.step()
    assert recorder.bursts
    bench.scheduler.cancel(sequence)
    bench.scheduler.check()
    assert bench.used == 0 and not bench.scheduler.has_work
    again, answer = bench.submit(_prompt(20) + recorder.tokens, 10, greedy=True)
    bench.run()
    assert again.cached_tokens == 32 and answer.tokens == alone(_prompt(20), 60)[len(recorder.tokens) :][:10]


class _Breaking(FakeBackend):
    """Breaks when a token is computed whose successor is `poison`, and then tells no token of the burst."""

    poison = -1

    def _pass(self, step: Step, rows: Any) -> Any:
        logits = super()._pass(step, rows)
        if self.poison in logits.argmax(axis=1):
            raise NonFiniteError("not finite")
        return logits

    def step(self, step: Step) -> StepOutputs:
        assert step.burst is None or np.all(step.burst.end_ids >= 0)
        return super().step(step)


def test_a_fault_within_a_burst_ends_its_own_sequence_alone_with_the_tokens_before_it() -> None:
    expected = alone(_prompt(30, 1), 40)
    bench = Bench(backend=_Breaking)
    bench.backend.poison = expected[13]  # type: ignore[attr-defined]
    assert expected[13] not in expected[:13] and expected[13] not in alone(_prompt(30, 2), 40)
    _, broken = bench.submit(_prompt(30, 1), 40, greedy=True)
    _, other = bench.submit(_prompt(30, 2), 40, greedy=True)
    bench.run()
    assert isinstance(broken.error, NonFiniteError) and broken.tokens == expected[:13]
    assert other.tokens == alone(_prompt(30, 2), 40) and other.bursts
    assert bench.used == 0


class DrawingBackend(FakeBackend):
    """The fake backend with draws, which are its largest logits; every `undecided`-th token it leaves to the caller."""

    def __init__(self, options: BackendOptions, undecided: int) -> None:
        super().__init__(options)
        self.capabilities = dataclasses.replace(self.capabilities, draws=True)
        self._undecided = undecided
        self._count = 0
        self.points: list[float] = []

    def step(self, step: Step) -> StepOutputs:
        if step.burst is None or step.burst.draws is None:
            return super().step(step)
        passes = next(count for count in range(1, step.burst.passes + 1) if count == step.burst.passes or (self._count + count) % self._undecided == 0)
        burst = dataclasses.replace(step.burst, passes=passes, draws=None)
        outputs = super().step(dataclasses.replace(step, burst=burst))
        assert outputs.largest is not None
        self._count += len(outputs.largest)
        self.points += step.burst.draws.uniforms[: len(outputs.largest), -1].tolist()
        largest = outputs.largest.copy()
        if self._count % self._undecided == 0:
            largest[-1, -1] = UNDECIDED
        return dataclasses.replace(outputs, largest=largest)


@pytest.mark.parametrize("undecided", [1, 2, 5, 1000])
def test_tokens_that_a_backend_leaves_undecided_are_chosen_from_the_logits(undecided: int) -> None:
    backends: list[DrawingBackend] = []

    def drawing(options: BackendOptions) -> DrawingBackend:
        backends.append(DrawingBackend(options, undecided))
        return backends[-1]

    bench = Bench(backend=drawing)
    _, greedy = bench.submit(_prompt(20, 1), 30, greedy=True)
    sequence, drawn = bench.submit(_prompt(25, 2), 30, greedy=True)
    drawn.drawn_with = SamplingParams(temperature=0.8)
    bench.run()
    assert greedy.tokens == alone(_prompt(20, 1), 30) and drawn.tokens == alone(_prompt(25, 2), 30)
    assert sum(drawn.bursts) + len(drawn.logits) == 30 and bool(drawn.bursts) == (undecided > 1)
    assert len(greedy.logits) <= 3, "the other sequence of a burst was shown nothing; a last token alone is no burst"
    points = [(7 * index % 10) / 10 for index in range(2, 30)]
    assert len(backends[0].points) >= 27 and backends[0].points == points[: len(backends[0].points)], "each token is drawn at its own point"
    assert bench.used == 0 and sequence.computed == 0


def test_a_backend_that_draws_nothing_is_not_asked_to() -> None:
    bench = Bench()
    _, recorder = bench.submit(_prompt(20), 10, greedy=True)
    recorder.drawn_with = SamplingParams(temperature=0.8)
    assert bench.run() == 10 and not recorder.bursts

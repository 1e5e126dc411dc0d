"""Bursts of our kernels through the engine: the same tokens, texts, events and cache as token by token, whatever ends or interrupts them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.numba.backend import MAXIMUM_PASSES
from edgeinfer.scheduler.bursts import Pace
from tests.support.tiny_models import tiny_gemma3, tiny_llama

CONTEXT = 160
MODELS: dict[str, Callable[..., Path]] = {"llama": tiny_llama, "gemma3": tiny_gemma3}  # the latter has windows


def _tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(33, 280), k=count)


class Steps:
    """An engine whose steps are counted, with bursts or without."""

    def __init__(self, path: Path, bursts: bool, **options: Any) -> None:
        fields = {"context": CONTEXT, "threads": 2, "maximum_sequences": 8, "cache_tokens": 8 * CONTEXT, **options}
        self.engine = Engine.load(path, **fields)
        self.scheduler = self.engine._loop.scheduler
        self.scheduler._pace = Pace(MAXIMUM_PASSES if bursts else 1)

    def count(self, call: Callable[[], Any]) -> tuple[Any, int]:
        before = self.scheduler.state.steps
        return call(), self.scheduler.state.steps - before


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Steps, Steps]]:
    path = MODELS[request.param](tmp_path_factory.mktemp("models") / "model.gguf")
    bursting, plain = Steps(path, True), Steps(path, False)
    yield bursting, plain
    for steps in (bursting, plain):
        steps.scheduler.check()
        steps.engine.close()


def _told(completion: Any) -> tuple[Any, ...]:
    return completion.text, completion.token_ids, completion.finish_reason, completion.usage


@pytest.mark.parametrize("count", [1, 2, 3, 40, 71])
def test_one_sequence(pair: tuple[Steps, Steps], count: int) -> None:
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    (one, burst_steps), (other, plain_steps) = (steps.count(lambda: steps.engine.generate(_tokens(20), params)) for steps in pair)  # noqa: B023
    assert _told(one) == _told(other)
    assert plain_steps == count and (burst_steps == count if count < 3 else burst_steps < count / 2 + 2)


def test_a_batch_whose_sequences_end_at_their_own_times(pair: tuple[Steps, Steps]) -> None:
    prompts = [_tokens(3 + 9 * number, number) for number in range(8)]
    params = [SamplingParams(max_tokens=5 + 9 * number, ignore_eos=True) for number in range(8)]
    (found, burst_steps), (expected, plain_steps) = (steps.count(lambda: steps.engine.generate_many(prompts, params)) for steps in pair)  # noqa: B023
    assert [_told(one) for one in found] == [_told(one) for one in expected]
    assert burst_steps < plain_steps / 2


def test_greedy_and_sampled_sequences_together(pair: tuple[Steps, Steps]) -> None:
    prompts = [_tokens(10 + number, 20 + number) for number in range(4)]
    params = [SamplingParams(max_tokens=30 + 10 * number, temperature=number % 2, seed=number, ignore_eos=True) for number in range(4)]
    found, expected = (steps.engine.generate_many(prompts, params) for steps in pair)
    assert [_told(one) for one in found] == [_told(one) for one in expected]


def test_the_end_of_the_context(pair: tuple[Steps, Steps]) -> None:
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    for length in (CONTEXT - 1, CONTEXT - 3, CONTEXT - 40):
        found, expected = (steps.engine.generate(_tokens(length, length), params) for steps in pair)
        assert _told(found) == _told(expected) and found.usage.completion_tokens == CONTEXT - length


def test_end_tokens_and_stop_texts_within_a_burst_and_what_is_reused_after_it(pair: tuple[Steps, Steps], monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = _tokens(30, 5)
    whole = pair[1].engine.generate(prompt, SamplingParams(max_tokens=60, ignore_eos=True))
    ends = sorted({index for index, token in enumerate(whole.token_ids) if token not in whole.token_ids[:index] and index > 2})
    for place in ends[:3]:
        monkeypatch.setattr(type(pair[0].engine.tokenizer), "end_of_generation_ids", frozenset([whole.token_ids[place]]))
        found, expected = (steps.engine.generate(prompt, SamplingParams(max_tokens=60)) for steps in pair)
        assert _told(found) == _told(expected) and found.token_ids == whole.token_ids[:place] and found.finish_reason == "stop"
        monkeypatch.undo()
        stop = pair[0].engine.detokenize(whole.token_ids[place : place + 2])
        found, expected = (steps.engine.generate(prompt, SamplingParams(max_tokens=60, stop=stop, ignore_eos=True)) for steps in pair)
        assert _told(found) == _told(expected)
        longer = [*prompt, *whole.token_ids[:place], *_tokens(40, place)]
        found, expected = (steps.engine.generate(longer, SamplingParams(max_tokens=20, ignore_eos=True)) for steps in pair)
        assert _told(found) == _told(expected) and found.usage.cached_tokens >= 16
        pair[0].scheduler.check()


def test_a_stream_has_an_event_for_each_token_in_order(pair: tuple[Steps, Steps]) -> None:
    params = SamplingParams(max_tokens=33, ignore_eos=True)
    found, expected = (list(steps.engine.stream(_tokens(12, 7), params)) for steps in pair)
    assert [(event.text, event.token_ids) for event in found] == [(event.text, event.token_ids) for event in expected]
    assert len(found) == 33 and found[-1].completion is not None


def test_dropping_a_stream_in_the_middle_and_closing_while_bursts_run(pair: tuple[Steps, Steps], tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    bursting, plain = pair
    expected = plain.engine.generate(_tokens(15, 9), params)
    for turn in range(5):
        stream = bursting.engine.stream(_tokens(15, 9), params)
        events = [next(stream) for _ in range(2 + 7 * turn)]
        stream.close()  # type: ignore[attr-defined]
        assert [event.token_ids[0] for event in events] == list(expected.token_ids[: len(events)])
    assert _told(bursting.engine.generate(_tokens(15, 9), params)) == _told(expected)


def test_threads_that_come_and_go_interrupt_each_other_and_change_nothing(pair: tuple[Steps, Steps]) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompts = [_tokens(10 + number, 40 + number) for number in range(6)]
    expected = [pair[1].engine.generate(prompt, params).token_ids for prompt in prompts]
    answers: dict[tuple[int, int], tuple[int, ...]] = {}

    def ask(number: int) -> None:
        for turn in range(4):
            answers[number, turn] = pair[0].engine.generate(prompts[number], params).token_ids

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {(number, turn): expected[number] for number in range(6) for turn in range(4)}

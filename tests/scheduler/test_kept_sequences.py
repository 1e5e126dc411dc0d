"""Prefix reuse over a backend with a cache of its own: who begins with what, who goes first, and that nothing is counted wrongly."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from edgeinfer.backends.base import BackendOptions
from edgeinfer.core.errors import NonFiniteError
from tests.scheduler.support import Bench, OwnCacheBackend, alone

PROMPT = list(range(100, 150))  # three full pages and two tokens


def _bench(kept: int = 3, poison: int | None = None, sequences: int = 4, cache_tokens: int | None = None, prefix_reuse: bool = True) -> Bench:
    return Bench(
        sequences=sequences, cache_tokens=cache_tokens, prefix_reuse=prefix_reuse, backend=lambda options: OwnCacheBackend(options, kept, poison)
    )


def _backend(bench: Bench) -> OwnCacheBackend:
    return cast(OwnCacheBackend, bench.backend)


def _answer(bench: Bench, tokens: list[int]) -> tuple[list[int], int | None]:
    sequence, recorder = bench.submit(tokens, 8)
    bench.run()
    return recorder.tokens, sequence.cached_tokens


def test_a_prompt_begins_with_what_an_ended_one_left() -> None:
    bench = _bench()
    assert _answer(bench, PROMPT) == (alone(PROMPT, 8), 0)
    assert _answer(bench, PROMPT) == (alone(PROMPT, 8), 48)
    assert _answer(bench, [*PROMPT[:40], 7, 8]) == (alone([*PROMPT[:40], 7, 8], 8), 32)  # whole pages
    assert _answer(bench, [1, *PROMPT]) == (alone([1, *PROMPT], 8), 0)


def test_an_answer_is_of_use_as_well() -> None:
    bench = _bench()
    conversation = [*PROMPT, *alone(PROMPT, 8)]
    _answer(bench, PROMPT)
    sequence, recorder = bench.submit(conversation + [5] * 20, 4)
    bench.run()
    assert sequence.cached_tokens == 48 and recorder.tokens == alone(conversation + [5] * 20, 4)


def test_a_running_sequence_gives_too_and_may_end_first() -> None:
    bench = _bench()
    first, short = bench.submit(PROMPT, 3)
    bench.scheduler.step()
    second, long = bench.submit([*PROMPT, 3, 4], 30)
    bench.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 48)
    assert short.tokens == alone(PROMPT, 3) and long.tokens == alone([*PROMPT, 3, 4], 30)


def test_the_least_recently_useful_goes_first() -> None:
    bench = _bench(kept=2)
    prompts = [[number] * 40 for number in range(3)]
    _answer(bench, prompts[0])
    _answer(bench, prompts[1])
    assert _answer(bench, prompts[0])[1] == 32  # the copy that it leaves takes the place of prompt 1
    assert len(_backend(bench).cells) == 2
    assert _answer(bench, prompts[1])[1] == 0


def test_kept_sequences_make_room_for_those_that_run() -> None:
    bench = _bench(cache_tokens=256)  # as much as one sequence may take
    _answer(bench, PROMPT)
    others = [[number + 1] * 60 for number in range(4)]
    recorders = [bench.submit(tokens, 20)[1] for tokens in others]
    bench.run()
    assert [recorder.tokens for recorder in recorders] == [alone(tokens, 20) for tokens in others]
    longest = [9] * 250
    assert _answer(bench, longest[:248])[0] == alone(longest[:248], 8)


def test_without_reuse_nothing_is_kept() -> None:
    bench = _bench(prefix_reuse=False)
    _answer(bench, PROMPT)
    assert _answer(bench, PROMPT)[1] == 0
    assert not _backend(bench).cells


def test_short_and_failed_sequences_are_not_kept() -> None:
    bench = _bench(poison=77)
    _answer(bench, [1, 2, 3])
    _, failed = bench.submit([*PROMPT, 77], 8)
    bench.run()
    assert isinstance(failed.error, NonFiniteError)
    assert not _backend(bench).cells
    assert _answer(bench, PROMPT) == (alone(PROMPT, 8), 0)


@pytest.mark.parametrize("kept", [1, 4])
def test_teacher_forcing_computes_every_position(kept: int) -> None:
    bench = _bench(kept)
    _answer(bench, PROMPT)
    sequence, recorder = bench.submit(PROMPT, 0)
    bench.run()
    assert sequence.cached_tokens == 0 and sorted(recorder.logits) == list(range(len(PROMPT)))


@pytest.mark.parametrize("cache_tokens", [1024, 256])
def test_over_a_backend_that_copies_pages_count_for_each(cache_tokens: int) -> None:
    def backend(options: BackendOptions) -> OwnCacheBackend:
        made = OwnCacheBackend(options, 3)
        made.capabilities = dataclasses.replace(made.capabilities, copies_prefixes=True)
        return made

    bench = Bench(sequences=4, cache_tokens=cache_tokens, backend=backend)
    for _ in range(4):
        assert _answer(bench, PROMPT)[0] == alone(PROMPT, 8)
        bench.scheduler.check()
    kept = list(bench.scheduler._kept or ())
    held = [page for sequence in kept for page in sequence.tables[0].held()]
    assert len(held) == len(set(held)) == bench.scheduler._pools[0].used and len(kept) == 3
    long = list(range(200, 430))  # nearly all of a small cache: what was kept has to go, and a donor for which there is no room as well
    assert _answer(bench, long)[0] == alone(long, 8)
    assert _answer(bench, [*long[:200], 9])[0] == alone([*long[:200], 9], 8)
    bench.scheduler.check()

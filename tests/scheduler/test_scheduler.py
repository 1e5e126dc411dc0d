"""The scheduler over the fake backend, whose answers are wrong as soon as a page is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgeinfer.backends.fake import FakeBackend
from edgeinfer.core.errors import ContextLengthError, NonFiniteError
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, OutputKind, Step, StepOutputs
from tests.scheduler.support import Bench, alone


def _prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(512), k=length)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 512])
@pytest.mark.parametrize("windows", [(), (20,), (1, 40)])
def test_chunks_and_windows_do_not_change_the_tokens(chunk: int, windows: tuple[int, ...]) -> None:
    bench = Bench(chunk=chunk, windows=windows)
    _, recorder = bench.submit(_prompt(100), 30)
    bench.run()
    assert recorder.tokens == alone(_prompt(100), 30)
    assert bench.used == 0


def test_a_batch_gives_every_sequence_its_solo_answer_and_ends_each_at_its_own_time() -> None:
    bench = Bench()
    limits = [1, 2, 3, 5, 8, 13, 40, 64]
    recorders = [bench.submit(_prompt(10 + 7 * number, number), limit)[1] for number, limit in enumerate(limits)]
    steps = bench.run()
    for number, (limit, recorder) in enumerate(zip(limits, recorders, strict=True)):
        assert recorder.tokens == alone(_prompt(10 + 7 * number, number), limit)
    assert steps < 75  # together, not one after the other
    assert bench.used == 0 and sorted(bench.backend.released) == list(range(8))  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(8))
def test_joining_and_leaving_at_random_times_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(chunk=chance.choice([5, 16, 64]), sequences=4, cache_tokens=chance.choice([None, 320]), windows=chance.choice([(), (24,)]))
    waiting = [(_prompt(chance.randint(1, 150), number % 5), chance.randint(1, 60)) for number in range(24)]
    running = []
    while waiting or bench.scheduler.has_work:
        if waiting and chance.random() < 0.2:
            tokens, limit = waiting.pop()
            running.append((tokens, limit, *bench.submit(tokens, limit)))
        if running and chance.random() < 0.02:
            bench.scheduler.cancel(running.pop(chance.randrange(len(running)))[2])
        bench.scheduler.step()
        bench.scheduler.check()
    assert all(recorder.tokens == alone(tokens, limit) for tokens, limit, _, recorder in running)
    assert bench.used == 0


def test_decoding_goes_on_while_a_long_prompt_is_computed_in_chunks() -> None:
    bench = Bench(context=4096, chunk=32)
    _, decoding = bench.submit(_prompt(5), 200)
    for _ in range(3):
        bench.scheduler.step()
    before = len(decoding.tokens)
    bench.submit(_prompt(1000), 1)
    for _ in range(20):
        bench.scheduler.step()
    assert len(decoding.tokens) == before + 20


def test_a_prompt_that_can_never_fit_is_refused_at_once_with_both_numbers() -> None:
    bench = Bench(context=1024, cache_tokens=256)
    assert bench.scheduler.context == 256  # 16 pages of 16 tokens
    with pytest.raises(ContextLengthError) as refusal:
        bench.submit(_prompt(400))
    assert (refusal.value.prompt_tokens, refusal.value.context) == (400, 256)
    _, recorder = bench.submit(_prompt(10), 4)
    bench.run()
    assert recorder.tokens == alone(_prompt(10), 4)


@pytest.mark.parametrize("prefix_reuse", [False, True])
@pytest.mark.parametrize("windows", [(), (30,)])
def test_too_many_sequences_for_the_pages_are_preempted_and_give_the_same_tokens(prefix_reuse: bool, windows: tuple[int, ...]) -> None:
    bench = Bench(context=256, cache_tokens=256, windows=windows, prefix_reuse=prefix_reuse)
    started = [(number, bench.submit(_prompt(60 + number, number), 100)[1]) for number in range(20)]
    bench.run()
    for number, recorder in started:
        assert recorder.tokens == alone(_prompt(60 + number, number), 100)
    assert bench.scheduler.state.preemptions > 0
    assert bench.used == 0


def test_preemption_hits_the_youngest() -> None:
    bench = Bench(context=256, cache_tokens=256, prefix_reuse=False)
    old, _ = bench.submit(_prompt(100, 1), 100)
    young, _ = bench.submit(_prompt(100, 2), 100)
    bench.run()
    assert old.preemptions == 0 and young.preemptions > 0


def test_a_sequence_fills_the_context_to_the_last_place() -> None:
    bench = Bench(context=64, cache_tokens=64)
    _, recorder = bench.submit(_prompt(20), 44)
    bench.run()
    assert recorder.tokens == alone(_prompt(20), 44)


@pytest.mark.parametrize("chunk", [7, 64, 200])
def test_teacher_forcing_delivers_every_position_once_and_caps_the_output_rows(chunk: int) -> None:
    bench = Bench(chunk=chunk)
    tokens = _prompt(150)
    _, scored = bench.submit(tokens, 0)
    _, decoding = bench.submit(_prompt(30, 9), 10)
    bench.run()
    assert sorted(scored.logits) == list(range(150))
    rule = bench.backend._rule  # type: ignore[attr-defined]
    assert [int(np.argmax(scored.logits[position])) for position in range(150)] == [rule(tokens[: position + 1]) for position in range(150)]
    assert decoding.tokens == alone(_prompt(30, 9), 10)


def test_a_step_never_asks_for_more_rows_or_outputs_than_allowed() -> None:
    class Counting(FakeBackend):
        def step(self, step: Step) -> StepOutputs:
            assert step.rows <= 200
            assert np.count_nonzero(step.outputs == OutputKind.LOGITS) <= MAXIMUM_OUTPUT_ROWS
            for index in range(len(step.sequences)):
                slots = step.slots[step.sequence == index]
                assert slots[0] == step.sequences[index].start and (np.diff(slots) == 1).all()
            assert (np.diff(step.sequence) >= 0).all()
            return super().step(step)

    bench = Bench(chunk=200, backend=Counting)
    recorders = [bench.submit(_prompt(120, number), 0)[1] for number in range(3)] + [bench.submit(_prompt(9, number), 20)[1] for number in range(5)]
    bench.run()
    assert all(recorder.finished for recorder in recorders)


def test_a_paused_sequence_waits_without_holding_up_others() -> None:
    bench = Bench()
    _, paused = bench.submit(_prompt(200), 0)
    bench.scheduler.step()
    paused.paused = True
    _, other = bench.submit(_prompt(10), 5)
    bench.run()
    assert other.finished and not paused.finished
    paused.paused = False
    bench.run()
    assert sorted(paused.logits) == list(range(200))


def test_a_paused_sequence_gives_its_pages_to_others_and_goes_on_later() -> None:
    bench = Bench(context=256, cache_tokens=256)
    paused_sequence, paused = bench.submit(_prompt(250), 0)
    for _ in range(3):
        bench.scheduler.step()
    paused.paused = True
    _, other = bench.submit(_prompt(100, 3), 50)
    bench.run()
    assert other.tokens == alone(_prompt(100, 3), 50)
    paused.paused = False
    bench.run()
    assert sorted(paused.logits) == list(range(250)) and paused_sequence.preemptions == 1


@pytest.mark.parametrize("windows", [(), (40,)])
def test_a_known_prefix_is_not_computed_again(windows: tuple[int, ...]) -> None:
    bench = Bench(windows=windows)
    prompt = _prompt(100)
    first, recorder = bench.submit(prompt, 10)
    bench.run()
    assert first.cached_tokens == 0
    answers = [
        (prompt, 96),  # whole pages of 16, never the last token
        (prompt[:-1], 96),
        (prompt[:96], 80),
        (prompt[:97], 96),
        (prompt + recorder.tokens + [1, 2, 3], 96),
        (prompt[:50] + [511] + prompt[51:], 48),
        ([7, *prompt], 0),
    ]
    for tokens, cached in answers:
        sequence, again = bench.submit(tokens, 10)
        bench.run()
        assert again.tokens == alone(tokens, 10)
        assert sequence.cached_tokens == (cached if not windows or cached >= 80 else sequence.cached_tokens)
    assert bench.used == 0


def test_two_sequences_share_the_pages_of_a_prefix_while_both_run() -> None:
    bench = Bench()
    prompt = _prompt(96)
    bench.submit(prompt, 50)
    bench.scheduler.step()
    bench.scheduler.step()
    second, recorder = bench.submit([*prompt, 5], 50)
    bench.scheduler.step()
    assert second.cached_tokens == 96
    assert bench.used < 2 * 6
    bench.run()
    assert recorder.tokens == alone([*prompt, 5], 50)


def test_teacher_forcing_takes_nothing_from_the_cache() -> None:
    bench = Bench()
    bench.submit(_prompt(100), 1)
    bench.run()
    sequence, recorder = bench.submit(_prompt(100), 0)
    bench.run()
    assert sequence.cached_tokens == 0 and len(recorder.logits) == 100


class Poisoned(FakeBackend):
    """Fails with the token 13 in a step."""

    def step(self, step: Step) -> StepOutputs:
        outputs = super().step(step)
        if 13 in step.token_ids:
            raise NonFiniteError("a NaN")
        return outputs


def test_an_overflow_ends_only_the_sequence_that_has_it() -> None:
    bench = Bench(backend=lambda options: Poisoned(options, rule=lambda tokens: 100 + len(tokens)))
    recorders = [bench.submit(tokens, 5)[1] for tokens in ([1, 2, 3], [1, 13, 3], [4, 5])]
    bench.run()
    assert isinstance(recorders[1].error, NonFiniteError)
    assert recorders[0].tokens == [103, 104, 105, 106, 107] and recorders[2].tokens == [102, 103, 104, 105, 106]
    assert bench.used == 0


def test_a_broken_consumer_ends_only_its_own_sequence() -> None:
    bench = Bench()
    _, broken = bench.submit(_prompt(20), 10)
    _, whole = bench.submit(_prompt(20, 1), 10)
    broken.rows = None  # type: ignore[assignment, method-assign]
    bench.run()
    assert isinstance(broken.error, TypeError) and whole.finished and bench.used == 0


def test_any_other_error_of_a_step_reaches_its_sequences_and_the_next_request_works() -> None:
    class Once(FakeBackend):
        failures = 1

        def step(self, step: Step) -> StepOutputs:
            if self.failures:
                self.failures -= 1
                raise OSError("gone")
            return super().step(step)

    bench = Bench(backend=Once)
    _, first = bench.submit(_prompt(20), 10)
    bench.run()
    _, second = bench.submit(_prompt(20), 10)
    bench.run()
    assert isinstance(first.error, OSError) and second.tokens == alone(_prompt(20), 10)


def test_the_context_shrinks_to_what_the_pages_hold_and_windows_need_less() -> None:
    assert Bench(context=4096, cache_tokens=1024).scheduler.context == 1024
    windowed = Bench(context=4096, cache_tokens=1024, chunk=64, windows=(100,))
    assert windowed.scheduler.context == 1024

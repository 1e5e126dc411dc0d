"""Steps that nobody wants any more: a backend that can end them early is told, and steps that others share go on."""

from __future__ import annotations

import threading
import time

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.fake import FakeBackend
from edgeinfer.core.errors import StepAbortedError
from edgeinfer.core.steps import Step, StepOutputs
from edgeinfer.scheduler import Scheduler, Sequence
from tests.engine.support import ByteTokenizer
from tests.scheduler.support import Recorder, alone

SHORT = SamplingParams(max_tokens=5, ignore_eos=True)
LONG_STEP = 20.0  # seconds; the tests wait for a step's early end, so they only fail slowly


class PatientBackend(FakeBackend):
    """While `blocked`, a step of more than `rows` rows takes long, unless it is aborted."""

    def __init__(self, options: BackendOptions, rows: int = 8) -> None:
        super().__init__(options)
        self.rows = rows
        self.blocked = threading.Event()
        self.entered = threading.Event()
        self.aborted = 0

    def step(self, step: Step) -> StepOutputs:
        assert step.abort is not None
        end = time.monotonic() + LONG_STEP
        if step.rows > self.rows:
            self.entered.set()
        while step.rows > self.rows and self.blocked.is_set() and time.monotonic() < end:
            if step.abort[0]:
                self.aborted += 1
                raise StepAbortedError("ended")
            time.sleep(0.001)
        return super().step(step)


def _engine() -> tuple[Engine, PatientBackend]:
    backend = PatientBackend(BackendOptions(context=512, maximum_step_rows=128, maximum_sequences=4))
    return Engine(backend, ByteTokenizer()), backend


def test_a_dropped_stream_ends_its_step_and_the_engine_goes_on() -> None:
    engine, backend = _engine()
    with engine:
        expected = engine.generate([1, 2, 3], SHORT).token_ids
        whole = engine.generate([7] * 100, SHORT).token_ids
        backend.entered.clear()
        backend.blocked.set()
        stream = engine.stream([9] * 100, SHORT)
        assert backend.entered.wait(LONG_STEP)
        began = time.monotonic()
        stream.close()
        assert engine.generate([1, 2, 3], SHORT).token_ids == expected
        assert time.monotonic() - began < LONG_STEP / 2 and backend.aborted == 1
        backend.blocked.clear()
        assert engine.generate([7] * 100, SHORT).token_ids == whole
        engine._loop.scheduler.check()


def test_closing_ends_the_step_that_runs() -> None:
    engine, backend = _engine()
    backend.blocked.set()
    stream = engine.stream([9] * 100, SHORT)
    assert backend.entered.wait(LONG_STEP)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < LONG_STEP / 2 and backend.aborted == 1
    del stream


def test_a_step_that_others_share_goes_on() -> None:
    engine, backend = _engine()
    with engine:
        expected = engine.generate([5] * 60, SHORT).token_ids
        backend.blocked.set()
        first = engine.stream([9] * 200, SHORT)
        assert backend.entered.wait(LONG_STEP)
        second = engine.stream([5] * 60, SHORT)
        backend.blocked.clear()
        tokens = [token for event in second for token in event.token_ids]
        first.close()
        assert tuple(tokens) == expected and backend.aborted == 0


def test_a_step_that_was_ended_for_nobody_is_run_again() -> None:
    backend = PatientBackend(BackendOptions(context=512, maximum_step_rows=64, maximum_sequences=4))
    scheduler = Scheduler(backend)
    prompt = list(range(1, 41))
    recorder = Recorder(6)
    sequence = Sequence(0, list(prompt), len(prompt) - 1, recorder)
    scheduler.submit(sequence)
    backend.blocked.set()
    scheduler.abandon(sequence)  # not in a step: nothing to end
    scheduler.abandon()
    assert scheduler.step() and backend.aborted == 1 and sequence.computed == 0
    scheduler.allow_bursts()
    backend.blocked.clear()
    while scheduler.step():
        pass
    assert recorder.tokens == alone(prompt, 6)
    scheduler.check()


def test_only_the_sequence_of_the_step_ends_it() -> None:
    backend = PatientBackend(BackendOptions(context=512, maximum_step_rows=64, maximum_sequences=4))
    scheduler = Scheduler(backend)
    sequences = [Sequence(number, [number + 1] * 4, 3, Recorder(1)) for number in range(2)]
    flags: list[int] = []
    real = backend.step

    def step(record: Step) -> StepOutputs:
        for sequence in sequences:
            scheduler.abandon(sequence)
        assert record.abort is not None
        flags.append(int(record.abort[0]))
        return real(record)

    backend.step = step  # type: ignore[method-assign]
    for sequence in sequences:
        scheduler.submit(sequence)
    scheduler.step()
    assert flags == [0]
    scheduler.submit(Sequence(2, [3, 4], 1, Recorder(1)))
    sequences.append(scheduler._waiting[0])
    scheduler.step()
    assert flags == [0, 1]

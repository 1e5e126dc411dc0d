"""Threads, closing, dropping, forking and the end of the interpreter."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.fake import FakeBackend
from edgeinfer.core.errors import EngineClosedError
from edgeinfer.core.steps import Step, StepOutputs
from tests.engine.support import fake_engine
from tests.support.tiny_models import tiny_llama

LONG = SamplingParams(max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


class SlowBackend(FakeBackend):
    """A step takes a few milliseconds, as in life."""

    def step(self, step: Step) -> StepOutputs:
        time.sleep(0.005)
        return super().step(step)


def _wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()


def _used(engine: Engine) -> int:
    state = engine._loop.scheduler.state
    return state.running + state.waiting + sum(state.pages_used.values())


def test_threads_get_the_answers_that_they_get_alone() -> None:
    prompts = [[number, 7, number] * (number + 1) for number in range(8)]
    with fake_engine() as engine:
        solo = [engine.generate(prompt, SHORT).token_ids for prompt in prompts]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                jobs = [pool.submit(engine.generate, prompt, SHORT) for prompt in prompts]
                streams = [pool.submit(lambda prompt: list(engine.stream(prompt, SHORT)), prompt) for prompt in prompts]
                scores = pool.submit(engine.logits, [1] * 70)
                pool.submit(engine.tokenize, "meanwhile")
                assert [job.result().token_ids for job in jobs] == solo
                assert [stream.result()[-1].completion.token_ids for stream in streams] == solo  # type: ignore[union-attr]
                assert scores.result().shape == (70, 512)
        assert _wait_until(lambda: _used(engine) == 0)


def test_requests_of_several_threads_share_steps() -> None:
    with fake_engine(backend=SlowBackend) as engine:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda number: engine.generate([number], SamplingParams(max_tokens=30, ignore_eos=True)), range(6)))
        assert engine._loop.scheduler.state.steps < 6 * 30 / 2


def test_two_streams_advance_alternately_in_one_thread() -> None:
    with fake_engine() as engine:
        alone = [[event.text for event in engine.stream([number], SHORT)] for number in (1, 2)]
        first, second = engine.stream([1], SHORT), engine.stream([2], SHORT)
        pairs = list(zip(first, second, strict=True))
    assert [[one.text for one, _ in pairs], [two.text for _, two in pairs]] == alone


def test_a_dropped_stream_frees_its_sequence() -> None:
    with fake_engine(backend=SlowBackend) as engine:
        stream = engine.stream([1, 2], LONG)
        next(stream)
        assert _used(engine) > 0
        del stream
        assert _wait_until(lambda: _used(engine) == 0)
        closed = engine.stream([1, 2], LONG)
        next(closed)
        closed.close()  # type: ignore[attr-defined]
        with pytest.raises(StopIteration):
            next(closed)
        assert _wait_until(lambda: _used(engine) == 0)
        blocks = engine.iterate_logits([1] * 250)
        next(blocks)
        del blocks
        assert _wait_until(lambda: _used(engine) == 0)
        assert engine._loop.scheduler.state.steps < 100


def test_scores_that_nobody_takes_are_not_computed_ahead() -> None:
    with fake_engine() as engine:
        blocks = engine.iterate_logits([1] * 250)
        time.sleep(0.05)
        assert engine._loop.scheduler.state.steps == 1
        assert engine.generate([3], SHORT).usage.completion_tokens == 5  # others are not held up
        assert sum(len(block) for _, block in blocks) == 250


def test_closing_ends_running_requests_with_a_clear_error() -> None:
    engine = fake_engine(backend=SlowBackend)
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    calls = [lambda: engine.generate([1], LONG), lambda: list(engine.stream([2], LONG)), lambda: engine.generate_many([[3], [4]], LONG)]
    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    assert _wait_until(lambda: engine._loop.scheduler.state.running == 4)
    closers = [threading.Thread(target=engine.close) for _ in range(3)]
    for thread in closers + threads:
        if thread in closers:
            thread.start()
    for thread in closers + threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(errors) == 3 and all(isinstance(error, EngineClosedError) for error in errors)


def test_use_after_close_is_a_clear_error_and_closing_again_is_nothing() -> None:
    engine = fake_engine()
    stream = engine.stream([1], LONG)
    engine.close()
    engine.close()
    assert engine.closed
    calls: list[Callable[[], object]] = [
        lambda: engine.generate([1]),
        lambda: engine.stream([1]),
        lambda: engine.generate_many([[1]]),
        lambda: engine.chat([{"role": "user", "content": "hi"}]),
        lambda: engine.logits([1]),
        lambda: engine.iterate_logits([1]),
        lambda: engine.tokenize("a"),
        lambda: engine.detokenize([1]),
        lambda: list(stream),
    ]
    for call in calls:
        with pytest.raises(EngineClosedError):
            call()


def test_an_engine_that_is_dropped_gives_everything_back() -> None:
    threads = threading.active_count()
    for _ in range(20):
        engine = fake_engine()
        engine.generate([1], SHORT)
        backend = weakref.ref(engine._backend)
        cycle = [engine]
        cycle.append(cycle)  # type: ignore[arg-type]
        del engine, cycle
        gc.collect()
        assert _wait_until(lambda: backend() is None or backend()._closed)  # type: ignore[attr-defined]  # noqa: B023
    assert _wait_until(lambda: threading.active_count() == threads)


def test_a_stream_keeps_its_engine_alive() -> None:
    stream = fake_engine().stream([1], SHORT)
    gc.collect()
    assert len(list(stream)) == 5


def test_an_idle_engine_uses_no_processor_time() -> None:
    with fake_engine() as engine:
        engine.generate([1], SHORT)
        blocks = engine.iterate_logits([1] * 200)  # paused: work that waits for its reader
        time.sleep(0.02)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1
        del blocks


def test_a_defect_in_the_engine_reaches_the_caller_instead_of_hanging_it() -> None:
    engine = fake_engine()

    def broken() -> bool:
        raise AssertionError("a defect")

    engine._loop.scheduler.step = broken  # type: ignore[method-assign]
    with pytest.raises((AssertionError, EngineClosedError)):
        engine.generate([1], SHORT)
    with pytest.raises(EngineClosedError):
        engine.generate([1], SHORT)
    engine.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error_and_the_parent_goes_on() -> None:
    with fake_engine() as engine:
        engine.generate([1], SHORT)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                engine.generate([1], SHORT)
                os.write(writer, b"no error")
            except EngineClosedError as error:
                os.write(writer, str(error).encode())
            finally:
                engine.close()
                os._exit(0)
        os.close(writer)
        message = os.read(reader, 1000).decode()
        os.close(reader)
        os.waitpid(child, 0)
        assert "fork" in message and str(os.getpid()) in message
        assert len(engine.generate([1], SHORT).token_ids) == 5


_EXITS = {
    "without close": "",
    "half-consumed stream": "stream = engine.stream([2], LONG); next(stream)",
    "a cycle": "cycle = [engine]; cycle.append(cycle)",
    "a thread in the middle": """
import threading, time
threading.Thread(target=lambda: engine.generate([1], LONG), daemon=True).start()
while not engine._loop.scheduler.has_work:
    time.sleep(0.001)
""",
    "scores half taken": "blocks = engine.iterate_logits([1] * 200); next(blocks)",
    "an atexit user": "import atexit; atexit.register(lambda: print('end'))",
    "sys.exit in a thread": "import threading, sys; threading.Thread(target=lambda: sys.exit(3)).start()",
}


_SLOW_ENGINE = "from tests.engine.test_lifetime import SlowBackend; engine = fake_engine(backend=SlowBackend)"
_REAL_ENGINE = "from edgeinfer import Engine; engine = Engine.load({path!r}, context=256, threads=2)"


@pytest.mark.parametrize("case", _EXITS)
@pytest.mark.parametrize("load", [_SLOW_ENGINE, _REAL_ENGINE], ids=["slow fake", "numba"])
def test_the_interpreter_ends_quietly(case: str, load: str, tmp_path: Path) -> None:
    """Also when kernels run on threads of their own: nothing may be printed, whatever was left unfinished."""
    if load == _REAL_ENGINE:
        path = tiny_llama(tmp_path / "tiny.gguf")
        Engine.load(path, context=256, threads=2).close()  # compiles what is missing, so that only the end is measured below
        load = load.format(path=str(path))
    program = f"""
from edgeinfer import SamplingParams
from tests.engine.support import fake_engine
LONG = SamplingParams(max_tokens=200, ignore_eos=True)
{load}
engine.generate([1], SamplingParams(max_tokens=2))
{_EXITS[case]}
"""
    start = time.monotonic()
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", program], cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 30


def test_importing_the_package_is_light() -> None:
    program = """
import sys
import edgeinfer
from edgeinfer import Engine, SamplingParams
heavy = {"numba", "llvmlite", "llama_cpp", "tokenizers", "jinja2", "onnxruntime", "rich", "typer"} & set(sys.modules)
print(sorted(heavy), edgeinfer.__version__ != "")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[] True"


def test_an_engine_is_neither_pickled_nor_copied_and_says_why() -> None:
    with fake_engine() as engine:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="load one in each process"):
                attempt(engine)
        assert not engine.closed

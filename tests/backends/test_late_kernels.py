"""Kernels that only some bursts need: loading does not wait for them, answers are the same while they are compiled, afterwards, and where that fails."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.numba import backend as backend_module
from edgeinfer.backends.numba.burst_ends import DRAWING_KERNELS, SCREENING_KERNELS
from edgeinfer.core.announcements import background
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.tape import Tape
from kernels_numba.executor.workers import WorkerPool
from tests.support.tiny_models import tiny_llama

PROMPT = [5, 9, 11]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=24, temperature=0.8, top_k=20, seed=1, ignore_eos=True)
CASES = {"bounds": (GREEDY, SCREENING_KERNELS), "draws": (DRAWN, DRAWING_KERNELS)}


@pytest.fixture(name="model", scope="module")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama.gguf", weight_format="Q8_0", tied=True)


class SlowCompiler:
    """A store whose kernels of `late` are missing until they are compiled, which lasts until `finish`. What it holds is found in the common folder."""

    def __init__(self, store: KernelStore, late: tuple[KernelName, ...]) -> None:
        self.store = store
        self.late = set(late)
        self.finish = threading.Event()
        self.failure: Exception | None = None
        self._find, self._load = store._find, store._load
        store._find = self._found  # type: ignore[method-assign]
        store._load = self._loaded  # type: ignore[method-assign, assignment]

    def _found(self, kernel: KernelName, folders: object) -> object:
        return None if kernel in self.late else self._find(kernel, folders)  # type: ignore[arg-type]

    def _loaded(self, kernels: list[KernelName], compiling: Callable[[int], object]) -> None:
        if self.late.intersection(kernels):
            with compiling(len(kernels)):  # type: ignore[attr-defined]
                assert self.finish.wait(60)
            if self.failure is not None:
                raise self.failure
            self.late.clear()
        self._load(kernels, compiling)  # type: ignore[arg-type]


@pytest.fixture(name="compiler", params=CASES)
def compiler_fixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowCompiler]:
    """Of a store of its own, which the backend takes."""
    common = backend_module.kernel_store(backend_module.choose_level())
    store = KernelStore(common.level, common.directory.parent if common.directory is not None else None, 2)
    monkeypatch.setattr(backend_module, "kernel_store", lambda level: store)
    compiler = SlowCompiler(store, CASES[request.param][1])
    yield compiler
    compiler.finish.set()
    if store._late is not None:
        store._late.join()


@pytest.fixture(name="tapes")
def tapes_fixture(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """The tapes of all steps that run."""
    taken: list[Tape] = []
    run = WorkerPool.run

    def noted(pool: WorkerPool, tape: Tape, *arguments: object) -> object:
        taken.append(tape)
        return run(pool, tape, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkerPool, "run", noted)
    return taken


def has(tape: Tape, kernels: tuple[KernelName, ...]) -> bool:
    return set(kernels) <= {entry.kernel for entry in tape.entries}


@pytest.mark.parametrize("engine_options", [{}, {"threads": 1}], ids=["two workers", "one"])
def test_answers_go_on_while_kernels_are_compiled_and_are_the_same(
    model: Path, compiler: SlowCompiler, tapes: list[Tape], engine_options: dict[str, int], request: pytest.FixtureRequest
) -> None:
    params, kernels = CASES[request.node.callspec.params["compiler"]]
    with Engine.load(model, context=64, **{"threads": 2, **engine_options}) as engine:  # type: ignore[arg-type]
        assert compiler.store._late is None and background() == ()
        before = engine.generate(PROMPT, params).token_ids
        assert compiler.store._late is not None and compiler.store._late.is_alive()
        assert background() == (f"compiling {len(kernels)} more kernels for {compiler.store.level.name}",)
        assert not any(has(tape, kernels) for tape in tapes)
        compiler.finish.set()
        compiler.store._late.join()
        assert background() == ()
        assert engine.generate(PROMPT, params).token_ids == before
        assert has(tapes[-1], kernels) or has(tapes[-2], kernels)


def test_an_engine_can_be_closed_while_they_are_compiled(model: Path, compiler: SlowCompiler, request: pytest.FixtureRequest) -> None:
    with Engine.load(model, context=64) as engine:
        engine.generate(PROMPT, CASES[request.node.callspec.params["compiler"]][0])
    assert engine.closed and compiler.store._late is not None and compiler.store._late.is_alive()


def test_a_child_forked_meanwhile_can_load_a_model(model: Path, compiler: SlowCompiler, request: pytest.FixtureRequest) -> None:
    with Engine.load(model, context=64) as engine:
        engine.generate(PROMPT, CASES[request.node.callspec.params["compiler"]][0])
        assert compiler.store._late is not None and compiler.store._late.is_alive()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a deadlock ends as a signal
            with Engine.load(model, context=64) as other:
                os._exit(len(other.generate(PROMPT, SamplingParams(max_tokens=1, temperature=0.0)).token_ids))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_where_they_cannot_be_compiled_a_warning_says_so_and_answers_go_on(
    model: Path, compiler: SlowCompiler, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    said: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda message, **options: said.append(str(message)))
    params, kernels = CASES[request.node.callspec.params["compiler"]]
    with Engine.load(model, context=64) as engine:
        before = engine.generate(PROMPT, params).token_ids
        compiler.failure = MemoryError("none left")
        compiler.finish.set()
        assert compiler.store._late is not None
        compiler.store._late.join()
        assert engine.generate(PROMPT, params).token_ids == before
    assert said == [f"{len(kernels)} kernels could not be compiled, and are done without: MemoryError('none left')"]


def test_prewarm_makes_them_while_loading(model: Path, tapes: list[Tape]) -> None:
    with Engine.load(model, context=64, prewarm=True) as engine:
        for params, kernels in CASES.values():
            engine.generate(PROMPT, params)
            assert any(has(tape, kernels) for tape in tapes)
            tapes.clear()

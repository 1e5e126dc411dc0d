"""Loading: options, defaults, warnings, and what is refused, each with a typed error that says what to do."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.core.errors import BackendUnavailableError, ContextLengthError, InvalidRequestError, ModelFileError, ModelNotFoundError
from tests.engine.support import fake_engine
from tests.engine.test_lifetime import SlowBackend
from tests.support.tiny_models import tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_the_default_context_is_what_the_file_was_trained_for_but_at_most_4096(tmp_path: Path) -> None:
    for trained, context in ((256, 256), (4096, 4096), (131_072, 4096)):
        with Engine.load(tiny_llama(tmp_path / f"{trained}.gguf", context_length=trained), backend="fake") as engine:
            assert engine.context == context and engine.warnings == ()


def test_a_context_above_the_trained_one_is_allowed_with_a_warning(model: Path) -> None:
    with Engine.load(model, backend="fake", context=1000) as engine:
        assert engine.context == 1000
        assert any("1000" in warning and "256" in warning for warning in engine.warnings)


def test_a_scaled_context_is_within_what_the_model_was_trained_for(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 128}
    path = tiny_llama(tmp_path / "scaled.gguf", context_length=128, metadata=scaling)
    for asked, context, warnings in ((None, 512, 0), (512, 512, 0), (513, 513, 1)):
        with Engine.load(path, backend="fake", context=asked) as engine:
            assert (engine.context, len(engine.warnings)) == (context, warnings)


def test_options_reach_the_backend(model: Path) -> None:
    with Engine.load(str(model), "fake", 100, 1, chunk=17, cache_tokens=64, maximum_sequences=3, cache_type="f32") as engine:
        assert engine.capabilities.maximum_step_rows == 17 and engine.capabilities.maximum_sequences == 3
        assert engine.context == 64 and any("64" in warning for warning in engine.warnings)
        with pytest.raises(ContextLengthError):
            engine.generate([65] * 64)


def test_prefixes_are_not_reused_if_so_asked(model: Path) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    with Engine.load(model, backend="fake") as reusing, Engine.load(model, backend="fake", prefix_reuse=False) as computing:
        answers = [engine.generate([65] * 50, params) for engine in (reusing, reusing, computing, computing)]
    assert [answer.usage.cached_tokens for answer in answers] == [0, 48, 0, 0]
    assert len({answer.token_ids for answer in answers}) == 1


def test_loading_reports_its_progress(model: Path) -> None:
    seen: list[tuple[int, int]] = []
    with Engine.load(model, threads=1, progress=lambda done, total: seen.append((done, total))):
        pass
    assert seen and seen == sorted(seen) and seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": 0}, {"context": 1}, {"context": -4}, {"context": 1.5}, {"context": "4096"}, {"context": True}, {"threads": 0}, {"threads": -1},
        {"chunk": 0}, {"cache_tokens": 0}, {"maximum_sequences": 0}, {"cache_type": "q4_0"},
    ],
)  # fmt: skip
def test_options_that_cannot_be_honoured_are_refused_by_name(model: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        Engine.load(model, backend="fake", **wrong)


def test_unknown_options_are_a_type_error(model: Path) -> None:
    for wrong in ({"n_ctx": 512}, {"gpu_layers": 3}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            Engine.load(model, backend="fake", **wrong)  # type: ignore[arg-type]


def test_an_unknown_backend_is_refused_with_those_there_are(model: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"cuda.*numba"):
        Engine.load(model, backend="cuda")


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        Engine.load(tmp_path / "none.gguf", backend="fake")


def test_a_damaged_file_is_refused_and_leaves_nothing_behind(tmp_path: Path, model: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(model.read_bytes()[:3000])
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for backend in ("fake", "numba"):
        with pytest.raises(ModelFileError):
            Engine.load(damaged, backend=backend)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)


def test_the_oracle_is_refused_with_the_remedy_where_its_library_is_missing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.backends import llamacpp_library

    real_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("llama_cpp"):
            raise ImportError("No module named 'llama_cpp'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(llamacpp_library, "_library", None)
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BackendUnavailableError, match=r"pip install 'edgeinfer\[llamacpp\]'"):
        Engine.load(model, backend="llamacpp")


@pytest.mark.llamacpp
def test_the_oracle_says_what_it_is_and_refuses_an_instruction_set(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Engine.load(model, backend="llamacpp", threads=1, cache_type="f32") as engine:
        description = engine.capabilities.description
        assert "llama-cpp-python 0." in description and "f32 cache" in description and "flash attention off" in description
        engine.generate([65], SamplingParams(max_tokens=2))
    with pytest.raises(InvalidRequestError, match="instruction_set"):
        Engine.load(model, backend="llamacpp", instruction_set="avx2")
    assert capfd.readouterr() == ("", "")


@pytest.mark.llamacpp
def test_a_file_that_llama_cpp_refuses_is_refused_with_its_words(tmp_path: Path) -> None:
    strange = tiny_llama(tmp_path / "strange.gguf", tensors={"blk.1.attn_q.weight": None})
    with pytest.raises(ModelFileError, match="attn_q"):
        Engine.load(strange, backend="llamacpp", threads=1)


@pytest.mark.parametrize("call", ["generate", "stream", "logits"])
def test_an_interrupt_reaches_a_waiting_caller_and_frees_its_sequence(call: str) -> None:
    params = SamplingParams(max_tokens=240, ignore_eos=True)
    with fake_engine(backend=SlowBackend, context=4096) as engine:
        calls: dict[str, Callable[[], object]] = {
            "generate": lambda: engine.generate([1], params),
            "stream": lambda: list(engine.stream([1], params)),
            "logits": lambda: engine.logits([1] * 4000),
        }
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            calls[call]()
        timer.join()
        end = time.monotonic() + 5
        while engine._loop.scheduler.has_work and time.monotonic() < end:
            time.sleep(0.005)
        assert not engine._loop.scheduler.has_work
        assert engine.generate([1], SamplingParams(max_tokens=2, ignore_eos=True)).usage.completion_tokens == 2

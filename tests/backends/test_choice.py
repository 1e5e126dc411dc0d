"""`--backend auto`: by measurement where there is one, numba where there is none, and never a choice without its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import Engine
from edgeinfer.backends import choice
from edgeinfer.backends.choice import Measurement, Speed, candidates, keep, kept, measurement_file, parse_backends
from edgeinfer.core.errors import BackendUnavailableError, InvalidRequestError, MemoryPlanError, UnknownChoiceError
from edgeinfer.gguf.reader import GGUFFile
from tests.support.tiny_models import tiny_gemma3, tiny_llama

FAST_PROMPTS = Measurement("tiny", 1, "2030-01-02T03:04:05+00:00", {"numba": Speed(0.001, 0.02), "fake": Speed(0.004, 0.001)})


@pytest.fixture(autouse=True)
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_the_whole_request_decides() -> None:
    assert FAST_PROMPTS.speeds["numba"].request_seconds == pytest.approx(512 * 0.001 + 128 * 0.02)
    assert FAST_PROMPTS.fastest_first == ["fake", "numba"]
    assert FAST_PROMPTS.describe() == "2.18 s for a prompt of 512 and an answer of 128 tokens, numba 3.07 s; measured 2030-01-02 with 1 thread"


def test_a_measurement_holds_for_its_model_threads_machine_and_version(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFFile.open(tiny) as file, GGUFFile.open(tiny_gemma3(tmp_path / "other.gguf")) as other:
        assert candidates(file, 1)[0] == ["numba", "onnx", "llamacpp"] and "nothing was measured" in candidates(file, 1)[1]
        keep(file, FAST_PROMPTS)
        assert candidates(file, 1) == (["fake", "numba"], FAST_PROMPTS.describe())
        assert candidates(other, 1)[0][0] == "numba"
        order, reason = candidates(file, 2)
        assert order[0] == "numba" and "the number of threads in use, 2 (only 1)" in reason
        slower = {"numba": Speed(0.001, 0.001), "fake": Speed(1.0, 1.0)}
        keep(file, replace(FAST_PROMPTS, threads=2, speeds=slower))
        assert candidates(file, 2)[0] == ["numba", "fake"] and candidates(file, 1)[0] == ["fake", "numba"]  # the other one stays
        assert [item.threads for item in kept()] == [1, 2]
        for name, value in (("machine_key", lambda: "another"), ("__version__", "0.0.0")):
            with monkeypatch.context() as patch:
                patch.setattr(choice, name, value)
                assert candidates(file, 1)[0][0] == "numba" and list(kept()) == []


def test_a_copy_of_a_model_shares_its_measurement(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.read_bytes())
    with GGUFFile.open(tiny) as one, GGUFFile.open(copy) as two:
        keep(one, FAST_PROMPTS)
        assert candidates(two, 1)[0][0] == "fake"


def test_one_backend_alone_decides_nothing(tiny: Path) -> None:
    with GGUFFile.open(tiny) as file, pytest.raises(ValueError, match="decides nothing"):
        keep(file, replace(FAST_PROMPTS, speeds={"numba": Speed(1, 1)}))


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1}', "null"])
def test_a_damaged_file_counts_as_no_measurement(tiny: Path, damage: str) -> None:
    with GGUFFile.open(tiny) as file:
        keep(file, FAST_PROMPTS)
        measurement_file(file).write_text(damage)
        assert candidates(file, 1)[0][0] == "numba" and list(kept()) == []
        keep(file, FAST_PROMPTS)
        assert json.loads(measurement_file(file).read_text())["measurements"][0]["model"] == "tiny"


def test_auto_loads_the_fastest_and_says_so(tiny: Path) -> None:
    with GGUFFile.open(tiny) as file:
        keep(file, FAST_PROMPTS)
    with Engine.load(tiny, backend="auto", context=64, threads=1) as engine:
        assert engine.capabilities.description.startswith("fake")
        assert engine.backend_choice == f"backend auto is fake: {FAST_PROMPTS.describe()}"
    with Engine.load(tiny, backend="fake", context=64, threads=1) as engine:
        assert engine.backend_choice is None


def _only(monkeypatch: pytest.MonkeyPatch, running: tuple[str, ...]) -> None:
    load = choice.load_backend

    def loaded(name: str, *arguments: Any) -> Any:
        if name not in running:
            raise BackendUnavailableError(f"no {name} here")
        return load("fake", *arguments)

    monkeypatch.setattr(choice, "load_backend", loaded)


def test_what_does_not_run_is_passed_over_by_name(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, ("llamacpp",))
    with Engine.load(tiny, backend="auto", context=64, threads=1) as engine:
        told = engine.backend_choice
    assert told is not None and told.startswith("backend auto is llamacpp: nothing was measured on this machine")
    assert told.endswith("; not numba: no numba here; not onnx: no onnx here")


@pytest.mark.onnx
def test_a_faster_backend_without_the_cache_type_is_passed_over(tiny: Path) -> None:
    with GGUFFile.open(tiny) as file:
        keep(file, replace(FAST_PROMPTS, speeds={"onnx": Speed(0.001, 0.001), "numba": Speed(0.002, 0.002)}))
    with Engine.load(tiny, backend="auto", context=64, threads=1) as engine:
        assert (engine.backend_choice or "").startswith("backend auto is onnx")
    with Engine.load(tiny, backend="auto", context=64, threads=1, cache_type="q8_0") as engine:
        told = engine.backend_choice or ""
    assert told.startswith("backend auto is numba") and "; not onnx: cache_type is 'q8_0', but the cache of the onnx backend is float32" in told


def test_input_that_no_backend_could_take_is_not_passed_over(tiny: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cache_type is 'f8'"):
        Engine.load(tiny, backend="auto", context=64, cache_type="f8")


def test_where_none_runs_every_reason_is_given(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, ())
    with pytest.raises(BackendUnavailableError, match="numba: no numba here; onnx: no onnx here; llamacpp: no llamacpp here"):
        Engine.load(tiny, backend="auto", context=64, threads=1)


def test_one_that_does_not_fit_into_memory_is_passed_over_and_named_where_none_runs(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(name: str, *arguments: Any) -> Any:
        if name == "numba":
            raise MemoryPlanError("too large here")
        return original(name, *arguments)

    _only(monkeypatch, ("llamacpp",))
    original = choice.load_backend
    monkeypatch.setattr(choice, "load_backend", loaded)
    with Engine.load(tiny, backend="auto", context=64, threads=1) as engine:
        assert (engine.backend_choice or "").endswith("; not numba: too large here; not onnx: no onnx here")
    _only(monkeypatch, ())
    original = choice.load_backend
    monkeypatch.setattr(choice, "load_backend", loaded)
    with pytest.raises(MemoryPlanError, match="numba: too large here; onnx: no onnx here; llamacpp: no llamacpp here"):
        Engine.load(tiny, backend="auto", context=64, threads=1)


def test_measurements_in_a_folder_that_may_not_be_entered_count_as_none(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "measurements_path", lambda: Path("/proc/self/" + 300 * "x"))  # the system refuses even to look
    assert list(choice.kept()) == []


def test_names_of_backends_are_read_and_refused() -> None:
    assert parse_backends("numba, onnx,numba") == ("numba", "onnx")
    with pytest.raises(InvalidRequestError, match="backends are ' ,'"):
        parse_backends(" ,")
    with pytest.raises(UnknownChoiceError, match="no backend named 'tpu'; choose from numba"):
        parse_backends("numba,tpu")

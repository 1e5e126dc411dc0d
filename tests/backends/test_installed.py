"""Backends of other packages: found by their entry points, run from the command line, told apart, and refused with the package's name when broken."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.load import BACKENDS, installed_backends, load_backend
from edgeinfer.core.errors import BackendUnavailableError, InvalidRequestError, UnknownChoiceError
from tests.backends.example import example_source, install, install_example
from tests.cli.conftest import command
from tests.support.tiny_models import tiny_llama

__all__ = ["command"]

OPTIONS = BackendOptions(context=64)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path to install packages into; what was imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_the_example_is_short_and_runs_in_an_engine(site: Path, model: Path) -> None:
    assert 50 <= len(example_source().splitlines()) <= 75
    install_example(site)
    assert "counting_backend" not in sys.modules
    with Engine.load(model, backend="counting", context=64) as engine:
        assert engine.capabilities.description.startswith("counting")
        answer = engine.generate([65, 66, 67, 65, 66, 67, 65], SamplingParams(max_tokens=4, ignore_eos=True))
        assert list(answer.token_ids) == [66, 67, 65, 66]  # what followed each of them before
        assert answer.usage.cached_tokens == 0


def test_listing_imports_nothing(site: Path) -> None:
    install_example(site)
    (found,) = [backend for backend in installed_backends() if backend.name == "counting"]
    assert found.origin == "counting-backend 1.0" and found.entry_point.value == "counting_backend:CountingBackend.load"
    assert "counting_backend" not in sys.modules


def test_an_unknown_name_is_refused_with_all_that_there_are(site: Path, model: Path) -> None:
    install_example(site)
    with pytest.raises(UnknownChoiceError, match=r"no backend named 'countin'; choose one of numba, llamacpp, onnx, .*counting"):
        load_backend("countin", model, OPTIONS)


def test_two_packages_with_one_name_are_refused_with_both(site: Path, model: Path) -> None:
    install_example(site)
    install(site, "other-counting", "counting = other_counting:load", "other_counting", "def load(model, options): ...", version="2.5")
    with pytest.raises(BackendUnavailableError, match=r"counting-backend 1\.0 clashes with .* of other-counting 2\.5; uninstall all but one"):
        load_backend("counting", model, OPTIONS)


@pytest.mark.parametrize("name", [*BACKENDS, "fake", "auto"])
def test_our_names_cannot_be_taken(site: Path, model: Path, name: str, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "usurper", f"{name} = usurper:load", "usurper", "def load(model, options): raise SystemExit('taken')")
    if name == "fake":
        load_backend(name, model, OPTIONS).close()
    monkeypatch.setattr("edgeinfer.cli.doctor.PROBES", {})
    said = json.loads(command("doctor", "--json").out)["backends"]
    assert f"is never used: {name} is a name of edgeinfer itself" in said[f"{name}, of usurper 1.0"]


@pytest.mark.parametrize(
    ("source", "entry", "problem"),
    [
        ("import no_such_library_at_all", "broken = broken_backend:load", r"cannot be imported \(broken_backend:load: ModuleNotFoundError.*repair or uninst"),
        ("load = 1 / 0", "broken = broken_backend:load", "cannot be imported .*ZeroDivisionError"),
        ("", "broken = broken_backend:load", "cannot be imported .*AttributeError"),
        ("load = 7", "broken = broken_backend:load", "is int, but must be something to call"),
        ("def load(model): ...", "broken = broken_backend:load", "could not load .*TypeError"),
        ("def load(model, options): raise KeyError('layers')", "broken = broken_backend:load", "could not load .*KeyError: 'layers'"),
        ("def load(model, options): return None", "broken = broken_backend:load", "NoneType for capabilities instead of Capabilities"),
    ],
)
def test_a_broken_one_is_told_by_its_package(site: Path, model: Path, source: str, entry: str, problem: str) -> None:
    install(site, "broken-backend", entry, "broken_backend", source)
    with pytest.raises(BackendUnavailableError, match=r"the backend broken of broken-backend 1\.0 .*" + problem):
        load_backend("broken", model, OPTIONS)


def test_methods_that_capabilities_promise_must_be_there(site: Path, model: Path) -> None:
    source = example_source().replace("def share_prefix", "def share_nothing").replace("def release", "def unleash")
    install(site, "broken-backend", "broken = broken_backend:CountingBackend.load", "broken_backend", source)
    with pytest.raises(BackendUnavailableError, match="by its capabilities it has release, share_prefix, but it has not"):
        load_backend("broken", model, OPTIONS)


def test_its_own_typed_errors_reach_the_user_as_they_are(site: Path, model: Path, command: Callable[..., Any]) -> None:
    source = "from edgeinfer.core.errors import InvalidRequestError\ndef load(model, options): raise InvalidRequestError('threads must be even')"
    install(site, "strict-backend", "strict = strict_backend:load", "strict_backend", source)
    with pytest.raises(InvalidRequestError, match="threads must be even"):
        load_backend("strict", model, OPTIONS)
    ended = command("run", str(model), "-p", "x", "--backend", "strict")
    assert (ended.code, ended.out, ended.err) == (2, "", "edgeinfer: error: threads must be even\n")


def test_a_profile_is_refused_and_the_backend_closed(site: Path, model: Path) -> None:
    install_example(site)
    with pytest.raises(UnknownChoiceError, match="counting does not time its operations"):
        load_backend("counting", model, dataclasses.replace(OPTIONS, profile=True))


def test_the_command_line_runs_it_and_the_doctor_lists_it(site: Path, model: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    install_example(site)
    install(site, "broken-backend", "broken = broken_backend:load", "broken_backend", "import no_such_library_at_all")
    monkeypatch.setattr("edgeinfer.cli.doctor.PROBES", {})
    ended = command("run", str(model), "-p", "abcabca", "-n", "3", "--temperature", "0", "--backend", "counting", "--context", "64")
    assert ended.code == 0 and ended.out and "3 generated" in ended.err
    said = json.loads(command("doctor", "--json").out)["backends"]
    assert said["counting, of counting-backend 1.0"] == "works (counting_backend:CountingBackend.load)"
    assert said["broken, of broken-backend 1.0"].startswith("does not work: ModuleNotFoundError: No module named 'no_such_library_at_all'")
    assert said["numba"].startswith("works")

"""What a command says of work that takes long and happens once: nothing where it is short, a line elsewhere, the line itself at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli import console
from edgeinfer.core.announcements import announced, going_on
from tests.support.tiny_models import tiny_llama

Command = Callable[..., Any]
LINE = "edgeinfer: compiling 3 kernels ...\n"


@pytest.mark.parametrize(("takes", "said"), [(0.0, 0), (0.5, 1)])
def test_only_what_takes_long_is_said_and_once(command: Command, engine: Any, monkeypatch: pytest.MonkeyPatch, takes: float, said: int) -> None:
    load = engine.load

    def compiling(model: str, **options: Any) -> Any:
        with announced("compiling 3 kernels"):
            time.sleep(takes)
        return load(model, **options)

    monkeypatch.setattr(engine, "load", compiling)
    monkeypatch.setattr(console, "LONG", 0.1)
    ended = command("run", "m.gguf", "-p", "a b")
    assert ended.code == 0 and ended.out == "A B" and ended.err.count(LINE) == said and ended.err.count("\n") == 1 + said


def test_a_terminal_shows_it_in_place(capsys: pytest.CaptureFixture[str], engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_terminal", lambda stream: stream is sys.stderr)
    load = engine.load

    def compiling(model: str, **options: Any) -> Any:
        with announced("compiling 3 kernels"):
            return load(model, **options)

    monkeypatch.setattr(engine, "load", compiling)
    with console.loading("m.gguf", "numba", None, 1):
        pass
    shown = capsys.readouterr().err.split("\r\x1b[2K")
    assert shown == ["", "loading m.gguf ...", "compiling 3 kernels ...", "loading m.gguf ...", ""]


def test_the_end_says_what_the_process_still_waits_for(capsys: pytest.CaptureFixture[str], engine: Any) -> None:
    with going_on("compiling 2 more kernels"), console.loading("m.gguf", "numba", None, 1):
        pass
    assert capsys.readouterr().err == "edgeinfer: compiling 2 more kernels, once, before this ends ...\n"
    with console.loading("m.gguf", "numba", None, 1):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_first_run_says_that_it_compiles_and_a_second_does_not(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("EDGEINFER_KERNELS", "none")
    monkeypatch.setattr(console, "LONG", 0.0)
    model = tiny_llama(tmp_path / "tiny.gguf")
    first, second = (command("run", str(model), "-p", "a", "-n", "1") for _ in range(2))
    assert first.code == second.code == 0
    assert " kernels for " in first.err and ", once for this machine ..." in first.err and "compiling" not in second.err

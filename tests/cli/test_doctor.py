"""`edgeinfer doctor`: findings with reasons, and libraries of others only in processes of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli import doctor
from edgeinfer.core import env, host
from edgeinfer.core.host import UsableCores

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing llama_cpp in a child takes seconds; one test does it."""
    monkeypatch.setattr(doctor, "PROBES", {})


def test_every_environment_variable_is_listed(command: Command) -> None:
    out = command("doctor").out
    for variable in env.VARIABLES:
        assert f"  {variable.name} " in out


def test_choices_come_with_reasons(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_THREADS", "3")
    machine = json.loads(command("doctor", "--json").out)["machine"]
    assert machine["worker threads"] == "3: EDGEINFER_THREADS"
    assert "the best of those that this machine can run" in machine["instruction-set level"]
    assert "leaves" in machine["memory considered"]


@pytest.mark.parametrize(
    ("count", "cpus", "text"),
    [
        (1, (0,), "none: a single worker goes where the system puts it"),
        (3, (), "none: more threads than processors"),
        (2, (4, 6), "4, 6; workers are left out while other processes take their cores"),
    ],
)
def test_where_workers_run(count: int, cpus: tuple[int, ...], text: str) -> None:
    assert doctor.pinned(UsableCores(count, "asked for", cpus, ())) == text


def test_a_wrong_setting_is_shown_not_fatal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_THREADS", "all")
    ended = command("doctor", "--json")
    assert ended.code == 0 and "EDGEINFER_THREADS is 'all'" in json.loads(ended.out)["machine"]["worker threads"]


def test_a_forced_level_is_told_or_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_ISA", "portable")
    assert doctor.kernel_level(frozenset())[1] == "EDGEINFER_ISA"
    monkeypatch.setenv("EDGEINFER_ISA", "x86_quantum")
    assert json.loads(command("doctor", "--json").out)["machine"]["instruction-set level"].startswith("none: the instruction set 'x86_quantum' cannot")


def test_refused_registers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEINFER_ISA", raising=False)
    refused = "the operating system refuses them: Invalid argument"
    monkeypatch.setattr(host, "refused_matrix_registers", lambda root=None: refused)
    assert doctor.kernel_level(frozenset())[1].endswith(f"not x86_amx, whose registers this process may not use: {refused}")


def test_probes_tell_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise OSError('libfoo.so: cannot open')\n")
    (tmp_path / "good_library.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor.probe("broken_library") == "does not work: OSError: libfoo.so: cannot open"
    assert doctor.probe("good_library") == "works"
    assert doctor.probe("no_such_library") == "not installed"
    assert not {"broken_library", "good_library"} & set(sys.modules)

"""`--backend auto` on the command line and in the doctor's report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.backends.choice import Measurement, Speed, keep
from edgeinfer.cli import doctor
from edgeinfer.gguf.reader import GGUFFile
from tests.support.tiny_models import tiny_llama

Command = Callable[..., Any]

MEASURED = Measurement("tiny", 1, "2030-01-02T03:04:05+00:00", {"numba": Speed(0.001, 0.02), "fake": Speed(0.004, 0.001)})


def test_run_and_doctor_tell_the_choice(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBES", {})
    tiny = tiny_llama(tmp_path / "tiny.gguf")
    with GGUFFile.open(tiny) as file:
        keep(file, MEASURED)
    ended = command("run", str(tiny), "-p", "a", "-n", "2", "--backend", "auto", "--threads", "1")
    assert ended.code == 0 and f"edgeinfer: backend auto is fake: {MEASURED.describe()}" in ended.err
    section = json.loads(command("doctor", "--json").out)["backend auto"]
    assert section["tiny, threads 1"] == f"fake: {MEASURED.describe()}" and section["not measured"].startswith("numba where it runs")

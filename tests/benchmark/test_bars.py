"""The scripts under bench/bars: each says what it shows, ends with an exit code that means something, and needs nothing that is not named."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BARS = Path(__file__).resolve().parents[2] / "bench" / "bars"
SCRIPTS = sorted(BARS.glob("[0-9]*.py"))

# Bar 22 runs tests, which need no model, and bar 23 asks for environments before it asks for models.
NEEDING_MODELS = [script.name for script in SCRIPTS if script.name[:2] >= "11" and script.name[:2] not in ("22", "23")]


def _run(script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(BARS.parents[1]), **variables}
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_there_is_a_script_for_each_bar() -> None:
    assert [script.name[:2] for script in SCRIPTS] == [f"{number:02}" for number in (*range(1, 9), *range(11, 20), *range(21, 27))]
    readme = (BARS.parent / "README.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        description = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
        assert description.startswith(f"Bar {int(script.name[:2])}:")
        assert f"bars/{script.name}" in readme


@pytest.mark.parametrize("name", ["04_open_gemma.py", "06_same_bits.py", "07_speed.py", "08_memory_refusal.py", *NEEDING_MODELS])
def test_a_bar_whose_model_is_missing_says_so(name: str, tmp_path: Path) -> None:
    run = _run(BARS / name, EDGEINFER_HOME=str(tmp_path))
    assert run.returncode == 2
    assert "cannot be judged here" in run.stderr and "edgeinfer pull" in run.stderr


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_exit_codes_follow_the_bars(holds: bool, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(BARS)!r})\nfrom common import bar, finish\nbar('x', {holds}, '1 of 2')\nfinish()\n")
    run = _run(script)
    assert run.returncode == code
    assert ("MISSED" in run.stdout) != holds and "1 of 2" in run.stdout


@pytest.mark.parametrize(("value", "code"), [(2.0, 0), (1.99, 1)])
def test_a_missed_bar_says_by_how_much(value: float, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(BARS)!r})\nfrom common import at_least, at_most, finish\n"
        f"at_least('speed', {value}, 2.0)\nat_most('time', {4 - value}, 2.0, 's', 3)\nfinish()\n"
    )
    run = _run(script)
    assert run.returncode == code
    if code:
        assert "2 of 2 bars missed" in run.stdout and "1.99 x, at least 2.00 x: missed by 0.5%" in run.stdout and "2.010 s" in run.stdout
    else:
        assert "all bars held (2)" in run.stdout


def test_the_vocabularies_meet_their_bar(llamacpp_models: Callable[[], Path]) -> None:
    run = _run(BARS / "05_vocabularies.py", EDGEINFER_LLAMACPP_MODELS=str(llamacpp_models()))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all bars held (5)" in run.stdout


def test_environments_of_peers_are_made_once_and_what_cannot_be_made_is_named(tmp_path: Path) -> None:
    script = tmp_path / "tools" / "bench_peers.sh"
    script.parent.mkdir()
    shutil.copy(BARS.parents[1] / "tools" / "bench_peers.sh", script)
    for name in ("llamacpp", "ik_llamacpp"):
        python = tmp_path / ".cache" / "peers" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\nexit 0\n")
        python.chmod(0o755)
    run = subprocess.run([str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.splitlines()[:2] == ["llamacpp: there", "ik_llamacpp: there"]
    assert run.returncode == 1 and "openvino: could not be made" in run.stderr  # there is no .venv to make it with

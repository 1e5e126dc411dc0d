"""`edgeinfer compile`: what it makes, says and refuses, and that runs find it by themselves."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels_numba.simd.levels import LEVELS
from tests.support.kernels import lowest_level
from tests.support.tiny_models import tiny_llama

Command = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", weight_format="Q4_0")


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's kernels for this machine's lowest level, made by the command."""
    folder = tmp_path_factory.mktemp("made") / "kernels"
    command = [sys.executable, "-m", "edgeinfer.cli.main", "compile", str(tiny), "--level", lowest_level().name, "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    count = len(list(folder.rglob("*.kernel")))
    assert count > 10
    assert done.stdout.startswith(f"{lowest_level().name}: {count} kernels, {count} of them compiled now, ")
    assert str(folder / lowest_level().name) in done.stdout
    return folder


def test_nothing_is_compiled_twice(command: Command, tiny: Path, folder: Path) -> None:
    value = json.loads(command("compile", str(tiny), "--level", lowest_level().name, "--output", str(folder), "--json").out)
    [made] = value["kernels"]
    assert made["compiled"] == 0 and made["kernels"] == len(list(folder.rglob("*.kernel"))) and value["weights"] is None
    assert made["bytes"] == sum(path.stat().st_size for path in folder.rglob("*.kernel"))


RUN = """
import sys, warnings
warnings.simplefilter("error")
sys.argv = ["edgeinfer", "run", sys.argv[1], "-p", "once", "-n", "2"]
from edgeinfer.cli.main import main
main()
"""
CHECK = """
import atexit, sys
def tell():
    print("imported:", sorted({"numba", "llvmlite"} & set(sys.modules)), flush=True)
atexit.register(tell)
"""


@pytest.mark.parametrize("where", ["EDGEINFER_CACHE", "EDGEINFER_KERNELS"])
def test_runs_find_the_kernels_without_the_compiler(tiny: Path, folder: Path, tmp_path: Path, where: str) -> None:
    """Also from a folder that cannot be written to, as one of the system's is."""
    environment = {**os.environ, "EDGEINFER_HOME": str(tmp_path), "EDGEINFER_ISA": lowest_level().name, where: str(folder), "PYTHONPATH": str(ROOT)}
    if where != "EDGEINFER_CACHE":
        environment["EDGEINFER_CACHE"] = "none"
    done = subprocess.run([sys.executable, "-c", CHECK + RUN, str(tiny)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("imported: []\n")


def test_levels_of_other_machines(command: Command, tiny: Path, tmp_path: Path) -> None:
    other = next(level for level in LEVELS if level.architecture != platform.machine() and not level.features - {"asimd"})
    ended = command("compile", str(tiny), "--level", other.name.split("_", 1)[1], "--output", str(tmp_path / "kernels"))
    assert ended.code == 0 and ended.out.startswith(f"{other.name}: ")
    assert {path.parent.name for path in (tmp_path / "kernels").rglob("*.kernel")} == {other.name}


def test_weights_are_kept_found_and_removed(command: Command, tiny: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(folder))
    monkeypatch.setenv("EDGEINFER_ISA", lowest_level().name)
    ended = command("compile", str(tiny), "--weights")
    [file] = (tmp_path / "home" / "packed").iterdir()
    assert ended.code == 0 and f"made now, in {file}" in ended.out and "--remove-weights" in ended.out
    again = json.loads(command("compile", str(tiny), "--weights", "--json").out)
    assert again["weights"] == {"path": str(file), "bytes": file.stat().st_size - 4096, "made": False}
    assert "packed weights: 1 file of " in command("list").err
    assert command("compile", str(tiny), "--remove-weights").out == f"removed {file}\n"
    assert not file.exists()
    assert command("compile", str(tiny), "--remove-weights").out == f"there are no packed weights of {tiny}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--level", "x86_avx1024"], 2, "there is no instruction-set level 'x86_avx1024'; choose among x86_amx, "),
        (["--remove-weights", "--weights"], 2, "--remove-weights goes with no other option"),
        (["--cache-type", "f8"], 2, "f8"),
    ],
)
def test_wrong_options(command: Command, tiny: Path, arguments: list[str], code: int, message: str) -> None:
    ended = command("compile", str(tiny), *arguments)
    assert ended.code == code and message in ended.err and ended.err.count("\n") == 1


def test_without_a_folder_there_is_nothing_to_keep_kernels_in(command: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", "none")
    ended = command("compile", str(tiny))
    assert ended.code == 2 and "name a folder with --output" in ended.err


def test_a_folder_that_others_can_write_to_is_refused(command: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    ended = command("compile", str(tiny), "--output", str(tmp_path / "open"))
    assert ended.code == 1 and "it must be a folder of yours that nobody else can write to" in ended.err

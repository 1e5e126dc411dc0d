"""Libraries that cannot be imported: each is found out in a process of its own, whatever it does there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.core.foreign import import_problem

ROOT = Path(__file__).resolve().parents[2]
TOO_NEW = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", None),
        ("print('a banner')", None),
        (TOO_NEW, "the process that imports it is killed by SIGILL: it was built for another processor"),
        ("import os\nos.abort()", "the process that imports it is killed by SIGABRT"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGRTMIN + 3)", "the process that imports it is killed by signal 37"),
        ("import os\nos._exit(7)", "the process that imports it ends with 7"),
        ("raise OSError('libfoo.so: cannot open')", "OSError: libfoo.so: cannot open"),
    ],
)
def test_what_goes_wrong_is_told_and_happens_elsewhere(source: str, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "library_of_others.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_problem("library_of_others") == problem
    assert "library_of_others" not in sys.modules


def test_a_module_in_a_package_is_looked_for_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package_of_others").mkdir()
    (tmp_path / "package_of_others" / "__init__.py").write_text("raise RuntimeError('not here')")
    (tmp_path / "package_of_others" / "backend.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_problem("package_of_others.backend") == "RuntimeError: not here"
    assert import_problem("no_such_package.backend") == "not installed"
    assert not any(name.startswith("package_of_others") for name in sys.modules)


def test_what_is_not_there_or_imported_already_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert import_problem("no_such_library") == "not installed"
    assert import_problem("pytest") is None


def test_the_current_folder_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that lies where somebody happens to work must not run in place of an installed library."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "library_of_others.py").write_text("")
    (tmp_path / "library_of_others.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert import_problem("library_of_others") is None


@pytest.mark.parametrize("arguments", [["run", "MODEL", "-p", "x", "--backend", "llamacpp"], ["doctor"]])
def test_a_backend_that_kills_its_process_does_not_kill_ours(arguments: list[str], tmp_path: Path) -> None:
    from tests.support.tiny_models import chain_model

    model = chain_model(tmp_path / "chain.gguf", ["a", " b"]).path
    for name in ("llama_cpp", "onnxruntime"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(TOO_NEW)
    ran = subprocess.run(
        [sys.executable, "-c", "from edgeinfer.cli.main import main; main()", *(str(model) if word == "MODEL" else word for word in arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if arguments == ["doctor"]:
        assert ran.returncode == 0 and ran.stdout.count("killed by SIGILL") == 2
    else:
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith("edgeinfer: error: the llamacpp backend needs llama-cpp-python") and ran.stderr.count("\n") == 1
        assert "killed by SIGILL" in ran.stderr

"""The Makefile's face: what a user gives to `make run` arrives as it was typed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).resolve().parent.parent.parent / "Makefile"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout whose first run only prints its arguments."""
    if shutil.which("make") is None or shutil.which("bash") is None:
        pytest.skip("make and bash are not installed here")
    shutil.copy(MAKEFILE, tmp_path)
    script = tmp_path / "tools" / "first_run.sh"
    script.parent.mkdir()
    script.write_text('#!/bin/bash\nprintf "<%s>\\n" "$@"\n')
    script.chmod(0o755)
    return tmp_path


def make_run(folder: Path, *arguments: str) -> str:
    """What `make run` prints. Of the make that may run these tests, it knows nothing."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "MODEL", "PROMPT")}
    return subprocess.run(["make", "run", *arguments], cwd=folder, env=kept, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("prompt", ['Say "hi"', "it's $5", "`date` $(id)", "größer\\nweiter", "a; false"])
def test_a_prompt_is_text_alone(folder: Path, prompt: str) -> None:
    assert make_run(folder, f"PROMPT={prompt}", "MODEL=some model") == f"<some model>\n<{prompt}>\n"


def test_defaults_of_the_first_run(folder: Path) -> None:
    assert make_run(folder) == "<smollm2-135m>\n<What is gravity?>\n"

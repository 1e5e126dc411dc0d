"""What the bars share: the real models, our command line as a process, measured processes, and how a bar says whether it holds.

Every script beside this one is one bar of issue 2: it prints its figures and ends with 0 when they hold, 1 when one is missed, 2 when what it needs is
not there (a model, llama.cpp). Run them with the Python that has edgeinfer: `python bench/bars/04_open_gemma.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

MODELS = ("smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b")

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

COMMAND_LINE = (sys.executable, "-m", "edgeinfer.cli.main")

_missed: list[str] = []


def bar(name: str, holds: bool, figures: str) -> None:
    """Prints one bar with its figures, and remembers it when it is missed."""
    print(f"{'held  ' if holds else 'MISSED'}  {name}: {figures}", flush=True)
    if not holds:
        _missed.append(name)


def finish() -> NoReturn:
    """Ends the script with the exit code of its bars."""
    if _missed:
        print(f"missed: {'; '.join(_missed)}")
    raise SystemExit(1 if _missed else 0)


def unable(reason: str) -> NoReturn:
    """Ends the script because something that it needs is not there."""
    print(f"cannot be judged here: {reason}", file=sys.stderr)
    raise SystemExit(2)


def model_file(name: str) -> Path:
    """The file of a pulled model; ends the script when there is none."""
    from edgeinfer.cards import resolve_model
    from edgeinfer.core.errors import ModelNotFoundError

    try:
        return Path(resolve_model(name))
    except ModelNotFoundError as error:
        unable(str(error))


def environment(**more: str) -> dict[str, str]:
    """This environment, with the checkout on the import path when edgeinfer comes from there."""
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), found.get("PYTHONPATH", "")) if part)
    found.update(more)
    return found


def last_json(command: Sequence[str], allowed: Sequence[int] = (0,)) -> dict[str, Any]:
    """Runs a command whose last line of standard output is a JSON object; its standard error is shown. Ends the script when it fails."""
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment(), check=False)
    lines = run.stdout.strip().splitlines()
    if run.returncode not in allowed or not lines:
        print(run.stdout)
        unable(f"{' '.join(command)} ended with code {run.returncode}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measured(code: str, *arguments: str) -> dict[str, Any]:
    """Runs Python code in a process of its own; it must print a JSON object as its last line. Ends the script when it fails."""
    return last_json([sys.executable, "-c", code, *arguments])

"""What the bars share: the real models, our command line as a process, measured processes, and how a bar says whether it holds.

Every script beside this one shows some bars: it prints its figures and ends with 0 when they hold, 1 when one is missed, 2 when what it needs is not there
(a model, a peer). Run them with the Python that has edgeinfer: `python bench/bars/04_open_gemma.py`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MODELS = ("smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b")

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

COMMAND_LINE = (sys.executable, "-m", "edgeinfer.cli.main")

_missed: list[str] = []
_judged = 0


def bar(name: str, holds: bool, figures: str) -> None:
    """Prints one bar with its figures, and remembers it when it is missed."""
    global _judged
    print(f"{'held  ' if holds else 'MISSED'}  {name}: {figures}", flush=True)
    _judged += 1
    if not holds:
        _missed.append(f"{name}: {figures}")


def at_least(name: str, value: float, required: float, unit: str = "x", decimals: int = 2) -> None:
    """A bar from below; how far the figure is from it is printed either way."""
    _judge(name, value, required, value >= required, "at least", unit, decimals)


def at_most(name: str, value: float, required: float, unit: str = "x", decimals: int = 2) -> None:
    """A bar from above."""
    _judge(name, value, required, value <= required, "at most", unit, decimals)


def _judge(name: str, value: float, required: float, holds: bool, side: str, unit: str, decimals: int) -> None:
    distance = abs(value / required - 1) if required else math.inf
    gap = f"{'inside' if holds else 'missed'} by {distance:.1%}"
    bar(name, holds, f"{value:.{decimals}f} {unit}, {side} {required:.{decimals}f} {unit}: {gap}")


def finish() -> NoReturn:
    """Says whether all bars held, or which did not and by how much, and ends the script with their exit code."""
    if not _judged:
        unable("with these options no bar is judged")
    print()
    if _missed:
        print(f"{len(_missed)} of {_judged} bars missed:")
        for missed in _missed:
            print(f"  {missed}")
    else:
        print(f"all bars held ({_judged})")
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
    """This environment, with the checkout on the import path when edgeinfer comes from there. Byte code is kept, as pip does for what it installs: else a
    checkout's modules, and no peer's, would be compiled from source by every process."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), found.get("PYTHONPATH", "")) if part)
    found.update(more)
    return found


def last_json(command: Sequence[str], allowed: Sequence[int] = (0,), variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a command whose last line of standard output is a JSON object; its standard error is shown. Ends the script when it fails."""
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=variables or environment(), check=False)
    lines = run.stdout.strip().splitlines()
    if run.returncode not in allowed or not lines:
        print(run.stdout)
        unable(f"{' '.join(command)} ended with code {run.returncode}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measured(code: str, *arguments: str) -> dict[str, Any]:
    """Runs Python code in a process of its own; it must print a JSON object as its last line. Ends the script when it fails."""
    return last_json([sys.executable, "-c", code, *arguments])


def first_output(command: Sequence[str], variables: dict[str, str]) -> tuple[float, str]:
    """Seconds from the start of a process to the first byte of its standard output, and all that it prints there. Ends the script when it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables)
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)
    seconds = time.perf_counter() - began
    rest = process.stdout.read()
    if process.wait() != 0 or not first:
        unable(f"{' '.join(command)} ended with code {process.returncode}")
    return seconds, (first + rest).decode("utf-8")

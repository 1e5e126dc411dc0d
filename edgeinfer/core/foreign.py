"""Trying out libraries that we did not build: a wheel made for a newer processor kills the process that imports it, before Python can react.

Backends ask here before they import such a library, and so does the doctor. Nothing is imported into this process.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

TRIAL_SECONDS = 60


def import_problem(module: str) -> str | None:
    """Why `module` cannot be imported on this machine, tried in a process of its own that looks where this one would; None if it can be.

    A module that is imported already is not tried again.
    """
    if module in sys.modules:
        return None
    if importlib.util.find_spec(module.partition(".")[0]) is None:  # to find what is in a package would import the package
        return "not installed"
    command, environment = _child(["-c", f"import {module}"])
    try:
        _run(command, environment)
    except ForeignError as error:
        return str(error)
    return None


def answer_of(module: str) -> str:
    """What `module` of ours prints to standard output when it is run in a process of its own. Raises ForeignError when that process fails."""
    return _run(*_child(["-m", module]))


class ForeignError(Exception):
    """A trial failed; the message is its last line, or what killed it."""


def _child(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    # -P: the child must not find what lies in the current folder, unless this process would find it there as well
    return [sys.executable, "-P", *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.curdir for entry in sys.path)}


def _run(command: list[str], environment: dict[str, str]) -> str:
    try:
        ran = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ForeignError(str(error)) from error
    if ran.returncode == 0:
        return ran.stdout.decode("utf-8", "replace")
    if ran.returncode < 0:
        raise ForeignError(f"the process that imports it is killed by {_signal_name(-ran.returncode)}")
    lines = ran.stderr.decode("utf-8", "replace").strip().splitlines() or [f"the process that imports it ends with {ran.returncode}"]
    raise ForeignError(lines[-1])


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name}: it was built for another processor" if number == signal.SIGILL else name

"""Pytest plugin for emulated Python (`-p tests.arm64.emulation --prepared FOLDER`): child processes cannot be started there, so tests that try are
skipped; tests that repeat a thing thousands of times look at `active`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

active = False
prepared: Path | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prepared", type=Path, default=None, help="folder that tests.arm64.prepare has filled")


def pytest_configure(config: pytest.Config) -> None:
    global active, prepared
    active = True
    prepared = config.getoption("--prepared")
    subprocess.Popen.__init__ = _refuse  # type: ignore[method-assign]


def _refuse(self: object, *arguments: Any, **options: Any) -> None:
    pytest.skip("child processes cannot be started under emulation")

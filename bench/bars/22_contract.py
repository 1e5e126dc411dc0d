"""Bar 22: the contract suite, the same tests over every backend: how many pass, which are left out and why.

    python bench/bars/22_contract.py [BACKEND ...]        default: numba, onnx, llamacpp, fake and counting, the example of docs/backends.md

A backend's tests are green when some passed and none failed. What is left out needs a reason, and a backend whose library is missing is left out as a
whole, which is no pass: run this where onnxruntime and llama-cpp-python are installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from common import ROOT, bar, environment, finish, unable

BACKENDS = ("numba", "onnx", "llamacpp", "fake", "counting")
SUITE = tuple(f"tests/backends/test_contract{part}.py" for part in ("", "_engine", "_bursts"))


@dataclass
class Counts:
    """What became of a backend's tests. `skipped` counts (test, reason)."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)


def backend_of(test: str) -> str | None:
    """`test_chunks[onnx-llama-7]` -> onnx: the first part of its parameters that is a backend's name."""
    found = re.search(r"\[(.*)\]$", test)
    parts = found.group(1).split("-") if found else []
    return next((part for part in parts if part in BACKENDS), None)


def run(backends: list[str]) -> dict[str, Counts]:
    """Runs the suite over these backends and counts by backend."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *SUITE, "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-k", " or ".join(backends)]
        subprocess.run(command, cwd=ROOT, env=environment(), check=False)
        if not report.is_file():
            unable("pytest gave no report; is it installed here?")
        cases = list(xml.parse(report).getroot().iter("testcase"))
    counts: dict[str, Counts] = defaultdict(Counts)
    for case in cases:
        name = case.get("name", "")
        backend = backend_of(name)
        if backend not in backends:
            continue
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts[backend].failed.append(name)
        elif skipped is not None:
            counts[backend].skipped[name.split("[")[0], skipped.get("message", "").strip()] += 1
        else:
            counts[backend].passed += 1
    return counts


def main() -> None:
    backends = sys.argv[1:] or list(BACKENDS)
    counts = run(backends)
    for backend in backends:
        found = counts[backend]
        total = found.passed + len(found.failed) + sum(found.skipped.values())
        print(f"\n{backend}: {total} tests: {found.passed} passed, {len(found.failed)} failed, {sum(found.skipped.values())} skipped")
        for (test, reason), number in sorted(found.skipped.items()):
            print(f"  skipped {number} x {test}: {reason or 'NO REASON'}")
        for name in found.failed:
            print(f"  failed {name}")
        bar(f"{backend}: all green", found.passed > 0 and not found.failed, f"{found.passed} passed, {len(found.failed)} failed")
        without = sum(number for (_, reason), number in found.skipped.items() if not reason)
        figures = f"{sum(found.skipped.values())} skipped, {without} of them without a reason"
        bar(f"{backend}: none skipped without a reason", total > 0 and not without, figures)
    finish()


main()

"""Bar 2: in a fresh clone with empty caches, `.ci/run` is green: all tests and the linters; how many, and how long it takes from nothing.

python bench/bars/02_tests.py [--here]        --here: in this checkout and with its caches, for a quick look
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, bar, finish


def run(checkout: Path, variables: dict[str, str]) -> None:
    """Runs `.ci/run`, shows its output as it comes, and judges it."""
    began = time.perf_counter()
    lines = []
    with subprocess.Popen([".ci/run"], cwd=checkout, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    seconds = time.perf_counter() - began
    summaries = [line.strip(" =\n") for line in lines if re.match(r"=+ .*(passed|failed|error).* =+$", line.strip())]
    bar(".ci/run is green", process.returncode == 0, f"exit code {process.returncode} after {seconds:.0f} s")
    counted = re.search(r"(\d+) passed", summaries[-1]) if summaries else None
    bar("tests pass", counted is not None and not re.search(r"failed|error", summaries[-1]), summaries[-1] if summaries else "no summary of pytest")


def main() -> None:
    if "--here" in sys.argv:
        run(ROOT, dict(os.environ))
        finish()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        left_out = ("PYTHONPATH", "VIRTUAL_ENV")
        variables = {name: value for name, value in os.environ.items() if not name.startswith("EDGEINFER_") and name not in left_out}
        variables.update(XDG_CACHE_HOME=str(Path(folder) / "cache"), EDGEINFER_HOME=str(Path(folder) / "home"))
        run(clone, variables)
    finish()


main()

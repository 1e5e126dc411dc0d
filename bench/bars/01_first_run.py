"""Bar 1: from a fresh clone, `make run` streams a sensible answer, and says how long each part took; afterwards `edgeinfer run` is quick.

    python bench/bars/01_first_run.py [--warm-only]

Bars: `make run` says what gravity is, and the completion of "The capital of France is" names Paris; warm, the whole process of
`edgeinfer run` reaches its first token within 1.5 s, of which loading takes under 0.3 s (medians of 5). `--warm-only` leaves out the clone and measures the
environment that runs the script.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import COMMAND_LINE, ROOT, bar, environment, finish, first_output, last_json, model_file

MODEL = "smollm2-135m"
PROMPT = "The capital of France is"
ROUNDS = 5

LOADING = """
import json, sys, time
began = time.perf_counter()
from edgeinfer import Engine, SamplingParams
imported = time.perf_counter()
with Engine.load(sys.argv[1]) as engine:
    loaded = time.perf_counter()
    next(iter(engine.stream(sys.argv[2], SamplingParams(max_tokens=2))))
    first = time.perf_counter()
print(json.dumps({"import": imported - began, "loading": loaded - imported, "first_token": first - loaded}))
"""


def fresh(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Clones, runs `make run` with empty caches, and gives back the command and environment of what was installed."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("EDGEINFER_") and name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables.update(XDG_CACHE_HOME=str(folder / "cache"), EDGEINFER_HOME=str(folder / "home"))
    run = subprocess.run(["make", "run"], cwd=clone, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    print(run.stdout)
    answers = run.returncode == 0 and "gravity is" in run.stdout.lower() and "mass" in run.stdout
    bar("make run in a fresh clone says what gravity is", answers, f"exit code {run.returncode}; the times are above")
    return [str(clone / ".venv" / "bin" / "edgeinfer")], variables


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if "--warm-only" in sys.argv:
            model_file(MODEL)
            command, variables = list(COMMAND_LINE), environment()
        else:
            command, variables = fresh(Path(folder))
        run = [*command, "run", MODEL, "-p", PROMPT, "-n", "16", "--temperature", "0"]
        first_output(run, variables)  # whatever is still cold
        rounds = [first_output(run, variables) for _ in range(ROUNDS)]
        print(f"answer: {PROMPT}{rounds[0][1]}")
        whole = statistics.median(seconds for seconds, _ in rounds)
        bar("warm: process start to first token, below 1.5 s", whole < 1.5, f"{whole:.3f} s, median of {[round(seconds, 3) for seconds, _ in rounds]}")
        bar("the answer names Paris", all("Paris" in text for _, text in rounds), repr(rounds[0][1][:40]))
        python = sys.executable if "--warm-only" in sys.argv else str(Path(command[0]).with_name("python"))
        parts = [last_json([python, "-c", LOADING, MODEL, PROMPT], variables=variables) for _ in range(ROUNDS)]
        medians = {part: statistics.median(found[part] for found in parts) for part in parts[0]}
        print("of it, in a Python of its own: " + ", ".join(f"{part} {seconds:.3f} s" for part, seconds in medians.items()))
        bar("warm: loading, below 0.3 s", medians["loading"] < 0.3, f"{medians['loading']:.3f} s")
    finish()


main()

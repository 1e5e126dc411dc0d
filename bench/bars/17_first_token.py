"""Bar 17: time to the first token of `edgeinfer run` on smollm2-135m, the whole process from its start, beside llama-cpp-python's own.

    python bench/bars/17_first_token.py [--rounds N]

Cold: an empty folder of compiled kernels. Warm: kernels compiled, weights packed while loading. Ahead: kernels and packed weights made by
`edgeinfer compile --weights`, and nothing imports Numba or llvmlite. Every state has a folder of its own; the model's file is in the page cache for all.
Bars: cold under 6 s, warm under 0.6 s, ahead under 0.4 s (medians), Numba not imported in the last.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import COMMAND_LINE, at_most, bar, environment, finish, first_output, model_file, unable

MODEL = "smollm2-135m"
PROMPT = "The capital of France is"
COLD, WARM, AHEAD = 6.0, 0.6, 0.4

LLAMA = """
import sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=4096, n_threads=2, n_threads_batch=2, flash_attn=True, verbose=False)
for event in model(sys.argv[2], max_tokens=16, temperature=0.0, stream=True):
    sys.stdout.write(event["choices"][0]["text"])
    sys.stdout.flush()
"""


def seconds(label: str, command: list[str], variables: dict[str, str], rounds: int) -> float:
    """Median over rounds; prints them all."""
    found = [first_output(command, variables)[0] for _ in range(rounds)]
    print(f"{label:<28}{statistics.median(found):7.3f} s   of {[round(value, 3) for value in found]}", flush=True)
    return statistics.median(found)


def imported(command: list[str], variables: dict[str, str]) -> set[str]:
    """Top-level modules that the command's process imports, by -X importtime, which prints each."""
    timed = [command[0], "-X", "importtime", *command[1:]]
    run = subprocess.run(timed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=variables, check=False)
    if run.returncode != 0:
        unable(f"{' '.join(timed)} ended with code {run.returncode}")
    return {name.split(".")[0] for name in re.findall(r"^import time: .*\|\s*(\S+)$", run.stderr, re.MULTILINE)}


def main() -> None:
    from edgeinfer.benchmark.options import peer_interpreters

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each state (default 7; cold ones: 3 at most)")
    options = parser.parse_args()
    path = model_file(MODEL)
    path.read_bytes()  # into the page cache
    run = [*COMMAND_LINE, "run", str(path), "-p", PROMPT, "-n", "16", "--temperature", "0"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def state(name: str) -> dict[str, str]:
            return environment(EDGEINFER_HOME=str(folder / name), EDGEINFER_CACHE=str(folder / name / "kernels"))

        first_output(run, state("before"))  # byte code of Python
        colds = [first_output(run, state(f"cold-{index}"))[0] for index in range(min(3, options.rounds))]
        cold = statistics.median(colds)
        print(f"{'cold':<28}{cold:7.3f} s   of {[round(value, 3) for value in colds]}", flush=True)
        first_output(run, state("warm"))
        warm = seconds("warm", run, state("warm"), options.rounds)
        made = subprocess.run([*COMMAND_LINE, "compile", str(path), "--weights"], env=state("ahead"), stdout=subprocess.PIPE, text=True, check=False)
        print(made.stdout.strip())
        if made.returncode != 0:
            unable(f"edgeinfer compile ended with code {made.returncode}")
        ahead = seconds("kernels and weights ahead", run, state("ahead"), options.rounds)
        modules = imported(run, state("ahead"))
        control = imported([sys.executable, "-c", "import numba"], state("control"))
        python = peer_interpreters({}).get("llamacpp", sys.executable)
        if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, check=False).returncode == 0:
            command = [python, "-c", LLAMA, str(path), PROMPT]
            first_output(command, environment())
            seconds("llama-cpp-python", command, environment(), options.rounds)
        else:
            print("llama-cpp-python: not here (make bench-peers)")
    at_most("cold: process start to first token", cold, COLD, "s", 3)
    at_most("warm: process start to first token", warm, WARM, "s", 3)
    at_most("made ahead: process start to first token", ahead, AHEAD, "s", 3)
    compilers = {"numba", "llvmlite"}
    bar("made ahead: neither Numba nor llvmlite is imported", not modules & compilers, f"{len(modules)} modules, of them {sorted(modules & compilers)}")
    bar("the look at imports sees Numba and llvmlite where they are imported", compilers <= control, f"{len(control)} modules of `import numba`")
    finish()


main()

"""Bar 14: eight sequences that decode together, beside one, and beside the peers' eight.

    python bench/bars/14_batch.py [--rounds N] [--models NAME]

Bar, 2 threads: on qwen2.5-coder-0.5b the total throughput of batch 8 is at least 3.5 times that of batch 1 (the median over alternating rounds of the
ratio in a round).
"""

from __future__ import annotations

import statistics

from beside import arguments, beside
from common import at_least, finish, model_file

from edgeinfer.benchmark.results import ThreadsResult

ONE, EIGHT = "decode 96", "decode 96 x 8"
REQUIRED = 3.5


def gain(run: ThreadsResult, engine: str) -> float:
    """How much more tokens a second eight sequences make than one."""
    seconds = run.engines[engine].seconds
    return statistics.median(8 * one / eight for one, eight in zip(seconds[ONE], seconds[EIGHT], strict=True))


def main() -> None:
    options = arguments(__doc__, rounds=7, models=("qwen2.5-coder-0.5b",)).parse_args()
    files = {name: model_file(name) for name in options.models.split(",")}
    for name, path in files.items():
        run = beside(path, options.rounds, batch_sizes=(1, 8), roofline=True)
        for engine in run.engines:
            print(f"{name}, {engine}: batch 8 makes {gain(run, engine):.2f} times the tokens of batch 1")
        at_least(f"{name}, batch 8 over batch 1", gain(run, "edgeinfer"), REQUIRED)
    finish()


main()

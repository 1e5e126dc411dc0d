"""The machine's limits as the benchmark uses them: a process of its own that measures them between the engines, and what they say about a figure.

    python -m edgeinfer.benchmark.roofline START            START: a JSON object, of which "threads" counts

It answers like an engine's process: {"command": "read"} with {"read": {pattern: bytes a second}}, {"command": "int8"} with the operations a second of all
threads and of one core. The kernels are in `kernels_numba.ops.roofline`, and run by `backends.numba.limits` like those of a model.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from edgeinfer.benchmark.results import PREFILL, RooflineSample

ROOFLINE = "roofline"
"""The name of this process among the engines'."""


def roofline_between(before: RooflineSample, after: RooflineSample, kind: str) -> float:
    """The limit of a measurement between two samples: the mean of both, of the read pattern for which that is highest, or of the int8 peak."""
    if kind == PREFILL:
        return (before.int8 + after.int8) / 2
    return max((before.read[pattern] + after.read[pattern]) / 2 for pattern in before.read)


def serve(threads: int, requests: TextIO, answers: TextIO) -> None:
    """Prepares kernels and buffer, says so, and measures until `requests` ends. Whatever fails is the last answer."""
    from edgeinfer.backends.numba.limits import MachineLimits

    def send(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        with MachineLimits(threads) as limits:
            send({"level": limits.level, "buffer_bytes": limits.buffer_bytes})
            for line in requests:
                if json.loads(line)["command"] == "read":
                    send({"read": limits.read()})
                else:
                    send({"int8": limits.int8(), "int8_one_core": limits.int8(workers=1)})
    except Exception as error:  # the parent shows it to the user
        send({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Keeps the real standard output for answers."""
    start = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(start["threads"], sys.stdin, answers)


if __name__ == "__main__":
    main()

"""What the bars of speed share: one run beside the peers, printed whole, and the faster of the two llamas in it. `make bench-peers` makes the peers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from common import MODELS, unable

from edgeinfer.benchmark.display import print_result
from edgeinfer.benchmark.options import peer_interpreters
from edgeinfer.benchmark.results import OURS, ThreadsResult
from edgeinfer.benchmark.rounds import BenchmarkOptions, run_benchmark
from edgeinfer.core.errors import EdgeInferError

LLAMAS = ("llamacpp", "ik_llamacpp")


def arguments(description: str | None, rounds: int, models: Sequence[str] = MODELS) -> argparse.ArgumentParser:
    """`--rounds` and `--models`; more rounds make medians steadier, and no option changes a bar."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"alternating rounds (default {rounds})")
    parser.add_argument("--models", default=",".join(models), help=f"names of cards with commas between (default {','.join(models)})")
    return parser


def beside(
    model: Path,
    rounds: int,
    *,
    threads: int = 2,
    prompt_lengths: Sequence[int] = (),
    batch_sizes: Sequence[int] = (),
    peers: Sequence[str] = LLAMAS,
    required: Sequence[str] = LLAMAS,
    backends: Sequence[str] = ("numba",),
    roofline: bool = False,
) -> ThreadsResult:
    """Measures and prints one run. Ends the script when a peer of `required` could not be measured; others may be missing, and are named."""
    from rich.console import Console

    options = BenchmarkOptions(
        threads=(threads,),
        prompt_lengths=tuple(prompt_lengths),
        batch_sizes=tuple(batch_sizes),
        rounds=rounds,
        peers=tuple(peers),
        backends=tuple(backends),
        interpreters=peer_interpreters({}),
        roofline=roofline,
    )
    print(f"\n{model.stem}, {threads} thread{'s' if threads > 1 else ''}", flush=True)
    try:
        result = run_benchmark(model, options, lambda what: print(f"  {what}", file=sys.stderr, flush=True))
    except EdgeInferError as error:
        unable(str(error))
    print_result(result, Console(width=160))
    sys.stdout.flush()
    run = result.runs[0]
    for peer in (peer for peer in required if peer in peers):
        if peer not in run.engines:
            unable(f"{run.missing[peer]}; the peers are made by: make bench-peers")
        for name, reason in run.engines[peer].skipped.items():
            unable(f"{peer} has no figure for {name}: {reason}")
    return run


def faster_llama(run: ThreadsResult, measurement: str) -> str:
    """The one with the higher median speed."""
    return max((peer for peer in LLAMAS if peer in run.engines), key=lambda peer: run.speed(peer, measurement))


def share(run: ThreadsResult, measurement: str) -> float:
    """Our fraction of the machine's limit, in percent."""
    fraction = run.fraction(OURS, measurement)
    assert fraction is not None
    return 100 * fraction

"""Hands what a benchmark measured of our backends to `backends.choice`, by which `--backend auto` chooses. The command line calls it."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.backends.choice import PROMPT_TOKENS, Measurement, Speed, keep
from edgeinfer.benchmark.results import DECODE, PREFILL, BenchmarkResult, ThreadsResult, backend_of
from edgeinfer.gguf.reader import GGUFFile


def comparison(result: BenchmarkResult, run: ThreadsResult) -> Measurement | None:
    """The speeds of our backends in one run: of a prompt, that with the length nearest to PROMPT_TOKENS; of an answer, that of a single sequence.

    None when fewer than two backends have both: one alone decides nothing.
    """
    lengths = {name: abs(item.tokens - PROMPT_TOKENS) for name, item in run.measurements.items() if item.kind == PREFILL}
    decodes = [name for name, item in run.measurements.items() if item.kind == DECODE and item.sequences == 1]
    if not lengths or not decodes:
        return None
    prompt, answer = min(lengths, key=lambda name: lengths[name]), decodes[0]
    speeds = {}
    for engine in run.engines:
        backend = backend_of(engine)
        if backend is not None and run.has(engine, prompt) and run.has(engine, answer):
            speeds[backend] = Speed(1 / run.speed(engine, prompt), 1 / run.speed(engine, answer))
    return Measurement(result.model, run.threads, result.date, speeds) if len(speeds) > 1 else None


def keep_comparisons(result: BenchmarkResult, model: Path) -> list[str]:
    """Keeps the comparisons of a result; returns what to tell the user about each: what auto takes from now on, or why nothing could be kept."""
    said = []
    with GGUFFile.open(model) as file:
        for run in result.runs:
            found = comparison(result, run)
            if found is None:
                continue
            try:
                keep(file, found)
            except OSError as error:
                said.append(f"the measurement cannot be kept for `--backend auto`: {error.strerror or error} ({error.filename})")
            else:
                said.append(f"`--backend auto` takes {found.fastest_first[0]} from now on: {found.describe()}")
    return said

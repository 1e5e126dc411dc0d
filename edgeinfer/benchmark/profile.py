"""The profile of a step: what each kind of operation of our engine takes, and how far it is from the machine's limits.

Times come from counters that the backend keeps (`ProfilingBackend`); steps are built by hand here, so that nothing but the forward pass runs. Operations
that differ only in the number of their layer are one row of the table.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgeinfer.backends.base import BackendOptions, OperationTime, ProfilingBackend
from edgeinfer.backends.load import load_backend
from edgeinfer.backends.numba.limits import MachineLimits
from edgeinfer.backends.numba.work import ProgramWork, work_of_file
from edgeinfer.benchmark.results import DECODE, PREFILL, BenchmarkResult, ProfileRow, RooflineSample, StepProfile
from edgeinfer.benchmark.roofline import roofline_between
from edgeinfer.core.steps import OutputKind, SequenceTable, Step

PREFILL_REPEATS = 3


def with_profiles(
    result: BenchmarkResult, model: Path, prompt_length: int, decode_tokens: int, progress: Callable[[str], None] = lambda what: None
) -> BenchmarkResult:
    """The result with a profile of a prompt of `prompt_length` and one of `decode_tokens` after it, for each of its numbers of threads."""
    runs = []
    for run in result.runs:
        progress(f"profile with {run.threads} thread{'s' if run.threads > 1 else ''}")
        runs.append(dataclasses.replace(run, profiles=profile_model(model, run.threads, prompt_length, decode_tokens)))
    return dataclasses.replace(result, runs=runs)


def profile_model(model: Path, threads: int, prompt_length: int, decode_tokens: int) -> tuple[StepProfile, StepProfile]:
    """The profiles of prefill and decode, each between two measurements of the limits. Raises the errors of loading a model."""
    options = BackendOptions(context=prompt_length + decode_tokens + 1, threads=threads, maximum_sequences=1, profile=True)
    work = work_of_file(model, options.cache_type)
    backend = cast(ProfilingBackend, load_backend("numba", model, options))
    try:
        with MachineLimits(threads) as machine:
            driver = _Driver(backend)
            ids = np.random.default_rng(0).integers(100, 30000, prompt_length + decode_tokens) % backend.capabilities.vocabulary
            driver.run(ids[:prompt_length], 0)  # warms up
            samples = [_sample(machine)]
            backend.take_profile()
            prefill_seconds = sum(driver.run(ids[:prompt_length], 0) for _ in range(PREFILL_REPEATS))
            prefill_times = backend.take_profile()
            samples.append(_sample(machine))
            backend.take_profile()
            decode_seconds = sum(driver.run(ids[position : position + 1], position) for position in range(prompt_length, prompt_length + decode_tokens))
            decode_times = backend.take_profile()
            samples.append(_sample(machine))
    finally:
        backend.close()
    steps = PREFILL_REPEATS * -(-prompt_length // backend.capabilities.maximum_step_rows)
    prefill_counts = [count_operation(operation, work, steps, PREFILL_REPEATS * prompt_length, PREFILL_REPEATS) for operation in prefill_times]
    positions = range(prompt_length + 1, prompt_length + decode_tokens + 1)
    decode_counts = [count_operation(operation, work, decode_tokens, decode_tokens, decode_tokens, positions) for operation in decode_times]
    limits = [_between(*samples[:2]), _between(*samples[1:])]
    return (
        StepProfile(
            PREFILL, f"prefill of {prompt_length}", steps, prefill_seconds, limits[0],
            operation_rows(prefill_times, prefill_counts, steps, limits[0]),
        ),
        StepProfile(
            DECODE, f"decode of {decode_tokens} after {prompt_length}", decode_tokens, decode_seconds, limits[1],
            operation_rows(decode_times, decode_counts, decode_tokens, limits[1]),
        ),
    )  # fmt: skip


def _sample(machine: MachineLimits) -> RooflineSample:
    return RooflineSample(read=machine.read(), int8=machine.int8())


def _between(before: RooflineSample, after: RooflineSample) -> RooflineSample:
    return RooflineSample(read={"best": roofline_between(before, after, DECODE)}, int8=roofline_between(before, after, PREFILL))


@dataclass(frozen=True)
class Counts:
    """What an operation computes and reads in all steps: int8 operations, bytes of packed weights and of cached keys and values."""

    operations: int = 0
    bytes_read: int = 0

    def shortest(self, limits: RooflineSample) -> float:
        """The seconds that the machine needs for it at least."""
        return max(self.operations / limits.int8, self.bytes_read / limits.best_read)


def count_operation(operation: OperationTime, work: ProgramWork, steps: int, rows: int, outputs: int, positions: Iterable[int] = ()) -> Counts:
    """The counts of an operation over `steps` steps of `rows` rows together, of which `outputs` ask for logits, no two in one step.

    A step reads a matrix once, the head only if it has an output. `positions`: those that each row sees, where each row is a step.
    """
    operations = bytes_read = 0
    for name in operation.matrices:
        matrix = work.matrices[name]
        operations += 2 * matrix.multiply_adds * (outputs if matrix.per_output else rows)
        bytes_read += matrix.packed_bytes * (outputs if matrix.per_output else steps)
    for store in operation.cache_stores:
        bytes_read += sum(work.store_bytes(store, seen) for seen in positions)
    return Counts(operations, bytes_read)


def group_of(label: str) -> str:
    """The label of an operation without its numbers: "linear blk.3.attn_q.weight" -> "linear blk.*.attn_q.weight"."""
    return re.sub(r"\d+", "*", label)


def operation_rows(times: Sequence[OperationTime], counts: Sequence[Counts], steps: int, limits: RooflineSample) -> tuple[ProfileRow, ...]:
    """The rows of a table, the most expensive first: operations of one label (but for its numbers) and kernel together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, operation in enumerate(times):
        groups.setdefault((group_of(operation.label), operation.kernel), []).append(index)
    total = sum(operation.seconds for operation in times)
    rows = []
    for (label, kernel), members in groups.items():
        seconds = sum(times[index].seconds for index in members)
        operations, bytes_read = (sum(getattr(counts[index], name) for index in members) for name in ("operations", "bytes_read"))
        counted = seconds > 0 and operations + bytes_read > 0
        rows.append(
            ProfileRow(
                operation=label,
                kernel=kernel,
                calls=len(members),
                seconds=seconds / steps,
                share=seconds / total if total else 0.0,
                operations_per_second=operations / seconds if counted and operations else None,
                bytes_per_second=bytes_read / seconds if counted and bytes_read else None,
                fraction=sum(counts[index].shortest(limits) for index in members) / seconds if counted else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


class _Driver:
    """Runs one sequence on a backend; its pages are the first ones."""

    def __init__(self, backend: ProfilingBackend) -> None:
        self._backend = backend
        self._rows = backend.capabilities.maximum_step_rows
        self._pages = tuple(np.arange(group.pages, dtype=np.int32) for group in backend.capabilities.cache_groups)

    def run(self, ids: Sequence[int] | Any, position: int) -> float:
        """Computes `ids` from `position` on, in steps as long as they may be, with logits for the last one. Wall-clock seconds of the steps."""
        total = 0.0
        for start in range(0, len(ids), self._rows):
            part = np.asarray(ids[start : start + self._rows], dtype=np.int32)
            rows = len(part)
            slots = np.arange(position + start, position + start + rows, dtype=np.int32)
            outputs = np.full(rows, OutputKind.NONE, dtype=np.uint8)
            if start + rows == len(ids):
                outputs[-1] = OutputKind.LOGITS
            zeros = np.zeros(rows, dtype=np.int32)
            step = Step(part, zeros, slots, slots, zeros, outputs, (SequenceTable(0, position + start, self._pages),))
            began = time.perf_counter()
            self._backend.step(step)
            total += time.perf_counter() - began
        return total

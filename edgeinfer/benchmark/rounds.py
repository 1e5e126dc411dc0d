"""Drives the engines: one process each, a warm-up, then rounds in which they take turns, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgeinfer.backends.numba.work import work_of_file
from edgeinfer.benchmark import results
from edgeinfer.benchmark.memory import PrivateMemory
from edgeinfer.benchmark.results import (
    DECODE,
    OURS,
    PREFILL,
    BenchmarkResult,
    EngineResult,
    Measurement,
    Memory,
    RooflineResult,
    RooflineSample,
    ThreadsResult,
    Work,
)
from edgeinfer.benchmark.roofline import ROOFLINE, roofline_between
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError

PEERS: Mapping[str, tuple[str, ...]] = {"llamacpp": ("llamacpp",), "ik_llamacpp": ("ik_llamacpp", "ik_llamacpp-repack")}
"""What a user may name -> the engines that run for it (ik_llama.cpp is measured as it comes and repacked)."""

DECODE_PROMPT = 16
MAXIMUM_BATCH = 32  # sequences that an engine of ours runs together by default
_SETTLE_SECONDS = 0.05  # a peer's threads spin a little after their work; ours must not share the cores with them


@dataclass(frozen=True)
class BenchmarkOptions:
    """What to measure: everything once for each entry of `threads`. `interpreters` maps a peer to the Python that has it, when that is not this one."""

    threads: tuple[int, ...]
    prompt_lengths: tuple[int, ...] = (512,)
    decode_tokens: int = 96
    batch_sizes: tuple[int, ...] = (1,)  # sequences that decode together
    rounds: int = 5
    peers: tuple[str, ...] = ("llamacpp",)
    interpreters: Mapping[str, str] = field(default_factory=dict)
    roofline: bool = True  # measure the machine's limits beside each engine

    def __post_init__(self) -> None:
        for name, value in (("rounds", self.rounds), ("decode tokens", self.decode_tokens)):
            if value < 1:
                raise InvalidRequestError(f"{name} is {value}; it must be a whole number of at least 1")
        for name, values in (("threads", self.threads), ("prompt lengths", self.prompt_lengths), ("batch sizes", self.batch_sizes)):
            if not values or min(values) < 1:
                raise InvalidRequestError(f"{name} are {list(values)}; give at least one, each at least 1")
        if max(self.batch_sizes) > MAXIMUM_BATCH:
            raise InvalidRequestError(f"batch sizes are {list(self.batch_sizes)}; at most {MAXIMUM_BATCH} sequences decode together")
        unknown = [peer for peer in self.peers if peer not in PEERS]
        if unknown:
            raise InvalidRequestError(f"there is no peer named {unknown[0]!r}; choose from {', '.join(PEERS)}")

    @property
    def context(self) -> int:
        """Tokens of context that a sequence has in every engine."""
        return max(1024, max(self.prompt_lengths) + 8, DECODE_PROMPT + self.decode_tokens + 8)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the sequences of an engine may keep together: a full context, or the largest batch in whole pages of its own."""
        page = 64
        each = -(-(DECODE_PROMPT + self.decode_tokens + 8) // page) * page
        return max(self.context, max(self.batch_sizes) * each)

    @property
    def measurements(self) -> dict[str, Measurement]:
        """By name, in the order of a round."""
        prefills = [Measurement(PREFILL, length) for length in self.prompt_lengths]
        decodes = [Measurement(DECODE, self.decode_tokens, size) for size in self.batch_sizes]
        return {measurement.name: measurement for measurement in (*prefills, *decodes)}


class Child:
    """One engine's process. Raises BackendUnavailableError when it cannot start, EdgeInferError when it fails later."""

    def __init__(self, engine: str, model: Path, settings: Mapping[str, Any], interpreter: str) -> None:
        script = Path(__file__).with_name("child.py")
        arguments = [engine, str(model), json.dumps(settings)]
        environment = dict(os.environ)
        if engine in (OURS, ROOFLINE):  # by module, so that it is this very package whatever the working folder is
            module = "edgeinfer.benchmark.child" if engine == OURS else "edgeinfer.benchmark.roofline"
            command = [interpreter, "-m", module, *arguments]
            root = str(script.parent.parent.parent)
            environment["PYTHONPATH"] = os.pathsep.join(part for part in (root, environment.get("PYTHONPATH", "")) if part)
        else:
            command = [interpreter, str(script), *arguments]
        self._engine = engine
        # What the engine prints about itself; its end is shown when it fails. `close` closes it.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8", env=environment
            )
        except OSError as error:
            self._log.close()
            raise BackendUnavailableError(f"{engine}: cannot start {interpreter}: {error.strerror}") from error
        self.memory = PrivateMemory(self._process.pid)
        try:
            with self.memory:
                self.description = self._read()
        except EdgeInferError as error:
            self.close()
            raise BackendUnavailableError(str(error)) from error

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EdgeInferError(f"{self._engine}: its process ended with code {self._process.wait()} and without an answer{self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise EdgeInferError(f"{self._engine}: {found['error']}")
        return found

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **values}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            code = self._process.wait()
            raise EdgeInferError(f"{self._engine}: its process ended with code {code} between two requests{self._last_words()}") from error
        return self._read()

    def _last_words(self) -> str:
        """The end of what the process printed to standard error, as the end of a sentence."""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").strip().splitlines()
        return f"; it said: {lines[-1]}" if lines else ""

    def close(self) -> None:
        """Ends the process by ending its input; kills it when it does not follow."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # the process is gone already
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def prompt_ids(length: int, vocabulary: int, turn: int = 0, sequence: int = 0) -> list[int]:
    """The prompt of every engine: seeded ids, rolled by the round, so that no engine can reuse what it computed before; others for each sequence."""
    ids = np.random.default_rng(sequence).integers(100, 30000, max(length, 512))[:length] % vocabulary
    return [int(token) for token in np.roll(ids, turn)]


def run_benchmark(model: Path, options: BenchmarkOptions, progress: Callable[[str], None] = lambda what: None) -> BenchmarkResult:
    """Measures our engine and every peer that can run; peers that cannot are named in `missing`. `progress(text)` is told what runs now.

    Raises the errors of a model file that cannot be read, BackendUnavailableError when our own engine cannot run, and EdgeInferError when an engine fails
    on the way.
    """
    work = count_measurements(model, options)
    runs = [_run(model, options, threads, work, progress) for threads in options.threads]
    return BenchmarkResult(
        model=model.stem,
        context=options.context,
        rounds=options.rounds,
        measurements=options.measurements,
        work=work,
        runs=runs,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=results.machine(),
        commit=results.commit(Path(__file__).parent),
    )


def count_measurements(model: Path, options: BenchmarkOptions) -> dict[str, Work]:
    """What each measurement must compute and read. A prompt's logits are asked for its last row; decoding starts after a prompt of DECODE_PROMPT."""
    counts = work_of_file(model)
    found = {}
    for name, measurement in options.measurements.items():
        if measurement.kind == PREFILL:
            found[name] = Work(counts.multiply_adds(measurement.tokens, 1), counts.weight_bytes, counts.file_weight_bytes)
        else:
            read = [counts.decode_bytes(DECODE_PROMPT, measurement.tokens, measurement.sequences, as_in_file) for as_in_file in (False, True)]
            found[name] = Work(counts.multiply_adds(measurement.total_tokens, measurement.total_tokens), read[0], read[1])
    return found


def _run(model: Path, options: BenchmarkOptions, threads: int, work: Mapping[str, Work], progress: Callable[[str], None]) -> ThreadsResult:
    """Everything with one number of threads: starts the processes, drives the rounds, ends the processes."""
    settings = {"threads": threads, "context": options.context, "cache_tokens": options.cache_tokens}
    children: dict[str, Child] = {}
    missing: dict[str, str] = {}
    limits: Child | None = None
    try:
        wanted = [(OURS, OURS)] + [(engine, name) for name in options.peers for engine in PEERS[name]]
        for engine, peer in wanted:
            progress(f"loading {engine}")
            try:
                children[engine] = Child(engine, model, settings, options.interpreters.get(peer, sys.executable))
            except BackendUnavailableError as error:
                if engine == OURS:
                    raise
                missing[engine] = str(error)
        if options.roofline:
            limits = Child(ROOFLINE, model, settings, options.interpreters.get(ROOFLINE, sys.executable))
        engines = {engine: _engine_result(engine, child.description) for engine, child in children.items()}
        samples = _measure(children, engines, limits, options, progress)
        roofline = RooflineResult(samples, limits.description["buffer_bytes"], limits.description["level"]) if limits is not None else None
    finally:
        for child in (*children.values(), *([limits] if limits is not None else [])):
            child.close()
    return ThreadsResult(threads, options.measurements, work, engines, missing, roofline)


def _engine_result(engine: str, description: dict[str, Any]) -> EngineResult:
    return EngineResult(engine, description["version"], description["settings"], description["load_seconds"])


def _measure(
    children: Mapping[str, Child], engines: Mapping[str, EngineResult], limits: Child | None, options: BenchmarkOptions, progress: Callable[[str], None]
) -> list[RooflineSample]:
    """Fills `engines` round by round; returns what was measured of the machine on the way."""
    vocabulary = min(child.description["vocabulary"] for child in children.values() if child.description["vocabulary"])
    samples: list[RooflineSample] = []
    remembered: dict[str, Memory] = {}
    for turn in range(options.rounds + 1):  # round 0 warms up: compiled kernels, page cache, thread pools
        order: Sequence[str] = list(children) if turn % 2 == 0 else list(reversed(list(children)))
        for engine in order:
            progress(f"{engine}: {'warm-up' if turn == 0 else f'round {turn} of {options.rounds}'}")
            for measurement in options.measurements.values():
                if measurement.sequences > 1 and engine not in remembered:  # memory is stated for a single sequence
                    remembered[engine] = _memory(children[engine], vocabulary)
                _measure_one(children[engine], engines[engine], limits if turn > 0 else None, measurement, vocabulary, turn, samples)
            if engine not in remembered:
                remembered[engine] = _memory(children[engine], vocabulary)
            engines[engine].memory = remembered[engine]
    return samples


def _measure_one(
    child: Child, found: EngineResult, limits: Child | None, measurement: Measurement, vocabulary: int, turn: int, samples: list[RooflineSample]
) -> None:
    """One measurement of one engine, between two samples of the limit that it is compared with, because neighbours change what the machine can do."""
    if measurement.name in found.skipped:
        return
    before = _sample(limits, measurement.kind)
    answer = _ask(child, measurement, vocabulary, turn)
    time.sleep(_SETTLE_SECONDS)
    if "skipped" in answer:
        found.skipped[measurement.name] = answer["skipped"]
        return
    if turn == 0:
        return
    found.seconds.setdefault(measurement.name, []).append(answer["seconds"])
    after = _sample(limits, measurement.kind)
    if before is not None and after is not None:
        samples += [before, after]
        found.limits.setdefault(measurement.name, []).append(roofline_between(before, after, measurement.kind))


def _ask(child: Child, measurement: Measurement, vocabulary: int, turn: int) -> dict[str, Any]:
    if measurement.kind == PREFILL:
        return child.ask("prefill", ids=prompt_ids(measurement.tokens, vocabulary, turn))
    if measurement.sequences == 1:
        return child.ask("decode", ids=prompt_ids(512, vocabulary, turn)[:DECODE_PROMPT], count=measurement.tokens)
    prompts = [prompt_ids(DECODE_PROMPT, vocabulary, turn, sequence) for sequence in range(1, measurement.sequences + 1)]
    return child.ask("decode_together", prompts=prompts, count=measurement.tokens)


def _sample(limits: Child | None, kind: str) -> RooflineSample | None:
    return RooflineSample(**limits.ask("int8" if kind == PREFILL else "read")) if limits is not None else None


def _memory(child: Child, vocabulary: int) -> Memory:
    """The file's pages are given back first, and a prompt and some tokens are computed: what is mapped then is what the engine reads to answer."""
    child.ask("forget_file")
    child.ask("decode", ids=prompt_ids(512, vocabulary)[-DECODE_PROMPT:], count=4)
    found = child.ask("memory")
    return Memory(max(child.memory.peak, found["private_bytes"]), found["file_bytes"], found["resident_peak_bytes"])

"""Drives the engines: one process each, a warm-up, then rounds in which they take turns, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.numba.work import work_of_file
from edgeinfer.benchmark import record
from edgeinfer.benchmark.peers.runner import Start
from edgeinfer.benchmark.process import Child
from edgeinfer.benchmark.results import (
    DECODE,
    PREFILL,
    BenchmarkResult,
    EngineResult,
    Measurement,
    Memory,
    RooflineResult,
    RooflineSample,
    ThreadsResult,
    Work,
    engine_on,
)
from edgeinfer.benchmark.roofline import ROOFLINE, roofline_between
from edgeinfer.benchmark.search import Team
from edgeinfer.benchmark.settings import AXES, Settings
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError, MemoryPlanError, UnknownChoiceError
from edgeinfer.gguf.reader import GGUFFile

PEERS = tuple(AXES)
"""What a user may name."""

DECODE_PROMPT = 16
MAXIMUM_BATCH = 32  # sequences that an engine of ours runs together by default
_SETTLE_SECONDS = 0.05  # a peer's threads spin a little after their work; ours must not share the cores with them


@dataclass(frozen=True)
class BenchmarkOptions:
    """What to measure: everything once for each entry of `threads`; without prompt lengths no prefill, without batch sizes no decode. `interpreters` maps a
    peer to the Python that has it, when that is not this one.
    """

    threads: tuple[int, ...]
    prompt_lengths: tuple[int, ...] = (512,)
    decode_tokens: int = 96
    batch_sizes: tuple[int, ...] = (1,)  # sequences that decode together
    rounds: int = 5
    peers: tuple[str, ...] = ("llamacpp",)
    backends: tuple[str, ...] = ("numba",)  # of our engine; the first must run
    interpreters: Mapping[str, str] = field(default_factory=dict)
    roofline: bool = True  # measure the machine's limits beside each engine
    search: bool = True  # look for each peer's fastest settings first
    provider: str | None = None  # of ONNX Runtime, for the backend onnx, and the share of the graph that it must run: see `BackendOptions`
    minimum_share: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("rounds", self.rounds), ("decode tokens", self.decode_tokens)):
            if value < 1:
                raise InvalidRequestError(f"{name} is {value}; it must be a whole number of at least 1")
        for name, values in (("threads", self.threads), ("prompt lengths", self.prompt_lengths), ("batch sizes", self.batch_sizes)):
            if min(values, default=1) < 1 or (name == "threads" and not values):
                raise InvalidRequestError(f"{name} are {list(values)}; give at least one, each at least 1")
        if not self.prompt_lengths and not self.batch_sizes:
            raise InvalidRequestError("there are neither prompt lengths nor batch sizes, so nothing to measure; give at least one")
        if max(self.batch_sizes, default=1) > MAXIMUM_BATCH:
            raise InvalidRequestError(f"batch sizes are {list(self.batch_sizes)}; at most {MAXIMUM_BATCH} sequences decode together")
        if not self.backends:
            raise InvalidRequestError("no backend was named; give at least one, such as numba")
        if self.provider is not None and "onnx" not in self.backends:
            raise InvalidRequestError(f"provider is {self.provider!r}, but the backend onnx, which alone has some, is not among the backends; name it as well")
        unknown = [peer for peer in self.peers if peer not in PEERS]
        if unknown:
            raise InvalidRequestError(f"there is no peer named {unknown[0]!r}; choose from {', '.join(PEERS)}")

    @property
    def context(self) -> int:
        """Tokens of context that a sequence has in every engine."""
        return max(1024, max(self.prompt_lengths, default=1) + 8, DECODE_PROMPT + self.decode_tokens + 8)

    @property
    def context_together(self) -> int:
        """Tokens of context that each sequence has in a peer that decodes several, for which it makes a context of their own."""
        return -(-(DECODE_PROMPT + self.decode_tokens + 8) // 256) * 256

    @property
    def cache_tokens(self) -> int:
        """Tokens that the sequences of an engine may keep together: a full context, or the largest batch in whole pages of its own."""
        page = 64
        each = -(-(DECODE_PROMPT + self.decode_tokens + 8) // page) * page
        return max(self.context, max(self.batch_sizes, default=1) * each)

    @property
    def measurements(self) -> dict[str, Measurement]:
        """By name, in the order of a round."""
        prefills = [Measurement(PREFILL, length) for length in self.prompt_lengths]
        decodes = [Measurement(DECODE, self.decode_tokens, size) for size in self.batch_sizes]
        return {measurement.name: measurement for measurement in (*prefills, *decodes)}


def prompt_ids(length: int, vocabulary: int, turn: int = 0, sequence: int = 0) -> list[int]:
    """The prompt of every engine: seeded ids, others for each length and sequence, rolled by the round, so that none can reuse what it computed before."""
    ids = np.random.default_rng((length, sequence)).integers(100, 30000, length) % vocabulary
    return [int(token) for token in np.roll(ids, turn)]


def run_benchmark(model: Path, options: BenchmarkOptions, progress: Callable[[str], None] = lambda what: None) -> BenchmarkResult:
    """Measures our engine and every peer that can run; peers that cannot are named in `missing`. `progress(text)` is told what runs now.

    Raises the errors of a model file that cannot be read, BackendUnavailableError when our own engine cannot run, and EdgeInferError when an engine fails
    on the way.
    """
    with GGUFFile.open(model) as file:
        model = Path(file.path)  # of a split model the first shard: peers open it by that alone
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
        machine=record.machine(),
        commit=record.commit(Path(__file__).parent),
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
    """Everything with one number of threads: starts the processes, finds the peers' settings, drives the rounds, ends the processes."""
    teams: dict[str, Team] = {}
    missing: dict[str, str] = {}
    limits: Child | None = None
    try:
        ours = [engine_on(backend) for backend in options.backends]
        for engine in (*ours, *options.peers):
            progress(f"loading {engine}")
            try:
                teams[engine] = Team(engine, _opener(engine, model, options, threads))
            except (BackendUnavailableError, MemoryPlanError) as error:
                if engine == ours[0] or isinstance(error, UnknownChoiceError):
                    raise
                missing[engine] = str(error).removeprefix(f"{engine}: ")
        vocabulary = min(team.description["vocabulary"] for team in teams.values() if team.description["vocabulary"])
        if options.search:
            for engine, team in teams.items():
                if engine not in ours:
                    progress(f"searching the fastest settings of {engine}")
                    team.search(options.measurements, lambda child, measurement, turn: float(_ask(child, measurement, vocabulary, turn)["seconds"]))
        if options.roofline:
            try:
                limits = _opener(ROOFLINE, model, options, threads)({}, 1)
            except BackendUnavailableError as error:
                raise BackendUnavailableError(f"the machine's limits cannot be measured ({error}); --no-roofline leaves them out") from error
        engines = {engine: _engine_result(team, options) for engine, team in teams.items()}
        samples = _measure(teams, engines, limits, options, vocabulary, progress)
        for engine, team in teams.items():
            engines[engine].settings = team.settings_text(options.measurements)  # a long prompt may have made it fall back
        roofline = RooflineResult(samples, limits.description["buffer_bytes"], limits.description["level"]) if limits is not None else None
    finally:
        for team in teams.values():
            team.close()
        if limits is not None:
            limits.close()
    return ThreadsResult(threads, options.measurements, work, engines, missing, roofline)


def _opener(engine: str, model: Path, options: BenchmarkOptions, threads: int) -> Callable[[Settings, int], Child]:
    def open_child(settings: Settings, sequences: int) -> Child:
        context = options.context if sequences == 1 else options.context_together
        start = Start(engine, str(model), threads, context, sequences, options.cache_tokens, {**settings, **_own_settings(engine, options)})
        return Child(start, options.interpreters.get(engine, sys.executable))

    return open_child


def _own_settings(engine: str, options: BenchmarkOptions) -> Settings:
    """What our engine is told beside what every engine is."""
    if engine != engine_on("onnx") or options.provider is None:
        return {}
    return {"provider": options.provider, "minimum_share": options.minimum_share}


def _engine_result(team: Team, options: BenchmarkOptions) -> EngineResult:
    settings = team.settings_text(options.measurements)
    return EngineResult(team.engine, team.description["version"], settings, team.description["load_seconds"], chosen=team.chosen, trials=team.trials)


def _measure(
    teams: Mapping[str, Team],
    engines: Mapping[str, EngineResult],
    limits: Child | None,
    options: BenchmarkOptions,
    vocabulary: int,
    progress: Callable[[str], None],
) -> list[RooflineSample]:
    """Fills `engines` round by round; returns what was measured of the machine on the way."""
    samples: list[RooflineSample] = []
    for turn in range(options.rounds + 1):  # round 0 warms up: compiled kernels, page cache, thread pools
        order: Sequence[str] = list(teams) if turn % 2 == 0 else list(reversed(list(teams)))
        for engine in order:
            progress(f"{engine}: {'warm-up' if turn == 0 else f'round {turn} of {options.rounds}'}")
            for measurement in options.measurements.values():
                found, must = engines[engine], engine == engine_on(options.backends[0])
                _measure_one(teams[engine], found, must, limits if turn > 0 else None, measurement, vocabulary, turn, samples)
                if turn == 0 and measurement.sequences == 1 and measurement.name not in found.skipped:
                    # stated for a single sequence; of a peer that runs in several processes, for the one that ran the last such measurement
                    try:
                        found.memory = answering_memory(teams[engine].child(measurement), vocabulary)
                    except EdgeInferError as error:  # it reads a prompt, but cannot answer
                        if must:
                            raise
                        found.skipped[measurement.name] = str(error)
    return samples


def _measure_one(
    team: Team, found: EngineResult, must: bool, limits: Child | None, measurement: Measurement, vocabulary: int, turn: int, samples: list[RooflineSample]
) -> None:
    """One measurement of one engine, between two samples of the limit that it is compared with, because neighbours change what the machine can do.

    What an engine cannot do at all shows in the first round, and is left out, unless it `must`.
    """
    if measurement.name in found.skipped:
        return
    before = _sample(limits, measurement.kind)
    seconds = None
    while seconds is None:
        try:
            seconds = float(_ask(team.child(measurement), measurement, vocabulary, turn)["seconds"])
        except EdgeInferError as error:
            if turn > 0 or must:
                raise
            if not team.fall_back(measurement):
                found.skipped[measurement.name] = str(error)
                return
    time.sleep(_SETTLE_SECONDS)
    if turn == 0:
        return
    found.seconds.setdefault(measurement.name, []).append(seconds)
    after = _sample(limits, measurement.kind)
    if before is not None and after is not None:
        samples += [before, after]
        found.limits.setdefault(measurement.name, []).append(roofline_between(before, after, measurement.kind))


def _ask(child: Child, measurement: Measurement, vocabulary: int, turn: int) -> dict[str, Any]:
    if measurement.kind == PREFILL:
        return child.ask("prefill", ids=prompt_ids(measurement.tokens, vocabulary, turn))
    if measurement.sequences == 1:
        prompts = [prompt_ids(512, vocabulary, turn)[:DECODE_PROMPT]]
    else:
        prompts = [prompt_ids(512, vocabulary, turn, sequence)[:DECODE_PROMPT] for sequence in range(1, measurement.sequences + 1)]
    return child.ask("decode", prompts=prompts, count=measurement.tokens)


def _sample(limits: Child | None, kind: str) -> RooflineSample | None:
    return RooflineSample(**limits.ask("int8" if kind == PREFILL else "read")) if limits is not None else None


def answering_memory(child: Child, vocabulary: int) -> Memory:
    """The file's pages are given back first, and a prompt and some tokens are computed: what is mapped then is what the engine reads to answer."""
    child.ask("forget_file")
    child.ask("decode", prompts=[prompt_ids(512, vocabulary)[-DECODE_PROMPT:]], count=4)
    found = child.ask("memory")
    return Memory(max(child.memory.peak, found["private_bytes"]), found["file_bytes"], found["resident_peak_bytes"])

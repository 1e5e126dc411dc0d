"""What a benchmark found, summed up: medians over rounds, ratios to a peer, fractions of the machine's limits, and the object of `--json`.

Pure functions and records. A `BenchmarkResult` has one `ThreadsResult` for each number of threads; that has an `EngineResult` for each engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OURS = "edgeinfer"
"""Our engine on the backend numba. On another backend it is called `edgeinfer-BACKEND`: see `engine_on`."""

PREFILL, DECODE = "prefill", "decode"


def engine_on(backend: str) -> str:
    """The name of our engine on a backend: edgeinfer, edgeinfer-onnx."""
    return OURS if backend == "numba" else f"{OURS}-{backend}"


def backend_of(engine: str) -> str | None:
    """The backend that our engine of this name runs on; None for a peer."""
    if engine == OURS:
        return "numba"
    return engine.removeprefix(f"{OURS}-") if engine.startswith(f"{OURS}-") else None


@dataclass(frozen=True)
class Measurement:
    """One thing that every engine does in a round: `prefill`, one prompt of `tokens` up to its first token; or `decode`, `tokens` more for each of
    `sequences` prompts of 16, a token of each in one step.
    """

    kind: str
    tokens: int
    sequences: int = 1

    @property
    def name(self) -> str:
        """ "prefill 512", "decode 96", "decode 96 x 8": the key in records."""
        return f"{self.kind} {self.tokens}" + (f" x {self.sequences}" if self.sequences > 1 else "")

    @property
    def total_tokens(self) -> int:
        """Tokens that its seconds stand for."""
        return self.tokens * self.sequences


@dataclass(frozen=True)
class Work:
    """What a measurement must compute and read in all, by the model's program: see `backends.numba.work`. Bytes are counted with the weights as our
    engine packs them (`bytes_read`) and as the file has them (`file_bytes_read`, for peers).
    """

    multiply_adds: int
    bytes_read: int
    file_bytes_read: int


@dataclass(frozen=True)
class RooflineSample:
    """The machine's limits with all threads of the run, measured within a second. Bytes and operations a second; a multiply-add is two operations."""

    read: Mapping[str, float] = field(default_factory=dict)  # by read pattern
    int8: float = 0.0
    int8_one_core: float = 0.0

    @property
    def best_read(self) -> float:
        return max(self.read.values())


@dataclass(frozen=True)
class RooflineResult:
    """All samples of one run, and the bytes of the buffer that was read."""

    samples: Sequence[RooflineSample]
    buffer_bytes: int
    level: str  # the instruction set of its kernels

    def read(self, pattern: str) -> float:
        """Median bytes a second of a read pattern."""
        return statistics.median(sample.read[pattern] for sample in self.samples if pattern in sample.read)

    @property
    def patterns(self) -> list[str]:
        return list(dict.fromkeys(pattern for sample in self.samples for pattern in sample.read))

    @property
    def best_read(self) -> float:
        """Median over the samples of the best pattern's bytes a second."""
        return statistics.median(sample.best_read for sample in self.samples if sample.read)

    @property
    def has_int8(self) -> bool:
        return any(sample.int8 for sample in self.samples)

    @property
    def int8(self) -> float:
        """Median int8 operations a second of all threads."""
        return statistics.median(sample.int8 for sample in self.samples if sample.int8)

    @property
    def int8_one_core(self) -> float:
        return statistics.median(sample.int8_one_core for sample in self.samples if sample.int8_one_core)

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "buffer_bytes": self.buffer_bytes,
            "read_bytes_per_second": round(self.best_read) if self.patterns else None,
            "read_patterns": {pattern: round(self.read(pattern)) for pattern in self.patterns},
            "int8_operations_per_second": round(self.int8) if self.has_int8 else None,
            "int8_operations_per_second_one_core": round(self.int8_one_core) if self.has_int8 else None,
        }


@dataclass(frozen=True)
class Memory:
    """Bytes of an engine's process; `benchmark.memory` says how they are found.

    `private_peak`: the most anonymous and shared memory it ever held. `file_pages`: pages of files (program code, and of the model those that it still
    reads when it answers). Their sum is the peak without counting a weight twice that was copied out of the file. `resident_peak` is the kernel's own
    high-water mark (VmHWM), with every page of the file that was ever mapped at that moment.
    """

    private_peak: int = 0
    file_pages: int = 0
    resident_peak: int = 0

    @property
    def peak(self) -> int:
        return self.private_peak + self.file_pages

    def to_json(self) -> dict[str, int]:
        return {
            "peak_bytes": self.peak,
            "private_peak_bytes": self.private_peak,
            "file_pages_bytes": self.file_pages,
            "resident_peak_bytes": self.resident_peak,
        }


@dataclass(frozen=True)
class Trial:
    """What the search for a peer's fastest settings found: one measurement with some settings, or why they failed."""

    measurement: str
    settings: Mapping[str, Any]
    tokens_per_second: float = 0.0
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        figure = {"tokens_per_second": round(self.tokens_per_second, 2)} if self.failure is None else {"failure": self.failure}
        return {"measurement": self.measurement, "settings": dict(self.settings), **figure}


@dataclass
class EngineResult:
    """One engine of one run: how it describes itself, and by name of a measurement the seconds of each round and the machine's limit at that moment
    (bytes or operations a second). `skipped` says why it has no figure for a measurement. `chosen` are a peer's settings by measurement, the fastest of
    its `trials`.
    """

    engine: str
    version: str
    settings: str
    load_seconds: float
    seconds: dict[str, list[float]] = field(default_factory=dict)
    limits: dict[str, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    memory: Memory = Memory()
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trials: Sequence[Trial] = ()


@dataclass(frozen=True)
class ProfileRow:
    """A kind of operation in a step: how many there are, their seconds together, their share of all. Where they multiply by matrices or read the cache:
    int8 operations and bytes a second, and the fraction: the time that the machine's limits allow over the time that was taken.
    """

    operation: str
    kernel: str
    calls: int
    seconds: float
    share: float
    operations_per_second: float | None = None
    bytes_per_second: float | None = None
    fraction: float | None = None


@dataclass(frozen=True)
class StepProfile:
    """Where the time of our engine's steps goes. `seconds` is the wall-clock time of all `steps`, what is outside of operations included."""

    kind: str
    title: str
    steps: int
    seconds: float
    limits: RooflineSample
    rows: Sequence[ProfileRow]

    @property
    def outside(self) -> float:
        """Seconds of a step that no operation accounts for: filling the step's record, waking the workers."""
        return self.seconds / self.steps - sum(row.seconds for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        operations = [
            {
                "operation": row.operation,
                "kernel": row.kernel,
                "calls": row.calls,
                "microseconds": round(row.seconds * 1e6, 2),
                "share": round(row.share, 4),
                "operations_per_second": round(row.operations_per_second) if row.operations_per_second is not None else None,
                "bytes_per_second": round(row.bytes_per_second) if row.bytes_per_second is not None else None,
                "fraction_of_roofline": round(row.fraction, 4) if row.fraction is not None else None,
            }
            for row in self.rows
        ]
        return {
            "title": self.title,
            "steps": self.steps,
            "microseconds_per_step": round(self.seconds / self.steps * 1e6, 2),
            "microseconds_outside_operations": round(self.outside * 1e6, 2),
            "read_bytes_per_second": round(self.limits.best_read),
            "int8_operations_per_second": round(self.limits.int8),
            "operations": operations,
        }


@dataclass(frozen=True)
class ThreadsResult:
    """All engines with one number of threads. `missing` says of a peer why it could not run; `profiles` are of our engine, where asked for."""

    threads: int
    measurements: Mapping[str, Measurement]
    work: Mapping[str, Work]
    engines: Mapping[str, EngineResult]
    missing: Mapping[str, str]
    roofline: RooflineResult | None = None
    profiles: Sequence[StepProfile] = ()

    @property
    def base(self) -> str:
        """The engine that all others are compared with: ours on numba, or else on the first backend that was asked for."""
        return OURS if OURS in self.engines else next(iter(self.engines))

    def peers(self) -> list[str]:
        """The engines that ran beside it: peers, and ours on other backends."""
        return [engine for engine in self.engines if engine != self.base]

    def has(self, engine: str, measurement: str) -> bool:
        return bool(self.engines[engine].seconds.get(measurement))

    def comparable(self, peer: str, measurement: str) -> bool:
        """Whether there is a ratio: both were measured."""
        return self.has(peer, measurement) and self.has(self.base, measurement)

    def speed(self, engine: str, measurement: str) -> float:
        """Median tokens a second over the rounds, of all sequences together."""
        tokens = self.measurements[measurement].total_tokens
        return statistics.median(tokens / seconds for seconds in self.engines[engine].seconds[measurement])

    def first_token(self, engine: str, measurement: str) -> float:
        """Median seconds to the first token of a prefill measurement."""
        return statistics.median(self.engines[engine].seconds[measurement])

    def ratio(self, peer: str, measurement: str) -> float:
        """The median over the rounds of our speed over the peer's in the same round: above 1 we are faster. "Ours" is that of `base`."""
        ours, theirs = (self.engines[engine].seconds[measurement] for engine in (self.base, peer))
        return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))

    def rate(self, engine: str, measurement: str) -> float:
        """Median bytes read (decode) or int8 operations (prefill) a second."""
        amount = self._amount(engine, measurement)
        return statistics.median(amount / seconds for seconds in self.engines[engine].seconds[measurement])

    def fraction(self, engine: str, measurement: str) -> float | None:
        """The median over the rounds of what was read or computed a second over what the machine could at that moment: its read bandwidth for a
        decode, its int8 peak for a prefill. None without a roofline.
        """
        found = self.engines[engine]
        limits = found.limits.get(measurement)
        if not limits:
            return None
        amount = self._amount(engine, measurement)
        return statistics.median(amount / seconds / limit for seconds, limit in zip(found.seconds[measurement], limits, strict=True))

    def _amount(self, engine: str, measurement: str) -> int:
        work = self.work[measurement]
        if self.measurements[measurement].kind == PREFILL:
            return 2 * work.multiply_adds
        return work.bytes_read if engine == OURS else work.file_bytes_read

    def to_json(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "roofline": self.roofline.to_json() if self.roofline is not None else None,
            "engines": {name: self._engine_json(name) for name in self.engines},
            "ratios": {peer: {name: round(self.ratio(peer, name), 3) for name in self.measurements if self.comparable(peer, name)} for peer in self.peers()},
            "missing": dict(self.missing),
            "profiles": {profile.kind: profile.to_json() for profile in self.profiles},
        }

    def _engine_json(self, engine: str) -> dict[str, Any]:
        found = self.engines[engine]
        measurements = {}
        for name in found.seconds:
            measurement = self.measurements[name]
            entry: dict[str, Any] = {
                "tokens_per_second": round(self.speed(engine, name), 2),
                "rounds": [round(measurement.total_tokens / seconds, 2) for seconds in found.seconds[name]],
            }
            if name in self.work:
                entry["operations_per_second" if measurement.kind == PREFILL else "bytes_per_second"] = round(self.rate(engine, name))
                fraction = self.fraction(engine, name)
                entry["fraction_of_roofline"] = round(fraction, 4) if fraction is not None else None
            if measurement.kind == PREFILL:
                entry["first_token_seconds"] = round(self.first_token(engine, name), 5)
            measurements[name] = entry
        return {
            "version": found.version,
            "settings": found.settings,
            "load_seconds": round(found.load_seconds, 3),
            "memory": found.memory.to_json(),
            "measurements": measurements,
            "skipped": dict(found.skipped),
            "chosen": {name: dict(settings) for name, settings in found.chosen.items()},
            "searched": [trial.to_json() for trial in found.trials],
        }


@dataclass(frozen=True)
class BenchmarkResult:
    """One call of the benchmark. `runs` has one entry for each number of threads, in the order asked for."""

    model: str
    context: int
    rounds: int
    measurements: Mapping[str, Measurement]
    work: Mapping[str, Work]
    runs: Sequence[ThreadsResult]
    date: str
    machine: Mapping[str, Any]
    commit: str | None

    def to_json(self) -> dict[str, Any]:
        """The object of `--json` and of the file: every round's tokens a second, medians, ratios, fractions, versions, machine and commit."""
        measurements = {}
        for name, measurement in self.measurements.items():
            measurements[name] = asdict(measurement)
            if name in self.work:
                measurements[name] |= asdict(self.work[name])
        return {
            "model": self.model,
            "context": self.context,
            "rounds": self.rounds,
            "date": self.date,
            "machine": dict(self.machine),
            "commit": self.commit,
            "measurements": measurements,
            "runs": [run.to_json() for run in self.runs],
        }

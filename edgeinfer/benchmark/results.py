"""What a benchmark found, summed up: medians over rounds, ratios to a peer, and the record that is written to a file. Pure functions."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeinfer.core import host
from edgeinfer.core.errors import EdgeInferError

OURS = "edgeinfer"


@dataclass
class EngineResult:
    """One engine: how it describes itself, the seconds of each round by measurement ("prefill 512", "decode 96"), and its memory in bytes."""

    engine: str
    version: str
    settings: str
    load_seconds: float
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: int = 0
    anonymous_bytes: int = 0


@dataclass(frozen=True)
class BenchmarkResult:
    """All engines of one run. `tokens[measurement]` is how many tokens its seconds stand for."""

    model: str
    threads: int
    context: int
    rounds: int
    tokens: Mapping[str, int]
    engines: Mapping[str, EngineResult]
    missing: Mapping[str, str]  # peer -> why it could not run
    date: str
    machine: Mapping[str, Any]
    commit: str | None

    def speed(self, engine: str, measurement: str) -> float:
        """Median tokens a second over the rounds."""
        return statistics.median(self.tokens[measurement] / seconds for seconds in self.engines[engine].seconds[measurement])

    def first_token(self, engine: str, measurement: str) -> float:
        """Median seconds to the first token of a prefill measurement."""
        return statistics.median(self.engines[engine].seconds[measurement])

    def ratio(self, peer: str, measurement: str) -> float:
        """Our median speed over the peer's: above 1 we are faster."""
        return self.speed(OURS, measurement) / self.speed(peer, measurement)

    def peers(self) -> list[str]:
        """The engines that ran beside ours."""
        return [engine for engine in self.engines if engine != OURS]

    def to_json(self) -> dict[str, Any]:
        """The object of `--json` and of the file: every round's tokens a second, medians, ratios, versions, machine and commit."""
        engines = {}
        for name, found in self.engines.items():
            measurements = {}
            for measurement, seconds in found.seconds.items():
                measurements[measurement] = {
                    "tokens_per_second": round(self.speed(name, measurement), 2),
                    "rounds": [round(self.tokens[measurement] / value, 2) for value in seconds],
                }
                if measurement.startswith("prefill"):
                    measurements[measurement]["first_token_seconds"] = round(self.first_token(name, measurement), 5)
            engines[name] = {
                "version": found.version,
                "settings": found.settings,
                "load_seconds": round(found.load_seconds, 3),
                "peak_bytes": found.peak_bytes,
                "anonymous_bytes": found.anonymous_bytes,
                "measurements": measurements,
            }
        return {
            "model": self.model,
            "threads": self.threads,
            "context": self.context,
            "rounds": self.rounds,
            "date": self.date,
            "machine": dict(self.machine),
            "commit": self.commit,
            "engines": engines,
            "ratios": {peer: {measurement: round(self.ratio(peer, measurement), 3) for measurement in self.tokens} for peer in self.peers()},
            "missing": dict(self.missing),
        }


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory, system and load of this machine."""
    cores = host.usable_cores()
    return {
        "processor": host.processor_name(),
        "usable_cores": cores.count,
        "usable_cores_reason": cores.reason,
        "memory_bytes": host.total_memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def commit(folder: Path) -> str | None:
    """The commit of the checkout that holds `folder`, with `+` for uncommitted changes; None outside a checkout."""
    try:
        run = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        changed = subprocess.run(["git", "-C", str(folder), "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() + ("+" if changed.stdout.strip() else "")


def write_result(result: BenchmarkResult, folder: Path) -> Path:
    """Writes the result as DATE-MODEL.json into `folder`, which is made if need be; a second run of a day replaces the first."""
    path = folder / f"{result.date[:10]}-{result.model}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise EdgeInferError(f"cannot write {path}: {error.strerror}; choose another folder with --write") from error
    return path

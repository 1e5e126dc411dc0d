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

from edgeinfer.benchmark import results
from edgeinfer.benchmark.results import OURS, BenchmarkResult, EngineResult
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError

PEERS: Mapping[str, tuple[str, ...]] = {"llamacpp": ("llamacpp",), "ik_llamacpp": ("ik_llamacpp", "ik_llamacpp-repack")}
"""What a user may name -> the engines that run for it (ik_llama.cpp is measured as it comes and repacked)."""

DECODE_PROMPT = 16
_SETTLE_SECONDS = 0.05  # a peer's threads spin a little after their work; ours must not share the cores with them


@dataclass(frozen=True)
class BenchmarkOptions:
    """What to measure. `interpreters` maps a peer to the Python that has it, when that is not this one."""

    threads: int
    prompt_lengths: tuple[int, ...] = (512,)
    decode_tokens: int = 96
    rounds: int = 5
    peers: tuple[str, ...] = ("llamacpp",)
    interpreters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in (("threads", (self.threads,)), ("rounds", (self.rounds,)), ("decode tokens", (self.decode_tokens,))):
            if min(values) < 1:
                raise InvalidRequestError(f"{name} is {values[0]}; it must be a whole number of at least 1")
        if not self.prompt_lengths or min(self.prompt_lengths) < 1:
            raise InvalidRequestError(f"prompt lengths are {list(self.prompt_lengths)}; give at least one, each at least 1")
        unknown = [peer for peer in self.peers if peer not in PEERS]
        if unknown:
            raise InvalidRequestError(f"there is no peer named {unknown[0]!r}; choose from {', '.join(PEERS)}")

    @property
    def context(self) -> int:
        """Tokens of context that every engine is given."""
        return max(1024, max(self.prompt_lengths) + 8, DECODE_PROMPT + self.decode_tokens + 8)


class Child:
    """One engine's process. Raises BackendUnavailableError when it cannot start, EdgeInferError when it fails later."""

    def __init__(self, engine: str, model: Path, options: BenchmarkOptions, interpreter: str) -> None:
        script = Path(__file__).with_name("child.py")
        arguments = [engine, str(model), str(options.threads), str(options.context)]
        environment = dict(os.environ)
        if engine == OURS:  # by module, so that it is this very package whatever the working folder is
            command = [interpreter, "-m", "edgeinfer.benchmark.child", *arguments]
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
        try:
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


def prompt_ids(length: int, vocabulary: int, turn: int = 0) -> list[int]:
    """The prompt of every engine: seeded ids, rolled by the round, so that no engine can reuse what it computed before."""
    ids = np.random.default_rng(0).integers(100, 30000, max(length, 512))[:length] % vocabulary
    return [int(token) for token in np.roll(ids, turn)]


def run_benchmark(model: Path, options: BenchmarkOptions, progress: Callable[[str], None] = lambda what: None) -> BenchmarkResult:
    """Measures our engine and every peer that can run; peers that cannot are named in `missing`. `progress(text)` is told what runs now.

    Raises BackendUnavailableError when our own engine cannot run, and EdgeInferError when an engine fails on the way.
    """
    children: dict[str, Child] = {}
    missing: dict[str, str] = {}
    try:
        wanted = [(OURS, OURS)] + [(engine, name) for name in options.peers for engine in PEERS[name]]
        for engine, peer in wanted:
            progress(f"loading {engine}")
            try:
                children[engine] = Child(engine, model, options, options.interpreters.get(peer, sys.executable))
            except BackendUnavailableError as error:
                if engine == OURS:
                    raise
                missing[engine] = str(error)
        engines = {engine: _engine_result(engine, child.description) for engine, child in children.items()}
        _measure(children, engines, options, progress)
    finally:
        for child in children.values():
            child.close()
    tokens = {f"prefill {length}": length for length in options.prompt_lengths}
    tokens[f"decode {options.decode_tokens}"] = options.decode_tokens
    return BenchmarkResult(
        model=model.stem,
        threads=options.threads,
        context=options.context,
        rounds=options.rounds,
        tokens=tokens,
        engines=engines,
        missing=missing,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=results.machine(),
        commit=results.commit(Path(__file__).parent),
    )


def _engine_result(engine: str, description: dict[str, Any]) -> EngineResult:
    return EngineResult(engine, description["version"], description["settings"], description["load_seconds"])


def _measure(children: Mapping[str, Child], engines: Mapping[str, EngineResult], options: BenchmarkOptions, progress: Callable[[str], None]) -> None:
    vocabulary = min(child.description["vocabulary"] for child in children.values() if child.description["vocabulary"])
    for turn in range(options.rounds + 1):  # round 0 warms up: compiled kernels, page cache, thread pools
        order: Sequence[str] = list(children) if turn % 2 == 0 else list(reversed(list(children)))
        for engine in order:
            progress(f"{engine}: {'warm-up' if turn == 0 else f'round {turn} of {options.rounds}'}")
            for name, seconds in _one_round(children[engine], vocabulary, options, turn):
                if turn > 0:
                    engines[engine].seconds.setdefault(name, []).append(seconds)
            time.sleep(_SETTLE_SECONDS)
    for engine, child in children.items():
        found = child.ask("memory")
        engines[engine].peak_bytes, engines[engine].anonymous_bytes = found["peak_bytes"], found["anonymous_bytes"]


def _one_round(child: Child, vocabulary: int, options: BenchmarkOptions, turn: int) -> list[tuple[str, float]]:
    measured = []
    for length in options.prompt_lengths:
        seconds = child.ask("prefill", ids=prompt_ids(length, vocabulary, turn))["seconds"]
        measured.append((f"prefill {length}", seconds))
    decoded = child.ask("decode", ids=prompt_ids(512, vocabulary, turn)[:DECODE_PROMPT], count=options.decode_tokens)["seconds"]
    measured.append((f"decode {options.decode_tokens}", decoded))
    return measured

"""`--backend auto`: the backend that a benchmark on this machine found fastest for a model, and numba where nothing was measured.

`edgeinfer bench MODEL --backends ...` calls `keep` with what it measured in one run; `load_auto` is what the engine calls; the doctor prints `kept`.
A measurement belongs to the model's tensors (their shapes and formats decide speed, their values do not), to the processor, to the version of edgeinfer
and to a number of threads. Times of different runs are never compared: a machine is not as busy in the one as in the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.load import BACKENDS, known_backends, load_backend, refuse_provider
from edgeinfer.core import host
from edgeinfer.core.errors import (
    BackendUnavailableError,
    EdgeInferError,
    InvalidRequestError,
    MemoryPlanError,
    UnknownChoiceError,
    UnsupportedModelError,
    UnsupportedOptionError,
)
from edgeinfer.core.home import measurements_path
from edgeinfer.core.version import __version__
from edgeinfer.gguf.reader import GGUFFile

AUTO = "auto"

UNMEASURED = ("numba", "onnx", "llamacpp")
"""The order in which backends are tried for a model that was not measured."""

PROMPT_TOKENS, ANSWER_TOKENS = 512, 128
"""The request whose time decides between backends."""


@dataclass(frozen=True)
class Speed:
    """What one run measured of one backend: seconds a token, of a prompt and of an answer, one sequence at a time."""

    prompt: float
    answer: float

    @property
    def request_seconds(self) -> float:
        """A request of PROMPT_TOKENS and ANSWER_TOKENS."""
        return PROMPT_TOKENS * self.prompt + ANSWER_TOKENS * self.answer


@dataclass(frozen=True)
class Measurement:
    """The speeds of at least two backends in one run. `date` is ISO 8601."""

    model: str
    threads: int
    date: str
    speeds: Mapping[str, Speed]

    @property
    def fastest_first(self) -> list[str]:
        """Backends by the time of a request."""
        return sorted(self.speeds, key=lambda backend: self.speeds[backend].request_seconds)

    def describe(self) -> str:
        """Such as: 0.41 s for a prompt of 512 and an answer of 128 tokens, onnx 0.83 s; measured 2030-01-02 with 2 threads."""
        first, *others = self.fastest_first
        seconds = {backend: f"{speed.request_seconds:,.3g} s" for backend, speed in self.speeds.items()}
        beside = "".join(f", {backend} {seconds[backend]}" for backend in others)
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{seconds[first]} for a prompt of {PROMPT_TOKENS} and an answer of {ANSWER_TOKENS} tokens{beside}; measured {self.date[:10]} with {threads}"


@dataclass(frozen=True)
class Choice:
    """What auto took, and why."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"backend auto is {self.backend}: {self.reason}"


def parse_backends(text: str) -> tuple[str, ...]:
    """`"numba, onnx"` -> both names, each once. Raises InvalidRequestError for no name and UnknownChoiceError for a backend that there is not."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InvalidRequestError(f"backends are {text!r}; expected names with commas between, such as {','.join(BACKENDS)}")
    known = known_backends()
    for name in names:
        if name == AUTO:
            raise UnknownChoiceError(f"backends are {text!r}, but {AUTO} is a choice between backends; name those to compare: {', '.join(known)}")
        if name not in (*known, "fake"):
            raise UnknownChoiceError(f"there is no backend named {name!r}; choose from {', '.join(known)}")
    return names


def machine_key() -> str:
    """What tells machines apart whose speeds may differ; homes are shared between machines."""
    return json.dumps([platform.system(), platform.machine(), host.processor_name(), os.cpu_count()])


def measurement_file(file: GGUFFile) -> Path:
    """Where measurements of a model on this machine with this version are kept, whether there are any or not."""
    tensors = sorted((tensor.name, tensor.format_name, tuple(tensor.shape)) for tensor in file.tensors.values())
    key = json.dumps([__version__, machine_key(), file.metadata.get("general.architecture"), tensors])
    return measurements_path() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def keep(file: GGUFFile, measurement: Measurement) -> None:
    """Keeps a measurement in place of the one with as many threads. Raises ValueError for fewer than two backends, OSError where nothing can be written."""
    if len(measurement.speeds) < 2:
        raise ValueError("a measurement of one backend decides nothing")
    path = measurement_file(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {item.threads: item for item in _read(path)} | {measurement.threads: measurement}
    record = {"version": __version__, "machine": machine_key(), "measurements": [asdict(found[threads]) for threads in sorted(found)]}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".measurement-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as output:
            json.dump(record, output, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def kept() -> Iterator[Measurement]:
    """Every measurement that holds for this machine and this version."""
    folder = measurements_path()
    for path in sorted(folder.glob("*.json")) if os.path.isdir(folder) else []:
        yield from _read(path)


def _read(path: Path) -> list[Measurement]:
    """The measurements of a file; none when it is missing, unreadable, damaged, or of another machine or version: then it was never written."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["version"] != __version__ or record["machine"] != machine_key():
            return []
        found = []
        for item in record["measurements"]:
            speeds = {str(name): Speed(float(speed["prompt"]), float(speed["answer"])) for name, speed in item["speeds"].items()}
            found.append(Measurement(str(item["model"]), int(item["threads"]), str(item["date"]), speeds))
        return [item for item in found if item.speeds]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def candidates(file: GGUFFile, threads: int | None) -> tuple[list[str], str]:
    """The backends in the order in which auto tries them, and why in that order."""
    found = _read(measurement_file(file))
    count = host.worker_threads(threads).count
    for measurement in found:
        if measurement.threads == count:
            return measurement.fastest_first, measurement.describe()
    if not found:
        return list(UNMEASURED), "nothing was measured on this machine; `edgeinfer bench MODEL --backends numba,onnx,llamacpp` does it"
    measured = ", ".join(str(measurement.threads) for measurement in found)
    return list(UNMEASURED), f"nothing was measured with the number of threads in use, {count} (only {measured})"


def load_auto(model: Path, options: BackendOptions, progress: Callable[[int, int], None] | None, file: GGUFFile) -> tuple[Backend, Choice]:
    """Loads the fastest backend that runs, and says which and why; a faster one that does not run here, or not with these options, is named with its reason.

    `file` is the opened model, taken over as by `load_backend`. Raises BackendUnavailableError when no backend runs, with every reason, or
    MemoryPlanError, where memory is among these.
    """
    refuse_provider(AUTO, options)
    order, reason = candidates(file, options.threads)
    failures: dict[str, EdgeInferError] = {}
    handed_over: GGUFFile | None = file
    for backend in order:
        try:
            loaded = load_backend(backend, model, options, progress, handed_over)
        except (BackendUnavailableError, MemoryPlanError, UnsupportedModelError, UnsupportedOptionError) as error:
            failures[backend] = error
            handed_over = None
            continue
        passed = "".join(f"; not {name}: {error}" for name, error in failures.items())
        return loaded, Choice(backend, reason + passed)
    told = "; ".join(f"{name}: {error}" for name, error in failures.items())
    kind = MemoryPlanError if any(isinstance(error, MemoryPlanError) for error in failures.values()) else BackendUnavailableError
    raise kind(f"none of the backends can run {model.name}: {told}") from next(iter(failures.values()))

"""The one place that knows the backends by name. The engine calls it; each backend is imported, with its libraries, only when it is asked for.

Backends of other packages are found through their entry points in the group `edgeinfer.backends` (docs/backends.md): the name is what users ask for, the
object is called with the model's path and a BackendOptions, and returns a Backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.base import Backend, BackendOptions, Capabilities
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError, UnknownChoiceError
from edgeinfer.gguf.reader import GGUFFile

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BACKENDS = ("numba", "llamacpp", "onnx")
"""What people choose from, beside the installed ones. `fake` exists for tests."""

ENTRY_POINT_GROUP = "edgeinfer.backends"


@dataclass(frozen=True)
class InstalledBackend:
    """A backend that another package brings. `origin` is that package with its version."""

    name: str
    origin: str
    entry_point: EntryPoint


def installed_backends() -> tuple[InstalledBackend, ...]:
    """The backends of other packages, by name. Nothing of them is imported."""
    from importlib.metadata import entry_points  # slow to import, and not needed by who runs a backend of ours

    found = []
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        package = entry.dist
        origin = f"{package.name} {package.version}" if package is not None else "an unknown package"
        found.append(InstalledBackend(entry.name, origin, entry))
    return tuple(sorted(found, key=lambda backend: (backend.name, backend.origin)))


def name_problem(backend: InstalledBackend, installed: tuple[InstalledBackend, ...]) -> str | None:
    """Why a backend cannot be had by its name: it is one of ours, which goes first, or that of another package as well. None: it can."""
    if backend.name in (*BACKENDS, "fake", "auto"):
        return f"is never used: {backend.name} is a name of edgeinfer itself"
    others = [other.origin for other in installed if other.name == backend.name and other is not backend]
    return f"clashes with the backend of the same name of {' and of '.join(others)}; uninstall all but one" if others else None


def known_backends() -> tuple[str, ...]:
    """The names that people may choose from."""
    return tuple(dict.fromkeys([*BACKENDS, *(backend.name for backend in installed_backends())]))


def load_backend(
    name: str, model: Path, options: BackendOptions, progress: Callable[[int, int], None] | None = None, file: GGUFFile | None = None
) -> Backend:
    """Loads `model` on the backend `name`; raises UnknownChoiceError for an unknown one, BackendUnavailableError for a missing or broken one, or the
    model's own errors.

    Also raises UnknownChoiceError for a profile of a backend that keeps none, and InvalidRequestError for a provider of one that has none.

    `progress` is called with the bytes that are loaded and those there are, by backends that take their time. `file` is the model if the caller has opened
    it: a backend of ours takes it over, so that a vocabulary is not read twice; for others it is closed.
    """
    if options.profile and name in BACKENDS and name != "numba":
        raise _no_profile(name)
    refuse_provider(name, options)
    if name == "numba":
        from edgeinfer.backends.numba.backend import NumbaBackend

        return NumbaBackend.load(model, options, progress, file)
    if file is not None:
        file.close()
    if name == "llamacpp":
        from edgeinfer.backends.llamacpp import LlamaCppBackend

        return LlamaCppBackend.load(model, options)
    if name == "onnx":
        from edgeinfer.backends.onnx.backend import OnnxBackend

        return OnnxBackend.load(model, options)
    if name == "fake":
        from edgeinfer.backends.fake import FakeBackend

        return FakeBackend.load(model, options)
    return _load_installed(name, model, options)


def refuse_provider(name: str, options: BackendOptions) -> None:
    """Raises InvalidRequestError for execution providers with any backend but onnx, which alone has some."""
    if name == "onnx" or (options.provider is None and options.minimum_share is None):
        return
    if options.provider is not None:
        raise InvalidRequestError(f"provider is {options.provider!r}, but only the backend onnx has providers, not {name}; ask for it (--backend onnx)")
    raise InvalidRequestError(f"a minimum share is given, but the backend {name} has no providers; leave it out")


def _load_installed(name: str, model: Path, options: BackendOptions) -> Backend:
    """A backend of another package. Whatever is wrong with it is told with the package's name, so that nobody looks for the fault here."""
    installed = installed_backends()
    matching = [backend for backend in installed if backend.name == name]
    if not matching:
        raise UnknownChoiceError(f"there is no backend named {name!r}; choose one of {', '.join(known_backends())}")
    chosen = matching[0]
    problem = name_problem(chosen, installed)
    if problem is not None:
        raise BackendUnavailableError(f"the backend {name} of {chosen.origin} {problem}")
    told = f"the backend {name} of {chosen.origin}"
    try:
        load = chosen.entry_point.load()
    except Exception as error:  # whatever a package of others raises while it is imported
        raise BackendUnavailableError(
            f"{told} cannot be imported ({chosen.entry_point.value}: {type(error).__name__}: {error}); repair or uninstall that package"
        ) from error
    if not callable(load):
        raise BackendUnavailableError(
            f"{told} is broken: its entry point {chosen.entry_point.value} is {type(load).__name__}, but must be something to call with the path of a "
            "model and a BackendOptions"
        )
    try:
        backend: Backend = load(model, options)
    except EdgeInferError:
        raise
    except Exception as error:
        raise BackendUnavailableError(f"{told} could not load {model} ({type(error).__name__}: {error})") from error
    _check_installed(backend, told)
    if options.profile and not backend.capabilities.times_operations:
        backend.close()
        raise _no_profile(name)
    return backend


def _check_installed(backend: Backend, told: str) -> None:
    """Raises BackendUnavailableError for an object that is no Backend, now rather than with the first request."""
    capabilities = getattr(backend, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        raise BackendUnavailableError(f"{told} is broken: what it loads has {type(capabilities).__name__} for capabilities instead of Capabilities")
    methods = ["step", "release", "close"]
    methods += ["share_prefix"] if capabilities.kept_sequences else []
    methods += ["take_profile"] if capabilities.times_operations else []
    missing = [method for method in methods if not callable(getattr(backend, method, None))]
    missing += [] if hasattr(backend, "memory_plan") else ["memory_plan"]
    if missing:
        raise BackendUnavailableError(f"{told} is broken: by its capabilities it has {', '.join(missing)}, but it has not")


def _no_profile(name: str) -> UnknownChoiceError:
    return UnknownChoiceError(f"the backend {name} does not time its operations; only numba can be profiled")

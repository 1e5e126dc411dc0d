"""The one place that knows the backends by name. The engine calls it; each backend is imported, with its libraries, only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.core.errors import UnknownChoiceError
from edgeinfer.gguf.reader import GGUFFile

BACKENDS = ("numba", "llamacpp", "onnx")
"""What people choose from. `fake` exists for tests."""


def load_backend(
    name: str, model: Path, options: BackendOptions, progress: Callable[[int, int], None] | None = None, file: GGUFFile | None = None
) -> Backend:
    """Loads `model` on the backend `name`; raises UnknownChoiceError for an unknown one, BackendUnavailableError for a missing one, or the model's
    own errors.

    Also raises UnknownChoiceError for a profile of a backend that keeps none.

    `progress` is called with the bytes that are loaded and those there are, by backends that take their time. `file` is the model if the caller has opened
    it: a backend of ours takes it over, so that a vocabulary is not read twice; for others it is closed.
    """
    if options.profile and name in BACKENDS and name != "numba":
        raise UnknownChoiceError(f"the backend {name} does not time its operations; only numba can be profiled")
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
    raise UnknownChoiceError(f"there is no backend named {name!r}; choose one of {', '.join(BACKENDS)}")

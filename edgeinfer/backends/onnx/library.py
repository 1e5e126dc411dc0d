"""The libraries of this backend, imported when they are needed, with an error that says what to do where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgeinfer.core.errors import BackendUnavailableError
from edgeinfer.core.foreign import import_problem

INSTALL = "install it with: pip install 'edgeinfer[onnx]'"


def require_onnxruntime() -> Any:
    """The module onnxruntime. Raises BackendUnavailableError where it cannot be imported."""
    return _required("onnxruntime", "the onnx backend needs onnxruntime")


def require_onnx() -> Any:
    """The module onnx, which writes graphs, with its checker. Raises BackendUnavailableError where it cannot be imported."""
    module = _required("onnx", "ONNX graphs are written with the onnx package")
    import_module("onnx.checker")
    return module


def _required(name: str, purpose: str) -> Any:
    problem = import_problem(name)
    if problem is None:
        try:
            return import_module(name)
        except (ImportError, OSError, RuntimeError) as error:
            problem = str(error)
    raise BackendUnavailableError(f"{purpose}, which cannot be imported here ({problem}); {INSTALL}")

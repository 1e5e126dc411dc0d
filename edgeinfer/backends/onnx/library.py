"""The libraries of this backend, imported when they are needed, with an error that says what to do where they are missing."""

from __future__ import annotations

from typing import Any

from edgeinfer.core.errors import BackendUnavailableError
from edgeinfer.core.foreign import import_problem

INSTALL = "install it with: pip install 'edgeinfer[onnx]'"


def require_onnxruntime() -> Any:
    """The module onnxruntime. Raises BackendUnavailableError where it cannot be imported."""
    problem = import_problem("onnxruntime")
    if problem is None:
        try:
            import onnxruntime

            return onnxruntime
        except (ImportError, OSError, RuntimeError) as error:
            problem = str(error)
    raise BackendUnavailableError(f"the onnx backend needs onnxruntime, which cannot be imported here ({problem}); {INSTALL}")


def require_onnx() -> Any:
    """The module onnx, which writes graphs. Raises BackendUnavailableError where it cannot be imported."""
    problem = import_problem("onnx")
    if problem is None:
        try:
            import onnx
            import onnx.checker

            return onnx
        except (ImportError, OSError, RuntimeError) as error:
            problem = str(error)
    raise BackendUnavailableError(f"ONNX graphs are written with the onnx package, which cannot be imported here ({problem}); {INSTALL}")

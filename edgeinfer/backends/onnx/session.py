"""A session of ONNX Runtime for a graph whose weights are in memory. Called by the backend."""

from __future__ import annotations

import ctypes
from typing import Any

from edgeinfer.backends.onnx.graph import MemorySink
from edgeinfer.core.errors import EdgeInferError

_FATAL = 4  # of ONNX Runtime's levels of severity: errors come as exceptions, they need not be printed too


def make_session(library: Any, model: Any, sink: MemorySink, threads: int, providers: list[str]) -> Any:
    """The session; the arrays of `sink` are given up, because the session has weights of its own (packed for its kernels).

    Raises EdgeInferError with ONNX Runtime's words for a graph that it refuses.
    """
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    values = [library.OrtValue.ortvalue_from_numpy(array) for array in sink.arrays.values()]
    options.add_external_initializers(list(sink.arrays), values)
    try:
        session = library.InferenceSession(model.SerializeToString(), options, providers=providers)
    except Exception as error:
        raise EdgeInferError(f"ONNX Runtime {library.__version__} refuses the graph: {error}") from error
    del values, options
    sink.arrays.clear()
    _trim()
    return session


def _trim() -> None:
    """The C library keeps what a session frees while it is made, a third as much as the weights; glibc can be told to give it back."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

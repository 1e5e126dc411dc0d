"""A session of ONNX Runtime for a program. Called by the backend.

Weights reach ONNX Runtime through a file in a temporary folder, which it maps: its own packed weights are then the only copy in the memory of the
process, where handing over arrays takes two and a half times as much for a moment. The folder is gone when the session is made. Where no file can be
written, arrays are handed over, and a warning says so.
"""

from __future__ import annotations

import ctypes
import errno
import tempfile
from pathlib import Path
from typing import Any

from edgeinfer.backends.onnx.dialects import Exported, build_graph
from edgeinfer.backends.onnx.emitter import Interface
from edgeinfer.backends.onnx.graph import FileSink, MemorySink
from edgeinfer.core.errors import EdgeInferError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program

_FATAL = 4  # of ONNX Runtime's levels of severity: errors come as exceptions, they need not be printed too
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.ENOENT)


def make_session(library: Any, program: Program, file: GGUFFile, context: int, threads: int, providers: list[str]) -> tuple[Any, tuple[str, ...]]:
    """The session, and warnings. Raises what building the graph raises, and EdgeInferError with ONNX Runtime's words for a graph that it refuses."""
    warnings: tuple[str, ...] = ()
    try:
        with tempfile.TemporaryDirectory(prefix="edgeinfer-onnx-") as folder:
            path = Path(folder) / "model.onnx"
            with open(Path(folder) / "model.onnx.data", "wb") as stream:
                exported = build_graph(program, file, "cpu", FileSink(stream, "model.onnx.data"), context, Interface.STEP)
            path.write_bytes(exported.model.SerializeToString())
            session = _session(library, str(path), _options(library, threads), providers)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        warnings = (f"weights cannot be handed over in a file of the temporary folder ({error.strerror}; TMPDIR names another), so loading takes more memory",)
        session, exported = _in_memory(library, program, file, context, threads, providers)
    _trim()
    return session, (*exported.warnings, *warnings)


def _in_memory(library: Any, program: Program, file: GGUFFile, context: int, threads: int, providers: list[str]) -> tuple[Any, Exported]:
    sink = MemorySink()
    exported = build_graph(program, file, "cpu", sink, context, Interface.STEP)
    options = _options(library, threads)
    values = [library.OrtValue.ortvalue_from_numpy(array) for array in sink.arrays.values()]  # must live until the session is made
    options.add_external_initializers(list(sink.arrays), values)
    return _session(library, exported.model.SerializeToString(), options, providers), exported


def _options(library: Any, threads: int) -> Any:
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    return options


def _session(library: Any, model: str | bytes, options: Any, providers: list[str]) -> Any:
    try:
        return library.InferenceSession(model, options, providers=providers)
    except Exception as error:
        raise EdgeInferError(f"ONNX Runtime {library.__version__} refuses the graph: {error}") from error


def _trim() -> None:
    """The C library keeps what a session frees while it is made, a third as much as the weights; glibc can be told to give it back."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

"""llama-cpp-python's low-level functions: found, tried, initialized once a process, and silent. The llamacpp backend and its vocabulary call this.

llama.cpp's log goes to no terminal. What it says while one of our calls runs in a thread is kept for that thread, so that our errors hold its reasons.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

from edgeinfer.core.errors import BackendUnavailableError
from edgeinfer.core.foreign import import_problem
from edgeinfer.gguf.reader import GGUFFile

OLDEST = "0.3.36"
_NEEDED_FIELDS = {"flash_attn_type", "kv_unified", "n_outputs_max"}  # of llama_context_params, since OLDEST
_WARNING_LEVEL, _ERROR_LEVEL, _CONTINUED_LEVEL = 3, 4, 5  # of ggml_log_level
_KEPT_LINES = 50

_library: Any = None
_library_lock = threading.Lock()
_log_callback: Any = None  # the library keeps a pointer to it for as long as the process lives


class _Log(threading.local):
    """What llama.cpp said in this thread: (level, text) of warnings and errors."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self.last_level = 0


_log = _Log()


def load_library() -> Any:
    """llama-cpp-python's module of low-level functions. Raises BackendUnavailableError with the remedy where it is missing, broken or too old."""
    global _library, _log_callback
    with _library_lock:
        if _library is not None:
            return _library
        problem = import_problem("llama_cpp")
        if problem is not None:
            raise _cannot_import(problem)
        try:
            from llama_cpp import llama_cpp as library
        except (ImportError, OSError, RuntimeError) as error:
            raise _cannot_import(str(error)) from error
        fields = {name for name, *_ in library.llama_context_params._fields_}
        if not fields >= _NEEDED_FIELDS:
            raise BackendUnavailableError(
                f"llama-cpp-python {_version()} is too old for the llamacpp backend, which needs {OLDEST}; update it with: "
                "pip install --upgrade 'edgeinfer[llamacpp]'"
            )
        _log_callback = library.llama_log_callback(_keep_log_line)
        library.llama_log_set(_log_callback, ctypes.c_void_p(0))
        library.llama_backend_init()
        _library = library
        return library


def describe_library() -> str:
    """Version and build flags in one line. Raises BackendUnavailableError like `load_library`."""
    library = load_library()
    build = _text(library.llama_print_system_info()).replace(" = 1", "").removeprefix("CPU : ").strip(" |")
    return f"llama.cpp {_text(library.llama_version())} of llama-cpp-python {_version()}, built with {build.replace(' | ', ' ')}"


def path_for_llamacpp(model: Path) -> bytes:
    """The path to hand to llama.cpp: of a split model it opens the first shard alone, while any shard names the set here. Raises the reader's errors."""
    with GGUFFile.open(model) as file:
        return os.fsencode(file.path)


def model_parameters(library: Any) -> Any:
    """llama.cpp's defaults for loading a model, on the CPU alone and without its AMX kernels.

    These set up a thread's tile registers once and for all, and rely on nobody else in the process doing so; and GCC leaves out most of what they set up, so
    that builds by it end the process with an illegal instruction (llama.cpp's pull request 26954). Its switch takes the interleaved weights with it.
    """
    parameters = library.llama_model_default_params()
    parameters.n_gpu_layers = 0
    if b"AMX_INT8 = 1" in library.llama_print_system_info():
        parameters.use_extra_bufts = False
    return parameters


def nonzero_callback(library: Any) -> Any:
    """An abort callback that says whether the memory which it is given, an int64 that is 0 or 1, is 1.

    llama.cpp asks after every operation of a graph, hundreds of times a token, so it is no Python function: `strlen` of the number's bytes gives the same,
    since the lowest byte comes first.
    """
    return ctypes.cast(ctypes.CDLL(None).strlen, library.ggml_abort_callback)


def forget_log() -> None:
    """Call this before a call whose failure `logged_reason` shall explain."""
    load_library().llama_log_set(_log_callback, ctypes.c_void_p(0))  # somebody else in the process may have taken the log since
    _log.lines.clear()


def logged_reason() -> str:
    """llama.cpp's last errors in this thread since `forget_log`, or its last warnings where it logged no error."""
    for level in (_ERROR_LEVEL, _WARNING_LEVEL):
        found = [text.strip() for kept, text in _log.lines if kept == level and text.strip()]
        if found:
            return "; ".join(found[-3:])
    return "it gave no reason"


def _keep_log_line(level: int, text: bytes, user_data: object) -> None:
    if level != _CONTINUED_LEVEL:
        _log.last_level = level
    if _log.last_level not in (_WARNING_LEVEL, _ERROR_LEVEL):
        return
    decoded = _text(text)
    if level == _CONTINUED_LEVEL and _log.lines:
        _log.lines[-1] = (_log.last_level, _log.lines[-1][1] + decoded)
    else:
        _log.lines.append((level, decoded))
    del _log.lines[:-_KEPT_LINES]


def _cannot_import(reason: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"the llamacpp backend needs llama-cpp-python, which cannot be imported here ({reason}); "
        "install it with: pip install 'edgeinfer[llamacpp]', which builds it for this machine"
    )


def _version() -> str:
    import llama_cpp  # installed under whichever name

    return str(llama_cpp.__version__)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")

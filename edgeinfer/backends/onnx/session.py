"""A session of ONNX Runtime for a program, on the provider that was asked for and on no other. Called by the backend.

Weights reach ONNX Runtime through a file in a temporary folder, which it maps: its own packed weights are then the only copy in the memory of the
process, where handing over arrays takes two and a half times as much for a moment. The folder is gone when the session is made (`weights_folder`).
Where no file can be written, arrays are handed over, and a warning says so; the standard dialects need the file, since 4-bit weights have no array to be
handed over in.
"""

from __future__ import annotations

import ctypes
import errno
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from edgeinfer.backends.base import Placement
from edgeinfer.backends.onnx.attention_kernel import attention_kernel
from edgeinfer.backends.onnx.complaints import Complaints, heard, without_source
from edgeinfer.backends.onnx.dialects import Exported, build_graph
from edgeinfer.backends.onnx.emitter import Interface
from edgeinfer.backends.onnx.graph import FileSink, MemorySink
from edgeinfer.backends.onnx.placement import placement_of, placement_settings, tells_placement
from edgeinfer.backends.onnx.provider_search import Target
from edgeinfer.backends.onnx.providers import CPU_PROVIDER, PROVIDERS, unknown_options
from edgeinfer.backends.onnx.weights_folder import weights_folder
from edgeinfer.core.errors import EdgeInferError, ProviderError
from edgeinfer.core.printable import utf8_path
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program

_FATAL = 4  # of ONNX Runtime's levels of severity: errors come as exceptions, they need not be printed too
_REASON_LENGTH = 600
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EILSEQ)


@dataclass(frozen=True)
class MadeSession:
    """A session, who runs its nodes, what a user should know, and whether a run has to have one row of one sequence and give its output."""

    session: Any
    placement: Placement
    warnings: tuple[str, ...]
    one_row: bool = False


def make_session(library: Any, program: Program, file: GGUFFile, context: int, threads: int, target: Target) -> MadeSession:
    """Raises what building the graph raises, ProviderError for a provider that refuses it, and EdgeInferError for a graph that the CPU provider refuses."""
    warnings: tuple[str, ...] = ()
    try:
        with weights_folder() as folder:
            path = folder / "model.onnx"
            with open(folder / "model.onnx.data", "wb") as stream:
                exported = build_graph(program, file, target.dialect, FileSink(stream, "model.onnx.data"), context, Interface.STEP, not target.is_cpu)
            path.write_bytes(exported.model.SerializeToString())
            with attention_kernel(threads, _fewest_heads(program)):
                session = _session(library, utf8_path(path), _options(library, threads, target), threads, target)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        unwritable = f"weights cannot be handed over in a file of the temporary folder ({error.strerror}; TMPDIR names another)"
        if target.dialect != "cpu":
            raise EdgeInferError(f"{unwritable}, which the dialect {target.dialect} needs") from error
        warnings = (f"{unwritable}, so loading takes more memory",)
        session, exported = _in_memory(library, program, file, context, threads, target)
    _trim()
    placement = placement_of(library, session, target, len(exported.model.graph.node))
    if unknown := unknown_options(target.name, target.options):
        known = ", ".join(PROVIDERS[target.name].known_options)
        named = ", ".join(unknown)
        warnings = (*warnings, f"the provider {target.name} was given {named}, which edgeinfer does not know as an option of it; known are {known}")
    if target.one_row:
        warnings = (*warnings, f"the provider {target.name} takes fixed shapes only: prompts are computed token by token, and sequences one by one")
    return MadeSession(session, placement, (*exported.warnings, *warnings), target.one_row)


def _fewest_heads(program: Program) -> int:
    """Query heads of the attention that has the fewest."""
    return min(int(str(operation.attributes["heads"])) for operation in program.operations if operation.kind == "attention")


def _in_memory(library: Any, program: Program, file: GGUFFile, context: int, threads: int, target: Target) -> tuple[Any, Exported]:
    sink = MemorySink()
    exported = build_graph(program, file, target.dialect, sink, context, Interface.STEP, not target.is_cpu)
    options = _options(library, threads, target)
    values = [library.OrtValue.ortvalue_from_numpy(array) for array in sink.arrays.values()]  # must live until the session is made
    options.add_external_initializers(list(sink.arrays), values)
    with attention_kernel(threads, _fewest_heads(program)):
        return _session(library, exported.model.SerializeToString(), options, threads, target), exported


def _options(library: Any, threads: int, target: Target) -> Any:
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    for size in ("batch", "rows", "outputs") if target.one_row else ():
        options.add_free_dimension_override_by_name(size, 1)
    for key, value in placement_settings(library, target).items():
        options.add_session_config_entry(key, value)
    return options


def _session(library: Any, model: str | bytes, options: Any, threads: int, target: Target) -> Any:
    """Without ONNX Runtime's own fallback to other providers, which only prints a line. A provider that could not be loaded is missing from the session's."""
    own = {**({target.thread_option: str(threads)} if target.thread_option is not None else {}), **target.options}
    complaints = Complaints()
    try:
        with nullcontext(complaints) if target.is_cpu else heard() as complaints:
            if target.devices:
                options.add_provider_for_devices(list(target.devices), own)
                session = library.InferenceSession(model, options, enable_fallback=0)
            else:
                asked = [] if target.is_cpu else [(target.runtime_name, own)]
                rest = [CPU_PROVIDER] if target.is_cpu or tells_placement(library) else []  # it may not be named where it may take nothing
                providers = [*asked, *rest]
                session = library.InferenceSession(model, options, providers=providers, enable_fallback=0)
    except Exception as error:
        complaints.pass_on(with_log=False)
        raise _refusal(library, target, error) from error
    dropped = not target.devices and target.runtime_name not in session.get_providers()
    complaints.pass_on(with_log=not dropped)
    if dropped:
        raise _dropped(library, target, complaints.reasons)
    return session


def _dropped(library: Any, target: Target, reasons: str) -> ProviderError:
    """ONNX Runtime left a provider out of a session that it made all the same."""
    said = f": {_shortened(reasons)}" if reasons else ""
    options = ",".join(f"{key}={value}" for key, value in target.options.items())
    if reasons and options:
        remedy = f"check its options, {options}{_known_options(target)}, or, if they are right, repair its package ({_install(target)})"
    else:
        remedy = f"repair its package ({_install(target)})"
    return ProviderError(f"ONNX Runtime {library.__version__} could not load the provider {target.name}{said}; {remedy}")


def _known_options(target: Target) -> str:
    """What edgeinfer knows of a provider's options, where one was given that it does not know."""
    unknown = unknown_options(target.name, target.options)
    known = PROVIDERS[target.name].known_options if unknown else ()
    return f" ({', '.join(unknown)} is none that edgeinfer knows; it knows {', '.join(known)})" if unknown else ""


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _REASON_LENGTH else f"{reason[: _REASON_LENGTH // 2]} ... {reason[-_REASON_LENGTH // 2 :]}"


def _refusal(library: Any, target: Target, error: Exception) -> EdgeInferError:
    reason = _shortened(without_source(str(error)))
    if target.is_cpu:
        return EdgeInferError(f"ONNX Runtime {library.__version__} refuses the graph in the dialect {target.dialect}: {reason}")
    entry = PROVIDERS.get(target.name)
    known = f"; it is known to take {entry.dialect}" if entry is not None and entry.dialect != target.dialect else ""
    options = ",".join(f"{key}={value}" for key, value in target.options.items())
    old = "" if tells_placement(library) else " (this version cannot tell which nodes run where, so a provider has to take all; from 1.24 on it need not)"
    return ProviderError(
        f"the provider {target.name} on {target.device} of ONNX Runtime {library.__version__} refuses the graph in the dialect {target.dialect}"
        f"{f' with the options {options}' if options else ''}{_known_options(target)}{known}: {reason}{old}"
    )


def _install(target: Target) -> str:
    entry = PROVIDERS.get(target.name)
    return entry.install if entry is not None else "reinstall what brought it"


def _trim() -> None:
    """The C library keeps what a session frees while it is made, a third as much as the weights; glibc can be told to give it back."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

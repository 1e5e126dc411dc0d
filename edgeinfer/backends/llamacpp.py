"""llama.cpp behind the same contract, through llama-cpp-python's low-level functions: the oracle that everything is checked against.

All sequences live in one context with one shared cache, by llama.cpp's sequence ids. It keeps its own cache: page tables are ignored, the one cache
group is there so that the scheduler counts its cells. Imported when asked for; nothing else of edgeinfer touches the library.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions, CacheGroup, Capabilities
from edgeinfer.core import host
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, EngineClosedError, InvalidRequestError, ModelFileError, NonFiniteError
from edgeinfer.core.foreign import import_problem
from edgeinfer.core.memory_plan import MemoryPlan
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, OutputKind, Step, StepOutputs

_CELLS_PER_PAGE = 32
_CELL_PADDING = 256  # llama.cpp rounds a context up to this
_MAXIMUM_SEQUENCES = 256  # LLAMA_MAX_SEQ
_GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
_CACHE_BYTES_PER_32 = {"f32": 128, "f16": 64, "q8_0": 34}
_FLASH_ATTENTION = {"f32": 0, "f16": -1, "q8_0": 1}  # off, as llama.cpp decides, on: quantized values need it
_ERROR_LEVEL = 4  # of ggml_log_level

_library: Any = None
_library_lock = threading.Lock()
_log_lines: deque[str] = deque(maxlen=50)
_log_callback: Any = None  # the library keeps a pointer to it for as long as the process lives


class LlamaCppBackend:
    """One llama.cpp model with one context. `step` is called by one thread at a time."""

    def __init__(self, library: Any, model: Any, context: Any, capabilities: Capabilities, memory_plan: MemoryPlan) -> None:
        self.capabilities = capabilities
        self.memory_plan = memory_plan
        self._library = library
        self._model = model
        self._context = context
        self._memory = library.llama_get_memory(context)
        self._slot_of: dict[int, int] = {}
        self._length_of: dict[int, int] = {}
        self._free_slots = list(range(capabilities.maximum_sequences - 1, -1, -1))

    @classmethod
    def load(cls, model: Path, options: BackendOptions) -> LlamaCppBackend:
        """Loads a GGUF file. `cache_type` f32 also turns flash attention off: together they are llama.cpp at its most exact.

        Raises BackendUnavailableError without the library, ModelFileError with llama.cpp's own words for a file that it refuses.
        """
        library = load_library()
        if options.instruction_set is not None:
            raise InvalidRequestError(f"instruction_set is {options.instruction_set!r}, but the llamacpp backend chooses its own; leave it out")
        _log_lines.clear()
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        handle = library.llama_model_load_from_file(os.fsencode(model), parameters)
        if not handle:
            raise ModelFileError(f"llama.cpp cannot load {model}: {_last_errors()}")
        threads = host.worker_threads(options.threads).count
        sequences = min(options.maximum_sequences, _MAXIMUM_SEQUENCES)
        cells = _padded(options.cache_tokens or options.context)
        context = library.llama_init_from_model(handle, _context_parameters(library, options, threads, sequences, cells))
        if not context:
            library.llama_model_free(handle)
            raise EdgeInferError(f"llama.cpp cannot make a context of {cells} tokens for {model}: {_last_errors()}")
        capabilities = Capabilities(
            uses_block_tables=False,
            cache_groups=(CacheGroup("llama.cpp cells", _CELLS_PER_PAGE, cells // _CELLS_PER_PAGE, 0),),
            bit_exact_batches=False,
            bit_exact_chunks=False,
            vocabulary=library.llama_vocab_n_tokens(library.llama_model_get_vocab(handle)),
            context=options.context,
            maximum_step_rows=options.maximum_step_rows,
            maximum_sequences=sequences,
            threads=threads,
            description=_description(library, options),
        )
        return cls(library, handle, context, capabilities, _memory_plan(library, handle, options, cells))

    def step(self, step: Step) -> StepOutputs:
        if self._context is None:
            raise EngineClosedError("the llamacpp backend was closed")
        slots = np.array([self._truncated_slot(table.sequence_id, table.start) for table in step.sequences], dtype=np.int32)
        wanted = step.outputs == OutputKind.LOGITS
        rows = np.flatnonzero(wanted).astype(np.int32)
        status = self._decode(step, slots, wanted)
        if status != 0:
            raise EdgeInferError(f"llama.cpp could not run a step of {step.rows} tokens (status {status}): {_last_errors()}")
        for row in range(step.rows):
            self._length_of[int(slots[step.sequence[row]])] = int(step.slots[row]) + 1
        return StepOutputs(self._logits(rows), rows)

    def release(self, sequence_ids: Sequence[int]) -> None:
        for identifier in sequence_ids:
            slot = self._slot_of.pop(identifier, None)
            if slot is not None:
                self._library.llama_memory_seq_rm(self._memory, slot, -1, -1)
                self._length_of[slot] = 0
                self._free_slots.append(slot)

    def close(self) -> None:
        context, self._context = self._context, None
        model, self._model = self._model, None
        if context is not None:
            self._library.llama_free(context)
        if model is not None:
            self._library.llama_model_free(model)

    def _truncated_slot(self, identifier: int, start: int) -> int:
        """llama.cpp's id of a sequence, holding the positions before `start` and no others."""
        if identifier not in self._slot_of:
            if not self._free_slots:
                raise EdgeInferError(f"more than {self.capabilities.maximum_sequences} sequences are alive in the llamacpp backend")
            self._slot_of[identifier] = self._free_slots.pop()
        slot = self._slot_of[identifier]
        held = self._length_of.get(slot, 0)
        if held > start and not self._library.llama_memory_seq_rm(self._memory, slot, start, -1):
            raise EdgeInferError(f"this model's cache cannot be cut back to {start} tokens in llama.cpp")
        if held < start:
            raise AssertionError(f"a step starts at position {start} of a sequence of which llama.cpp holds {held} tokens")
        return slot

    def _decode(self, step: Step, slots: NDArray[np.int32], wanted: NDArray[np.bool_]) -> int:
        token_ids = np.ascontiguousarray(step.token_ids, dtype=np.int32)
        positions = np.ascontiguousarray(step.slots, dtype=np.int32)
        sequence_ids = slots[step.sequence]
        counts = np.ones(step.rows, dtype=np.int32)
        pointers = sequence_ids.ctypes.data + 4 * np.arange(step.rows, dtype=np.uint64)
        flags = wanted.astype(np.int8)
        batch = self._library.llama_batch(
            n_tokens=step.rows,
            token=_pointer(token_ids, ctypes.c_int32),
            embd=None,
            pos=_pointer(positions, ctypes.c_int32),
            n_seq_id=_pointer(counts, ctypes.c_int32),
            seq_id=ctypes.cast(pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=_pointer(flags, ctypes.c_int8),
        )
        return int(self._library.llama_decode(self._context, batch))

    def _logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        logits = np.empty((len(rows), self.capabilities.vocabulary), dtype=np.float32)
        for index, row in enumerate(rows):
            source = self._library.llama_get_logits_ith(self._context, int(row))
            logits[index] = np.ctypeslib.as_array(source, shape=(self.capabilities.vocabulary,))
        if not np.isfinite(logits).all():
            raise NonFiniteError("llama.cpp computed an infinity or a NaN; a float32 cache (cache_type='f32') may help, or the file is damaged")
        return logits


def _context_parameters(library: Any, options: BackendOptions, threads: int, sequences: int, cells: int) -> Any:
    parameters = library.llama_context_default_params()
    parameters.n_ctx = cells
    parameters.n_batch = parameters.n_ubatch = options.maximum_step_rows
    parameters.n_seq_max = sequences
    parameters.n_outputs_max = max(MAXIMUM_OUTPUT_ROWS, sequences)  # room for the logits of every row would be 537 MB on a vocabulary of 262,144
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.type_k = parameters.type_v = _GGML_TYPES[options.cache_type]
    parameters.flash_attn_type = _FLASH_ATTENTION[options.cache_type]
    parameters.offload_kqv = False
    parameters.op_offload = False
    parameters.no_perf = True
    parameters.swa_full = True  # sequences are cut back and recomputed
    parameters.kv_unified = True  # a sequence may take all cells
    return parameters


def _memory_plan(library: Any, model: Any, options: BackendOptions, cells: int) -> MemoryPlan:
    """llama.cpp maps the weights and plans by itself; this is the arithmetic of what it will take, after the model was opened."""
    available = host.available_memory()
    heads = library.llama_model_n_head(model) or 1
    width = library.llama_model_n_embd(model) // heads * library.llama_model_n_head_kv(model)
    cache = 2 * library.llama_model_n_layer(model) * width * cells * _CACHE_BYTES_PER_32[options.cache_type] // 32
    return MemoryPlan(
        weights=0,
        cache=cache,
        arena=MAXIMUM_OUTPUT_ROWS * library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)) * 4,
        process=0,
        peak_while_packing=0,
        mapped=library.llama_model_size(model),
        available=available.size,
        available_reason=available.reason,
    )


def _description(library: Any, options: BackendOptions) -> str:
    flash_attention = {"f32": "off", "f16": "auto", "q8_0": "on"}[options.cache_type]
    features = library.llama_print_system_info().decode("utf-8", "replace").strip()
    return f"llama.cpp of llama-cpp-python {_version()}, {options.cache_type} cache, flash attention {flash_attention}; {features}"


def _version() -> str:
    from importlib.metadata import version

    return version("llama-cpp-python")


def load_library() -> Any:
    """llama-cpp-python's module of low-level functions, initialized once a process and silent."""
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
        if not {"flash_attn_type", "kv_unified", "n_outputs_max"} <= fields:
            raise BackendUnavailableError(
                f"llama-cpp-python {_version()} is too old for the llamacpp backend, which needs 0.3.36; update it with: "
                "pip install --upgrade 'edgeinfer[llamacpp]'"
            )
        _log_callback = library.llama_log_callback(_keep_log_line)
        library.llama_log_set(_log_callback, ctypes.c_void_p(0))
        library.llama_backend_init()
        _library = library
        return library


def _cannot_import(reason: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"the llamacpp backend needs llama-cpp-python, which cannot be imported here ({reason}); "
        "install it with: pip install 'edgeinfer[llamacpp]', which builds it for this machine"
    )


def _keep_log_line(level: int, text: bytes, user_data: object) -> None:
    """llama.cpp's log goes nowhere, but its errors are kept for our messages."""
    if level == _ERROR_LEVEL:
        _log_lines.append(text.decode("utf-8", "replace").strip())


def _last_errors() -> str:
    return "; ".join(line for line in list(_log_lines)[-3:] if line) or "it gave no reason"


def _padded(tokens: int) -> int:
    return -(-tokens // _CELL_PADDING) * _CELL_PADDING


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

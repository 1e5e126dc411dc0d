"""llama.cpp behind the same contract, through llama-cpp-python's low-level functions: the oracle that everything is checked against.

All sequences live in one context with one shared cache, by llama.cpp's sequence ids. It keeps its own cache: page tables are ignored, the one cache
group is there so that the scheduler counts its cells. Imported when asked for; nothing else of edgeinfer touches the library.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions, CacheGroup, Capabilities, refuse_undeclared
from edgeinfer.backends.llamacpp_library import describe_library, forget_log, load_library, logged_reason, model_parameters, nonzero_callback, path_for_llamacpp
from edgeinfer.core import host
from edgeinfer.core.cache_types import DEFAULT_CACHE_TYPES
from edgeinfer.core.errors import (
    EdgeInferError,
    EngineClosedError,
    InvalidRequestError,
    ModelFileError,
    NonFiniteError,
    StepAbortedError,
    UnsupportedOptionError,
)
from edgeinfer.core.memory_plan import MemoryPlan
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, OutputKind, Step, StepOutputs

_CELLS_PER_PAGE = 32
_CELL_PADDING = 256  # llama.cpp rounds a context up to this
_MAXIMUM_SEQUENCES = 256  # LLAMA_MAX_SEQ
_GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
_CACHE_BYTES_PER_32 = {"f32": 128, "f16": 64, "q8_0": 34}
_FLASH_ATTENTION = {"f32": 0, "f16": -1, "q8_0": 1}  # off, as llama.cpp decides, on: quantized values need it
_NO_POOLING = 0
_ABORTED = 2  # of llama_decode: the abort callback returned true


class LlamaCppBackend:
    """One llama.cpp model with one context. Its methods may be called by several threads; they wait for each other."""

    def __init__(self, library: Any, model: Any, context: Any, capabilities: Capabilities, memory_plan: MemoryPlan) -> None:
        self.capabilities = capabilities
        self.memory_plan = memory_plan
        self._library = library
        self._model = model
        self._context = context
        self._memory = library.llama_get_memory(context)
        self._lock = threading.Lock()
        self._never = np.zeros(1, dtype=np.int64)
        self._is_set = nonzero_callback(library)
        # The state of a recurrent model is that of the last position alone, so what an aborted step has added to it stays.
        self._can_abort = not (library.llama_model_is_recurrent(model) or library.llama_model_is_hybrid(model))
        self._width = int(library.llama_model_n_embd(model))
        self._slot_of: dict[int, int] = {}
        self._length_of: dict[int, int] = {}
        self._free_slots = list(range(capabilities.maximum_sequences + capabilities.kept_sequences - 1, -1, -1))

    @classmethod
    def load(cls, model: Path, options: BackendOptions) -> LlamaCppBackend:
        """Loads a GGUF file. `cache_type` f32 also turns flash attention off: together they are llama.cpp at its most exact.

        Raises BackendUnavailableError without the library, ModelFileError with llama.cpp's own words for a file that it refuses, MemoryPlanError
        before its cache is taken.
        """
        library = load_library()
        if options.instruction_set is not None:
            raise UnsupportedOptionError(f"instruction_set is {options.instruction_set!r}, but the llamacpp backend chooses its own; leave it out")
        if _cache_type(options) not in _GGML_TYPES:
            raise UnsupportedOptionError(f"cache_type is {options.cache_type!r}, but llama.cpp has {', '.join(_GGML_TYPES)}; choose one of these, or use numba")
        forget_log()
        handle = library.llama_model_load_from_file(path_for_llamacpp(model), model_parameters(library))
        if not handle:
            raise ModelFileError(f"llama.cpp cannot load {model}: {logged_reason()}")
        context = None
        try:
            threads = host.worker_threads(options.threads).count
            cells = _padded(options.cache_tokens or options.context)
            plan = _memory_plan(library, handle, options, cells)
            plan.check(Path(model).name, options.context)
            sequences = min(options.maximum_sequences, _MAXIMUM_SEQUENCES)
            # A recurrent state is that of the last position alone, so there is no prefix of it to share. With sliding windows llama.cpp gives cells of a
            # sequence that lie behind its window to others, so what looks like a prefix may have lost its last positions.
            forgets = library.llama_model_is_recurrent(handle) or library.llama_model_is_hybrid(handle) or library.llama_model_n_swa(handle) > 0
            kept = 0 if forgets else min(sequences, _MAXIMUM_SEQUENCES - sequences)
            context = library.llama_init_from_model(handle, _context_parameters(library, options, threads, sequences + kept, cells))
            if not context:
                raise EdgeInferError(f"llama.cpp cannot make a context of {cells} tokens for {model}: {logged_reason()}")
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
                description=_description(options),
                output_kinds=frozenset({OutputKind.LOGITS, OutputKind.HIDDEN}),
                kept_sequences=kept,
            )
            return cls(library, handle, context, capabilities, plan)
        except BaseException:
            if context:
                library.llama_free(context)
            library.llama_model_free(handle)
            raise

    def step(self, step: Step) -> StepOutputs:
        """Runs one forward pass; see `Backend`. A step that fails leaves its sequences with the positions before it."""
        with self._lock:
            self._require_open()
            refuse_undeclared(step, self.capabilities)
            slots = np.array([self._truncated_slot(table.sequence_id, table.start) for table in step.sequences], dtype=np.int32)
            try:
                return self._run(step, slots)
            except BaseException:
                for table in step.sequences:
                    self._cut(self._slot_of[table.sequence_id], table.start)
                raise

    def share_prefix(self, source: int, target: int, length: int) -> None:
        """See `PrefixSharingBackend`. The cells are not copied: they belong to both sequences."""
        with self._lock:
            self._require_open()
            held = self._length_of.get(self._slot_of.get(source, -1), 0)
            if target in self._slot_of or not self.capabilities.kept_sequences or not 0 < length <= held:
                raise InvalidRequestError(
                    f"sequence {target} cannot take over {length} positions of sequence {source}, of which llama.cpp holds {held}; the target must be new"
                )
            slot = self._slot(target)
            self._library.llama_memory_seq_cp(self._memory, self._slot_of[source], slot, 0, length)
            self._length_of[slot] = length

    def release(self, sequence_ids: Sequence[int]) -> None:
        """See `Backend`. After `close` nothing is left to release."""
        with self._lock:
            for identifier in sequence_ids if self._context is not None else ():
                slot = self._slot_of.pop(identifier, None)
                if slot is not None:
                    self._library.llama_memory_seq_rm(self._memory, slot, -1, -1)
                    self._length_of[slot] = 0
                    self._free_slots.append(slot)

    def close(self) -> None:
        """Gives back memory and threads, after the step that runs. Idempotent."""
        with self._lock:
            context, self._context = self._context, None
            model, self._model = self._model, None
            if context is not None:
                self._library.llama_free(context)
            if model is not None:
                self._library.llama_model_free(model)

    def _require_open(self) -> None:
        if self._context is None:
            raise EngineClosedError("the llamacpp backend was closed")

    def _slot(self, identifier: int) -> int:
        """llama.cpp's id of a sequence; a new one holds nothing."""
        if identifier not in self._slot_of:
            if not self._free_slots:
                limit = self.capabilities.maximum_sequences + self.capabilities.kept_sequences
                raise EdgeInferError(f"more than {limit} sequences are alive in the llamacpp backend")
            self._slot_of[identifier] = self._free_slots.pop()
        return self._slot_of[identifier]

    def _truncated_slot(self, identifier: int, start: int) -> int:
        """llama.cpp's id of a sequence, holding the positions before `start` and no others."""
        held = self._length_of.get(self._slot_of.get(identifier, -1), 0)
        if held < start:
            raise InvalidRequestError(f"a step starts at position {start} of a sequence of which llama.cpp holds {held} tokens")
        slot = self._slot(identifier)
        if held > start and not self._cut(slot, start):
            raise EdgeInferError(f"this model's cache cannot be cut back to {start} tokens in llama.cpp")
        return slot

    def _cut(self, slot: int, length: int) -> bool:
        """Forgets the positions from `length` on; False where the model's cache cannot do that."""
        if not self._library.llama_memory_seq_rm(self._memory, slot, length, -1):
            return False
        self._length_of[slot] = length
        return True

    def _run(self, step: Step, slots: NDArray[np.int32]) -> StepOutputs:
        """Decodes the rows and copies what they ask for.

        While llama.cpp gives hidden states, it gives outputs of every row, for which there is room of MAXIMUM_OUTPUT_ROWS: such a step is cut.
        """
        logit_rows = np.flatnonzero(step.outputs == OutputKind.LOGITS).astype(np.int32)
        hidden_rows = np.flatnonzero(step.outputs == OutputKind.HIDDEN).astype(np.int32)
        logits = np.empty((len(logit_rows), self.capabilities.vocabulary), dtype=np.float32)
        hidden = np.empty((len(hidden_rows), self._width), dtype=np.float32)
        rows_at_once = MAXIMUM_OUTPUT_ROWS if len(hidden_rows) else max(1, step.rows)
        self._library.llama_set_embeddings(self._context, bool(len(hidden_rows)))
        for first in range(0, step.rows, rows_at_once):
            rows = slice(first, min(first + rows_at_once, step.rows))
            self._decode(step, slots, rows)
            for index in np.flatnonzero((logit_rows >= rows.start) & (logit_rows < rows.stop)):
                source = self._library.llama_get_logits_ith(self._context, int(logit_rows[index]) - first)
                logits[index] = np.ctypeslib.as_array(source, shape=(self.capabilities.vocabulary,))
            for index in np.flatnonzero((hidden_rows >= rows.start) & (hidden_rows < rows.stop)):
                source = self._library.llama_get_embeddings_ith(self._context, int(hidden_rows[index]) - first)
                hidden[index] = np.ctypeslib.as_array(source, shape=(self._width,))
        if not np.isfinite(logits).all() or not np.isfinite(hidden).all():
            raise NonFiniteError("llama.cpp computed an infinity or a NaN; a float32 cache (cache_type='f32') may help, or the file is damaged")
        if len(hidden_rows):
            return StepOutputs(logits, logit_rows, hidden=hidden, hidden_rows=hidden_rows)
        return StepOutputs(logits, logit_rows)

    def _decode(self, step: Step, slots: NDArray[np.int32], rows: slice) -> None:
        token_ids = np.ascontiguousarray(step.token_ids[rows], dtype=np.int32)
        positions = np.ascontiguousarray(step.slots[rows], dtype=np.int32)
        sequence_ids = slots[step.sequence[rows]]
        counts = np.ones(len(token_ids), dtype=np.int32)
        pointers = sequence_ids.ctypes.data + 4 * np.arange(len(token_ids), dtype=np.uint64)
        flags = (step.outputs[rows] != OutputKind.NONE).astype(np.int8)
        batch = self._library.llama_batch(
            n_tokens=len(token_ids),
            token=_pointer(token_ids, ctypes.c_int32),
            embd=None,
            pos=_pointer(positions, ctypes.c_int32),
            n_seq_id=_pointer(counts, ctypes.c_int32),
            seq_id=ctypes.cast(pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=_pointer(flags, ctypes.c_int8),
        )
        abort = step.abort if step.abort is not None and self._can_abort else self._never
        self._library.llama_set_abort_callback(self._context, self._is_set, abort.ctypes.data)
        forget_log()
        status = int(self._library.llama_decode(self._context, batch))
        if status == _ABORTED:
            raise StepAbortedError(f"a step of {step.rows} tokens was ended early")
        if status != 0:
            raise EdgeInferError(f"llama.cpp could not run a step of {step.rows} tokens (status {status}): {logged_reason()}")
        for slot, position in zip(sequence_ids, positions, strict=True):
            self._length_of[int(slot)] = int(position) + 1


def _context_parameters(library: Any, options: BackendOptions, threads: int, sequences: int, cells: int) -> Any:
    parameters = library.llama_context_default_params()
    parameters.n_ctx = cells
    parameters.n_batch = parameters.n_ubatch = options.maximum_step_rows
    parameters.n_seq_max = sequences
    parameters.n_outputs_max = max(MAXIMUM_OUTPUT_ROWS, sequences)  # room for the logits of every row would be 537 MB on a vocabulary of 262,144
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.type_k = parameters.type_v = _GGML_TYPES[_cache_type(options)]
    parameters.flash_attn_type = _FLASH_ATTENTION[_cache_type(options)]
    parameters.pooling_type = _NO_POOLING
    parameters.offload_kqv = False
    parameters.op_offload = False
    parameters.no_perf = True
    parameters.swa_full = True  # sequences are cut back and recomputed
    parameters.kv_unified = True  # a sequence may take all cells
    return parameters


def _memory_plan(library: Any, model: Any, options: BackendOptions, cells: int) -> MemoryPlan:
    """llama.cpp maps the weights and plans by itself; this is the arithmetic of what it will take, after the model was opened."""
    available = host.available_memory()
    default = library.llama_model_n_embd(model) // (library.llama_model_n_head(model) or 1)
    architecture = _metadata(library, model, "general.architecture")
    sizes = [int(_metadata(library, model, f"{architecture}.attention.{what}_length") or default) for what in ("key", "value")]
    cache = library.llama_model_n_layer(model) * library.llama_model_n_head_kv(model) * sum(sizes) * cells
    cache = cache * _CACHE_BYTES_PER_32[_cache_type(options)] // 32
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


def _metadata(library: Any, model: Any, key: str) -> str:
    """A value of the file as llama.cpp prints it; empty if the key is missing."""
    buffer = ctypes.create_string_buffer(64)
    length = library.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if length >= 0 else ""


def _cache_type(options: BackendOptions) -> str:
    return options.cache_type or DEFAULT_CACHE_TYPES["llamacpp"]


def _description(options: BackendOptions) -> str:
    flash_attention = {"f32": "off", "f16": "auto", "q8_0": "on"}[_cache_type(options)]
    return f"{describe_library()}; {_cache_type(options)} cache, flash attention {flash_attention}"


def _padded(tokens: int) -> int:
    return -(-tokens // _CELL_PADDING) * _CELL_PADDING


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

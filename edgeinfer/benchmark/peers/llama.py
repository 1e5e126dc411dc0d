"""llama.cpp and ik_llama.cpp through the functions of their C interfaces, without sampling: tokens are given, so that only their own work is timed.

Both read a `llama_batch` of tokens, positions and sequence numbers. Its arrays are filled before the clock starts, or with two copies of memory, so that
Python costs a microsecond a step.
"""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from edgeinfer.benchmark.peers.runner import Start, following, package_version

DEFAULT_BATCH = 512
_kept: list[Any] = []  # callbacks that a library calls until the process ends


class LlamaRunner:
    """What both have in common. `library` has llama_batch_init, llama_decode and llama_get_logits_ith; `clear` empties the cache."""

    def __init__(self, start: Start, library: Any, context: Any, clear: Callable[[], None], description: dict[str, Any]) -> None:
        self._library, self._context, self._clear, self._description = library, context, clear, description
        self._size = batch_size(start)
        self._prompt = library.llama_batch_init(self._size, 0, 1)
        self._step = library.llama_batch_init(start.sequences, 0, 1)
        for index in range(self._size):
            self._prompt.n_seq_id[index] = 1
        for index in range(start.sequences):
            self._step.n_seq_id[index], self._step.seq_id[index][0], self._step.logits[index] = 1, index, 1
        ctypes.memset(self._prompt.logits, 0, self._size)
        self._read_as(0)

    def describe(self) -> dict[str, Any]:
        return self._description

    def _read_as(self, sequence: int) -> None:
        """Gives the tokens of the prompts that follow to a sequence."""
        for index in range(self._size):
            self._prompt.seq_id[index][0] = sequence

    def _compute(self, batch: Any, tokens: Sequence[int], positions: Sequence[int]) -> None:
        batch.n_tokens = len(tokens)
        for target, values in ((batch.token, array("i", tokens)), (batch.pos, array("i", positions))):
            ctypes.memmove(target, values.buffer_info()[0], 4 * len(values))
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode answered {status}")

    def _read_prompt(self, ids: Sequence[int]) -> None:
        """Computes a prompt; only its last token has logits."""
        last = (len(ids) - 1) % self._size
        for start in range(0, len(ids), self._size):
            part = ids[start : start + self._size]
            self._prompt.logits[last] = int(start + len(part) == len(ids))
            self._compute(self._prompt, part, range(start, start + len(part)))
        self._library.llama_get_logits_ith(self._context, last)  # waits until the row is there
        self._prompt.logits[last] = 0

    def prefill(self, ids: Sequence[int]) -> float:
        self._clear()
        began = time.perf_counter()
        self._read_prompt(ids)
        return time.perf_counter() - began

    def decode(self, prompts: Sequence[Sequence[int]], count: int) -> float:
        self._clear()
        for sequence, ids in enumerate(prompts):
            self._read_as(sequence)
            self._read_prompt(ids)
        self._read_as(0)
        steps = list(zip(*(following(ids, count) for ids in prompts), strict=True))
        lengths = [len(ids) for ids in prompts]
        began = time.perf_counter()
        for index, tokens in enumerate(steps):
            self._compute(self._step, tokens, [length + index for length in lengths])
            self._library.llama_get_logits_ith(self._context, len(tokens) - 1)
        return time.perf_counter() - began


def batch_size(start: Start) -> int:
    """Tokens of a batch; both libraries are given the same size for the batch and for the part that is computed at once."""
    return int(start.settings.get("batch", DEFAULT_BATCH))


def _size_context(parameters: Any, start: Start) -> None:
    """What both libraries' contexts are given by the same names."""
    parameters.n_ctx, parameters.n_seq_max = start.context * start.sequences, start.sequences
    parameters.n_batch = parameters.n_ubatch = batch_size(start)
    parameters.n_threads = parameters.n_threads_batch = start.threads


def start_llamacpp(start: Start) -> LlamaRunner:
    """llama.cpp. Settings: flash_attention, repack (weights copied into interleaved rows), batch, mmap.

    Raises RuntimeError when the library refuses the file or the context.
    """
    import llama_cpp

    _kept.append(llama_cpp.llama_log_callback(lambda level, text, user_data: None))
    llama_cpp.llama_log_set(_kept[-1], ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model_parameters = llama_cpp.llama_model_default_params()
    model_parameters.use_extra_bufts = bool(start.settings.get("repack", True))
    if not start.settings.get("mmap", True):
        model_parameters.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
    model = llama_cpp.llama_model_load_from_file(os.fsencode(start.model), model_parameters)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {start.model}")
    parameters = llama_cpp.llama_context_default_params()
    _size_context(parameters, start)
    flash_attention = start.settings.get("flash_attention", True)
    parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attention else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        raise RuntimeError(f"llama.cpp cannot make a context of {start.sequences} x {start.context} tokens for {start.model}")
    memory = llama_cpp.llama_get_memory(context)
    description = {
        "version": f"llama-cpp-python {llama_cpp.__version__}",
        "details": llama_cpp.llama_print_system_info().decode().strip(" |"),
        "vocabulary": llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)),
    }
    return LlamaRunner(start, llama_cpp, context, lambda: llama_cpp.llama_memory_clear(memory, True), description)


def start_ik_llamacpp(start: Start) -> LlamaRunner:
    """ik_llama.cpp. Settings as for llama.cpp. Its package would switch flash attention off by itself on a processor without AVX-VNNI, because asserts of
    the library fail there on longer prompts; here it is as the settings say, and settings with which the library ends the process are left out of the search.
    """
    library: Any = import_module("ik_llama_cpp._ctypes_api")
    library.llama_backend_init()
    model_parameters = library.llama_model_default_params()
    model_parameters.repack_tensors = bool(start.settings.get("repack", False))
    model_parameters.use_mmap = bool(start.settings.get("mmap", True))
    model = library.llama_model_load_from_file(os.fsencode(start.model), model_parameters)
    if not model:
        raise RuntimeError(f"ik_llama.cpp cannot load {start.model}")
    parameters = library.llama_context_default_params()
    _size_context(parameters, start)
    parameters.flash_attn = bool(start.settings.get("flash_attention", True))
    context = library.llama_init_from_model(model, parameters)
    if not context:
        raise RuntimeError(f"ik_llama.cpp cannot make a context of {start.sequences} x {start.context} tokens for {start.model}")
    description = {
        "version": f"ik-llama-cpp-python {package_version('ik-llama-cpp-python')}",
        "details": "iqk kernels",
        "vocabulary": library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)),
    }
    return LlamaRunner(start, library, context, lambda: library.llama_kv_cache_clear(context), description)

"""llama.cpp's logits on a file, computed as exactly as it can: float32 cache, no flash attention, all positions in one batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@functools.cache
def _llama() -> tuple[Any, Any]:
    """The binding, initialised and silent; its log callback must live as long as the library."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    return llama_cpp, silent


def oracle_logits(path: Path, token_ids: Sequence[int]) -> NDArray[np.float64]:
    """float64[tokens, vocabulary]: the logits after each token."""
    llama_cpp, _ = _llama()
    count = len(token_ids)
    model_parameters = llama_cpp.llama_model_default_params()
    model_parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_parameters)
    assert model, f"llama.cpp does not load {path}"
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = max(64, count)
    parameters.n_threads = parameters.n_threads_batch = 2
    parameters.type_k = parameters.type_v = llama_cpp.GGML_TYPE_F32
    parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.swa_full = True
    context = llama_cpp.llama_init_from_model(model, parameters)
    assert context, f"llama.cpp makes no context for {path}"
    batch = llama_cpp.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for position, token in enumerate(token_ids):
        batch.token[position], batch.pos[position], batch.logits[position] = int(token), position, 1
        batch.n_seq_id[position], batch.seq_id[position][0] = 1, 0
    try:
        assert llama_cpp.llama_decode(context, batch) == 0
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=(count, vocabulary)).astype(np.float64)
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def relative_error(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """The largest over positions of |found - expected| / |expected| (2-norms of the logits of a position)."""
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())

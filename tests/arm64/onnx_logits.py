"""Logits of small models on the backend onnx: what x86-64 computes, and an emulated arm64 CPU has to come near to."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions
from tests.backends.support import Driver, Rows

CASES: dict[str, tuple[str, str | None, float]] = {
    "float": ("llama-F16.gguf", None, 5e-3),
    "float-opset21": ("llama-F16.gguf", "cpu:dialect=opset21", 5e-3),
    "Q4_1": ("llama-Q4_1.gguf", None, 0.05),
    "gemma3-Q8_0": ("gemma3.gguf", None, 0.05),
}
"""A model of `whole_models`, the provider, and how far apart rows may be, of their norm. Float weights: what the contract allows where a backend does not
promise bits. Quantized ones: ONNX Runtime quantizes activations where the processor has a dot product for that, and elsewhere it does not."""


def has_onnx() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnx") is not None


def logits_file(folder: Path, case: str) -> Path:
    return folder / f"onnx-{case}.npy"


def onnx_logits(folder: Path, case: str) -> NDArray[np.float32]:
    """float32[tokens, vocabulary]: a prompt in two pieces, and a few single tokens."""
    from edgeinfer.backends.onnx.backend import OnnxBackend

    model, provider, _ = CASES[case]
    options = BackendOptions(context=64, threads=2, maximum_step_rows=32, maximum_sequences=2, cache_type="f32", provider=provider)
    backend = OnnxBackend.load(folder / model, options)
    try:
        tokens = np.random.default_rng(11).integers(0, backend.capabilities.vocabulary, 24).tolist()
        driver = Driver(backend)
        cuts = [0, 12, 20, *range(21, len(tokens) + 1)]
        return np.concatenate([driver.run(Rows(1, start, tokens[start:end]))[0] for start, end in pairwise(cuts)])
    finally:
        backend.close()

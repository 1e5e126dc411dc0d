"""Architectures against their oracle: llama.cpp on the same file, tiny random models in every variant, and the real models.

The reference shares the program with the kernels, so that only llama.cpp can tell whether an architecture is right. Weights are F32, so that what
remains is rounding, about 2e-6. llama.cpp looks gelu up in a table of half-precision values; here the reference does so too, but which of two halves
a value is rounded to depends on rounding before it, so that 1e-4 remains. A verb that is wrong makes 0.05 and more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import reference
from edgeinfer.model.decoder import build_decoder
from edgeinfer.model.dims import read_dims
from edgeinfer.model.reference import reference_logits
from edgeinfer.model.spec import load_spec
from edgeinfer.model.tensors import read_tensor_table
from tests.conftest import model_path
from tests.model.oracle import oracle_logits, relative_error
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

TOKENS = 80  # beyond every window here, and beyond the original context of the scaled models
BARS = {"silu": 1e-5, "gelu_tanh": 1e-3}
FACTORS = np.geomspace(1, 12, 8).astype(np.float32)  # far from 1, for 8 pairs

Build = Callable[..., Path]
BUILDERS: dict[str, Build] = {"llama": tiny_llama, "qwen2": tiny_qwen2, "gemma3": tiny_gemma3}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tied": True}),
    "llama, biases": ("llama", {"biases": True}),
    "llama, heads wider than width / heads": ("llama", {"head_size": 32}),
    "llama, all heads with keys of their own": ("llama", {"kv_heads": 4}),
    "llama, one key head": ("llama", {"kv_heads": 1}),
    "llama, no number of key heads": ("llama", {"kv_heads": 4, "metadata": {"llama.attention.head_count_kv": None}}),
    "llama, no rope base, no rope dimensions": ("llama", {"metadata": {"llama.rope.freq_base": None, "llama.rope.dimension_count": None}}),
    "llama, linear scaling": ("llama", {"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}}),
    "llama, linear scaling without a type": ("llama", {"metadata": {"llama.rope.scaling.factor": 4.0}}),
    "llama, linear scaling by its old name": ("llama", {"metadata": {"llama.rope.scale_linear": 4.0}}),
    "llama, a factor but no scaling": ("llama", {"metadata": {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}}),
    "llama, frequency factors": ("llama", {"tensors": {"rope_freqs.weight": FACTORS}}),
    "llama, three layers of another shape": ("llama", {"layers": 3, "width": 96, "heads": 6, "kv_heads": 3, "feed_forward": 64, "seed": 3}),
    "qwen2": ("qwen2", {}),
    "qwen2, no biases": ("qwen2", {"biases": False}),
    "qwen2, tied": ("qwen2", {"tied": True}),
    "qwen2, one key head": ("qwen2", {"kv_heads": 1}),
    "gemma3": ("gemma3", {}),
    "gemma3, not tied": ("gemma3", {"tied": False}),
    "gemma3, eight layers, two key heads": ("gemma3", {"layers": 8, "kv_heads": 2}),
    "gemma3, no window": ("gemma3", {"metadata": {"gemma3.attention.sliding_window": None}}),
    "gemma3, a window of 0": ("gemma3", {"sliding_window": 0}),
    "gemma3, a window of 1": ("gemma3", {"sliding_window": 1}),
    "gemma3, soft cap of the logits": ("gemma3", {"metadata": {"gemma3.final_logit_softcapping": 3.0}}),
    "gemma3, linear scaling of the layers without a window": (
        "gemma3", {"metadata": {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}},
    ),
    "gemma3, rope base of the windowed layers": ("gemma3", {"metadata": {"gemma3.rope.freq_base_swa": 100.0}}),
    "gemma3, part of each head is turned": ("gemma3", {"metadata": {"gemma3.rope.dimension_count": 16}}),
    "gemma3, every second layer without a window": ("gemma3", {"metadata": {"gemma3.attention.sliding_window_pattern": 2}}),
    "gemma3, windows by a list": (
        "gemma3", {"metadata": {"gemma3.attention.sliding_window_pattern": [False, True, True, False, True, False]}},
    ),
    "gemma3, the scale of the 27B model": ("gemma3", {"layers": 62, "heads": 4, "head_size": 32}),
}  # fmt: skip


def table_gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """gelu_tanh as llama.cpp computes it: argument and result rounded to half precision, and x itself from 10 on."""
    half = x.astype(np.float16)
    return np.where(x <= -10, 0.0, np.where(x >= 10, x, reference._gelu_tanh(half.astype(np.float64)).astype(np.float16)))


@pytest.fixture(autouse=True)
def gelu_of_llamacpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference._FUNCTIONS, "gelu_tanh", table_gelu)  # type: ignore[arg-type]


def token_ids(file: GGUFFile, count: int = TOKENS) -> list[int]:
    """Random tokens, each position another."""
    vocabulary = len(file.metadata["tokenizer.ggml.tokens"])
    return np.random.default_rng(1).integers(0, vocabulary, count).tolist()


@pytest.mark.llamacpp
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_llamacpps(variant: str, tmp_path: Path) -> None:
    architecture, options = VARIANTS[variant]
    path = BUILDERS[architecture](tmp_path / "tiny.gguf", **options)
    with GGUFFile.open(path) as file:
        ids = token_ids(file)
        error = relative_error(reference_logits(file, ids), oracle_logits(path, ids))
    assert error < BARS[load_spec(architecture).activation]


# Each key that matters, with the value it is changed to. llama.cpp's logits must change, and ours with them.
CHANGED_KEYS: list[tuple[str, str, Any]] = [
    ("llama", "attention.layer_norm_rms_epsilon", 0.5),
    ("llama", "rope.freq_base", 500.0),
    ("llama", "rope.scaling.factor", 2.0),
    ("qwen2", "attention.layer_norm_rms_epsilon", 0.5),
    ("qwen2", "rope.freq_base", 500.0),
    ("qwen2", "rope.scaling.factor", 2.0),
    ("gemma3", "attention.layer_norm_rms_epsilon", 0.5),
    ("gemma3", "attention.sliding_window", 7),
    ("gemma3", "attention.sliding_window_pattern", 3),
    ("gemma3", "final_logit_softcapping", 2.0),
    ("gemma3", "rope.dimension_count", 8),
    ("gemma3", "rope.freq_base", 500.0),
    ("gemma3", "rope.freq_base_swa", 500.0),
    ("gemma3", "rope.scaling.factor", 2.0),
]


@pytest.mark.llamacpp
@pytest.mark.parametrize(("architecture", "key", "value"), CHANGED_KEYS)
def test_a_changed_key_changes_the_logits_as_in_llamacpp(architecture: str, key: str, value: Any, tmp_path: Path) -> None:
    def both(name: str, metadata: dict[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        path = BUILDERS[architecture](tmp_path / name, metadata=metadata)
        with GGUFFile.open(path) as file:
            ids = token_ids(file)
            return reference_logits(file, ids), oracle_logits(path, ids)

    _, plain_oracle = both("plain.gguf", {})
    changed_ours, changed_oracle = both("changed.gguf", {f"{architecture}.{key}": value})
    assert relative_error(changed_oracle, plain_oracle) > 0.02
    assert relative_error(changed_ours, changed_oracle) < BARS[load_spec(architecture).activation]


WRONG_VERBS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_pairing": "halves"}),
    ("llama", {"activation": "gelu_tanh"}),
    ("llama", {"embedding_scale": "sqrt_width"}),
    ("qwen2", {"rope_pairing": "neighbours"}),
    ("gemma3", {"rope_pairing": "neighbours"}),
    ("gemma3", {"activation": "silu"}),
    ("gemma3", {"embedding_scale": "none"}),
    ("gemma3", {"attention_scale_by_layers": {6: "inverse_sqrt_width_per_head"}}),
    ("gemma3", {"window_global_every": 5}),
    ("gemma3", {"window_rope_base": 1_000_000.0}),
]


@pytest.mark.llamacpp
@pytest.mark.parametrize(("architecture", "verbs"), WRONG_VERBS, ids=lambda value: str(value))
def test_a_wrong_verb_would_be_noticed(architecture: str, verbs: dict[str, Any], tmp_path: Path) -> None:
    options = {"heads": 4} if architecture == "gemma3" else {}
    path = BUILDERS[architecture](tmp_path / "tiny.gguf", **options)
    spec = dataclasses.replace(load_spec(architecture), **verbs)
    with GGUFFile.open(path) as file:
        dims = read_dims(spec, file.metadata)
        program = build_decoder(spec, dims, read_tensor_table(spec, dims, file.tensors))
        ids = token_ids(file)
        assert relative_error(reference_logits(file, ids, program=program), oracle_logits(path, ids)) > 0.02


def kullback_leibler(p_logits: NDArray[np.float64], q_logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[rows], in nats."""
    logarithms = []
    for logits in (p_logits, q_logits):
        shifted = logits - logits.max(axis=1, keepdims=True)
        logarithms.append(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
    p, q = logarithms
    return (np.exp(p) * (p - q)).sum(axis=1)


@pytest.mark.llamacpp
@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"])
def test_a_real_model_agrees_with_llamacpp(name: str) -> None:
    """llama.cpp rounds activations to 8 bits for quantized weights, which makes about 0.005 nats; a wrong architecture makes whole nats."""
    path = model_path(name)
    import llama_cpp

    tokenizer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    text = b"The capital of France is Paris. It lies on the Seine, and whoever has seen it in spring wants to come back one day."
    ids = tokenizer.tokenize(text, add_bos=True)
    with GGUFFile.open(path) as file:
        ours, oracle = reference_logits(file, ids), oracle_logits(path, ids)
    assert kullback_leibler(ours, oracle).mean() < 0.02
    decided = np.diff(np.sort(oracle, axis=1)[:, -2:], axis=1)[:, 0] > 0.5  # where the best two are further apart than that rounding
    assert decided.sum() > len(ids) // 2
    assert (ours.argmax(axis=1) == oracle.argmax(axis=1))[decided].all()

"""The tensor table: every tensor has one role and the right shape, or the file is refused with its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.core.errors import EdgeInferError, ModelFileError, UnsupportedModelError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model.dims import read_dims
from edgeinfer.model.spec import load_spec
from edgeinfer.model.tensors import TensorTable, read_tensor_table
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2


def table(path: Path) -> TensorTable:
    with GGUFFile.open(path) as file:
        spec = load_spec(file.metadata["general.architecture"])
        return read_tensor_table(spec, read_dims(spec, file.metadata), file.tensors)


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def test_a_tied_output_is_the_embedding(tmp_path: Path) -> None:
    tied, own = table(tiny_llama(tmp_path / "tied.gguf", tied=True)), table(tiny_llama(tmp_path / "own.gguf"))
    assert tied.tied
    assert tied.output.weight is tied.token_embedding
    assert not own.tied
    assert own.output.weight.name == "output.weight"


def test_biases_follow_the_file(tmp_path: Path) -> None:
    for layer in table(tiny_qwen2(tmp_path / "qwen2.gguf")).layers:
        assert all(weights.bias is not None for weights in (layer.query, layer.key, layer.value))
        assert all(weights.bias is None for weights in (layer.attention_output, layer.gate, layer.up, layer.down))
    for layer in table(tiny_llama(tmp_path / "llama.gguf", biases=True)).layers:
        assert all(weights.bias is not None for weights in (layer.attention_output, layer.gate, layer.up, layer.down))
    only_one = {"blk.1.attn_q.bias": zeros(64), "output.bias": zeros(292)}
    path = tiny_llama(tmp_path / "one.gguf", tensors=only_one)
    found = table(path)
    assert [layer.query.bias is not None for layer in found.layers] == [False, True]
    assert found.output.bias is not None


def test_norms_follow_the_architecture(tmp_path: Path) -> None:
    llama, gemma3 = table(tiny_llama(tmp_path / "llama.gguf")).layers[0], table(tiny_gemma3(tmp_path / "gemma3.gguf")).layers[0]
    assert (llama.query_norm, llama.key_norm, llama.post_attention_norm, llama.post_feed_forward_norm) == (None,) * 4
    assert gemma3.query_norm is not None
    assert gemma3.query_norm.shape == (32,)
    assert gemma3.post_attention_norm is not None
    assert gemma3.post_feed_forward_norm is not None


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.attn_q.weight", "blk.0.ffn_down.weight", "blk.1.ffn_norm.weight"])
def test_a_missing_tensor_is_named_with_its_shape(name: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", tensors={name: None})
    with pytest.raises(ModelFileError, match=rf"{name} \[.*\].* not in the file"):
        table(path)


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("blk.0.attn_q.weight", (64, 32), "64, 64"),
        ("blk.0.attn_k.weight", (64, 64), "32, 64"),
        ("blk.0.ffn_down.weight", (128, 64), "64, 128"),
        ("blk.1.ffn_norm.weight", (65,), "64"),
        ("blk.1.attn_q.bias", (32,), "64"),
        ("output.weight", (291, 64), "292, 64"),
        ("token_embd.weight", (300, 64), "292, 64"),
        ("rope_freqs.weight", (16,), "8"),
    ],
)
def test_a_wrong_shape_is_refused_with_both_shapes(name: str, found: tuple[int, ...], expected: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", tensors={name: zeros(*found)})
    with pytest.raises(ModelFileError) as error:
        table(path)
    for part in (name, "[" + ", ".join(map(str, found)) + "]", f"[{expected}]"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.2.attn_q.weight", "blk.0.attn_q.scale", "v.patch_embd.weight", "cls.weight", "blk.0.x"])
def test_a_tensor_without_a_role_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", tensors={name: zeros(64)})
    with pytest.raises(UnsupportedModelError, match=name):
        table(path)


def test_frequency_factors_belong_to_architectures_that_have_them(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.ones(8, np.float32)}
    assert table(tiny_llama(tmp_path / "llama.gguf", tensors=factors)).rope_factors is not None
    path = tiny_qwen2(tmp_path / "qwen2.gguf", tensors=factors)
    with pytest.raises(UnsupportedModelError, match="rope_freqs.weight"):
        table(path)


def test_a_fused_tensor_is_named_where_its_parts_are_missing(tmp_path: Path) -> None:
    parts: dict[str, Any] = {f"blk.0.attn_{part}.weight": None for part in "qkv"}
    path = tiny_llama(tmp_path / "tiny.gguf", tensors={**parts, "blk.0.attn_qkv.weight": zeros(128, 64)})
    with pytest.raises(ModelFileError, match=r"attn_q.weight .*attn_qkv.weight, which edgeinfer does not know"):
        table(path)


def test_the_message_of_many_unknown_tensors_is_short(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", tensors={f"unknown.{number}": zeros(32) for number in range(500)})
    with pytest.raises(EdgeInferError, match="and 497 more") as error:
        table(path)
    assert len(str(error.value)) < 400

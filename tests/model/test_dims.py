"""Metadata: defaults as llama.cpp has them, contradictions refused, and no key that changes the result passed over."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgeinfer.core.errors import EdgeInferError, ModelFileError, UnsupportedModelError
from edgeinfer.model.dims import Dims, LayerRope, read_dims, trained_context
from edgeinfer.model.spec import load_spec

SIZES = {
    "block_count": 6,
    "context_length": 256,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


def dims(architecture: str = "llama", changed: dict[str, Any] | None = None) -> Dims:
    """`changed`: keys without their prefix; None leaves one out."""
    values = {**SIZES, **(changed or {})}
    metadata = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    return read_dims(load_spec(architecture), {"general.architecture": architecture, "tokenizer.ggml.tokens": ["a", "b", "c"], **metadata})


def test_missing_keys_have_the_defaults_of_llamacpp() -> None:
    found = dims()
    assert (found.kv_heads, found.head_size, found.value_size, found.rope_pairs) == (4, 16, 16, 8)
    assert found.rope == LayerRope(10000.0, 1.0)
    assert found.windows == (0,) * 6
    assert found.attention_scale == 1 / math.sqrt(16)
    assert (found.attention_softcap, found.output_softcap, found.embedding_scale, found.vocabulary) == (0.0, 0.0, 1.0, 3)


def test_a_stored_head_size_wins_over_width_by_heads() -> None:
    found = dims(changed={"attention.key_length": 32, "attention.value_length": 32, "attention.head_count_kv": 2})
    assert (found.head_size, found.value_size, found.rope_pairs, found.attention_scale) == (32, 32, 16, 1 / math.sqrt(32))
    assert dims(changed={"embedding_length": 65, "attention.key_length": 16, "attention.value_length": 16}).head_size == 16


@pytest.mark.parametrize("key", SIZES)
def test_a_missing_key_without_a_default_is_named(key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"llama\.{key} is missing"):
        dims(changed={key: None})


@pytest.mark.parametrize("value", [0, -1, 2**31, 2**63, 3.0, True, "4", [], math.nan])
@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "attention.head_count", "attention.key_length"])
def test_a_size_that_is_none_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"llama\.{key}"):
        dims(changed={key: value})


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "1e-5", True, [1.0]])
@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"])
def test_a_number_that_is_none_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"llama\.{key}"):
        dims(changed={key: value})


def test_values_may_be_numpy_scalars() -> None:
    assert dims(changed={"block_count": np.uint32(6), "rope.freq_base": np.float32(500.0)}).rope.base == 500.0


def test_a_list_with_one_value_for_all_layers_is_that_value() -> None:
    assert dims(changed={"attention.head_count_kv": np.array([2] * 6), "feed_forward_length": [96] * 6}).kv_heads == 2
    with pytest.raises(UnsupportedModelError, match="feed_forward_length"):
        dims(changed={"feed_forward_length": [96, 96, 96, 96, 96, 64]})
    with pytest.raises(ModelFileError, match="head_count_kv"):
        dims(changed={"attention.head_count_kv": [2, 2]})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"attention.head_count_kv": 3}, "4 attention heads .* 3 key and value heads"),
        ({"embedding_length": 65}, "width of 65 .* 4 heads"),
        ({"embedding_length": 65, "attention.key_length": 16}, "width of 65 .* 4 heads"),
        ({"rope.dimension_count": 8}, "rope.dimension_count is 8; expected 16"),
        ({"rope.dimension_count": 32}, "rope.dimension_count is 32; .* at most 16"),
        ({"rope.dimension_count": 15}, "rope.dimension_count is 15; expected an even number"),
        ({"attention.key_length": 15, "attention.value_length": 15}, "rope.dimension_count"),
        ({"vocab_size": 4}, "vocab_size is 4, but tokenizer.ggml.tokens has 3"),
        ({"block_count": 10**6}, "block_count is 1000000"),
    ],
)
def test_contradictions_are_refused_with_both_sides(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        dims(changed=changed)


def test_values_of_another_size_than_keys_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="16 elements per head .* values 32"):
        dims(changed={"attention.value_length": 32})


def test_the_vocabulary_is_known_without_a_tokenizer() -> None:
    metadata = {f"llama.{key}": value for key, value in SIZES.items()}
    assert read_dims(load_spec("llama"), {**metadata, "llama.vocab_size": 77}).vocabulary == 77
    with pytest.raises(ModelFileError, match="vocab_size is missing"):
        read_dims(load_spec("llama"), metadata)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.key_length_mla", 8),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("expert_count", 8),
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("attention.scale", 0.5),
        ("rope.scaling.attn_factor", 1.2),
        ("rope.dimension_sections", [1, 2, 3]),
        ("an.entirely.new.key", "x" * 10**6),
    ],
)
def test_a_key_that_would_change_the_result_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"llama\.{key}") as error:
        dims(changed={key: value})
    assert repr(value)[:20] in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("attention.causal", True),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.finetuned", True),
        ("tensor_data_layout", "Meta AI original pth"),
        ("attention.sliding_window", 0),
        ("attention.sliding_window", 256),
    ],
)
def test_a_key_without_effect_is_accepted(key: str, value: Any) -> None:
    assert dims(changed={key: value}) == dims()


def test_a_window_of_an_architecture_without_windows_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.sliding_window is 255"):
        dims(changed={"attention.sliding_window": 255})
    with pytest.raises(ModelFileError, match=r"llama\.attention\.sliding_window is 'wide'"):
        dims(changed={"attention.sliding_window": "wide"})


def test_keys_of_another_architecture_do_not_matter() -> None:
    metadata = {f"llama.{key}": value for key, value in SIZES.items()}
    assert read_dims(load_spec("llama"), {**metadata, "llama.vocab_size": 3, "llama4.expert_count": 9, "split.count": 1}) == dims()


@pytest.mark.parametrize(
    ("changed", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scaling.type": "linear"}, 1.0),
        ({"rope.scaling.factor": 0.0}, 1.0),
    ],
)
def test_linear_scaling(changed: dict[str, Any], factor: float) -> None:
    assert dims(changed=changed).rope.linear_factor == factor


@pytest.mark.parametrize("kind", ["yarn", "longrope", "dynamic", ""])
def test_other_scalings_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"rope.scaling.type is '{kind}'"):
        dims(changed={"rope.scaling.type": kind, "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64})


def test_the_context_takes_the_scaling_into_account() -> None:
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert dims(changed={**scaled, "rope.scaling.original_context_length": 256}).context_length == 2048
    assert dims(changed={**scaled, "rope.scaling.original_context_length": 32}).context_length == 256
    assert dims(changed=scaled).context_length == 256  # whether 256 is before or after scaling is not said


@pytest.mark.parametrize(
    ("added", "tokens"),
    [
        ({}, 256),
        ({"scaling.type": "linear", "scaling.factor": 4.0, "scaling.original_context_length": 256}, 1024),
        ({"scaling.type": "linear", "scaling.factor": 4.0, "scaling.original_context_length": 64}, 256),
        ({"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 256}, 256),
        ({"scaling.factor": "four"}, 256),
    ],
)
def test_the_trained_context_is_told_for_any_architecture(added: dict[str, Any], tokens: int) -> None:
    metadata = {"general.architecture": "other", "other.context_length": 256, **{f"other.rope.{key}": value for key, value in added.items()}}
    assert trained_context(metadata) == tokens


@pytest.mark.parametrize("stored", [None, 0, 1, -5, "256", 2.5, True])
def test_no_usable_trained_context_is_none(stored: Any) -> None:
    assert trained_context({"general.architecture": "other", "other.context_length": stored}) is None
    assert trained_context({}) is None


def test_windows_of_gemma3() -> None:
    assert dims("gemma3", {"attention.sliding_window": 16}).windows == (16, 16, 16, 16, 16, 0)
    assert dims("gemma3", {"attention.sliding_window": 16, "block_count": 8}).windows == (16,) * 5 + (0,) + (16,) * 2
    assert dims("gemma3", {"attention.sliding_window": 16, "attention.sliding_window_pattern": 3}).windows == (16, 16, 0) * 2
    assert dims("gemma3", {"attention.sliding_window": 16, "attention.sliding_window_pattern": 0}).windows == (16,) * 6
    assert dims("gemma3", {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False] * 3}).windows == (16, 0) * 3
    assert dims("gemma3").windows == (0,) * 6
    for pattern in ([True], ["a"] * 6, "6", -1):
        with pytest.raises(ModelFileError, match="sliding_window_pattern"):
            dims("gemma3", {"attention.sliding_window": 16, "attention.sliding_window_pattern": pattern})


def test_rope_of_gemma3_differs_between_layers() -> None:
    found = dims("gemma3", {"attention.sliding_window": 16, "rope.freq_base": 1e6, "rope.scaling.factor": 8.0})
    assert found.layer_rope(0) == LayerRope(10000.0, 1.0)
    assert found.layer_rope(5) == LayerRope(1e6, 8.0)
    assert dims("gemma3", {"attention.sliding_window": 16, "rope.freq_base_swa": 500.0}).layer_rope(0).base == 500.0
    assert dims("gemma3", {"rope.freq_base": 1e6}).layer_rope(0).base == 1e6


def test_constants_of_gemma3() -> None:
    found = dims("gemma3", {"final_logit_softcapping": 30.0, "attention.key_length": 32, "attention.value_length": 32, "attn_logit_softcapping": 0.0})
    assert (found.embedding_scale, found.output_softcap, found.attention_scale) == (8.0, 30.0, 1 / math.sqrt(32))
    large = dims("gemma3", {"block_count": 62, "attention.key_length": 32, "attention.value_length": 32})
    assert large.attention_scale == 1 / math.sqrt(16)  # the 27B model: width / heads
    with pytest.raises(UnsupportedModelError, match=r"gemma3\.attn_logit_softcapping is 50"):
        dims("gemma3", {"attn_logit_softcapping": 50.0})


def test_random_metadata_gives_dims_or_a_typed_error() -> None:
    random = np.random.default_rng(0)
    values: list[Any] = [0, 1, -1, 2**40, 0.5, math.nan, -math.inf, True, "", "linear", [], [1] * 6, [0.5], np.arange(6), np.float32(2), b"x", None]
    keys = [*SIZES, "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base", "rope.dimension_count"]
    keys += [
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.freq_base_swa",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "vocab_size",
    ]
    keys += ["final_logit_softcapping", "rope.scaling.original_context_length", "pooling_type", "unheard.of"]
    outcomes = set()
    for _ in range(2000):
        changed = {keys[random.integers(len(keys))]: values[random.integers(len(values))] for _ in range(random.integers(1, 4))}
        try:
            dims("gemma3", changed)
            outcomes.add("dims")
        except EdgeInferError as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"dims", "ModelFileError", "UnsupportedModelError"}

"""The reference against a forward pass that shares nothing with it, its windows and blocks, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.core.errors import InvalidRequestError, NonFiniteError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program, fuse
from edgeinfer.model.program import Operation
from edgeinfer.model.reference import reference_logit_blocks, reference_logits
from kernels_numba.formats import format_by_name
from tests.model.oracle import relative_error
from tests.model.plain_forward import plain_llama_logits
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

IDS = [int(token) for token in np.random.default_rng(5).integers(0, 292, 40)]


def logits_of(path: Path, ids: list[int] = IDS, outputs: Any = "all") -> NDArray[np.float64]:
    with GGUFFile.open(path) as file:
        return reference_logits(file, ids, outputs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head_size": 32},  # width / heads is 16: a loader that divides gets it wrong
        {"head_size": 8},
        {"kv_heads": 1},
        {"tied": True},
        {"layers": 3, "width": 96, "heads": 6, "kv_heads": 3},
        {"metadata": {"llama.rope.freq_base": 37.5}},
    ],
    ids=str,
)
def test_llama_equals_a_plain_forward_pass(options: dict[str, Any], tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", **options)
    assert relative_error(logits_of(path), plain_llama_logits(path, IDS)) < 1e-12


@pytest.mark.parametrize("scaled", ["factors", "linear"])
def test_scaled_rope_equals_a_plain_forward_pass_far_beyond_the_original_context(scaled: str, tmp_path: Path) -> None:
    if scaled == "factors":
        path = tiny_llama(tmp_path / "tiny.gguf", tensors={"rope_freqs.weight": np.geomspace(1, 30, 8).astype(np.float32)})
        divisor = 1.0
    else:
        metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 64}
        path, divisor = tiny_llama(tmp_path / "tiny.gguf", metadata=metadata), 4.0
    ids = [int(token) for token in np.random.default_rng(6).integers(0, 292, 201)]
    plain, ours = plain_llama_logits(path, ids, rope_divisor=divisor), logits_of(path, ids)
    for position in (1, 63, 64, 200):
        assert relative_error(ours[position : position + 1], plain[position : position + 1]) < 1e-12
    if scaled == "linear":
        assert relative_error(ours, plain_llama_logits(path, ids)) > 0.02


def test_a_copy_of_the_embedding_as_output_changes_no_bit(tmp_path: Path) -> None:
    tied = tiny_llama(tmp_path / "tied.gguf", tied=True)
    with GGUFFile.open(tied) as file:
        embedding = file.tensor_blocks("token_embd.weight").view(np.float32).copy()
    copied = tiny_llama(tmp_path / "copied.gguf", tied=True, tensors={"output.weight": embedding})
    assert logits_of(tied).tobytes() == logits_of(copied).tobytes()


def test_a_window_of_8_is_the_token_and_the_7_before_it(tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "tiny.gguf", layers=1, sliding_window=8)
    first, second = logits_of(path, IDS[:20]), logits_of(path, [IDS[0] + 1, *IDS[1:20]])
    changed = np.abs(first - second).max(axis=1) > 1e-9
    assert changed.tolist() == [True] * 8 + [False] * 12


def test_a_layer_without_a_window_sees_everything(tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "tiny.gguf", layers=1, sliding_window=8, metadata={"gemma3.attention.sliding_window_pattern": 1})
    first, second = logits_of(path, IDS[:20]), logits_of(path, [IDS[0] + 1, *IDS[1:20]])
    assert (np.abs(first - second).max(axis=1) > 1e-9).all()


@pytest.mark.parametrize("build", [tiny_llama, tiny_qwen2, tiny_gemma3])
def test_later_tokens_do_not_change_earlier_logits(build: Any, tmp_path: Path) -> None:
    path = build(tmp_path / "tiny.gguf")
    whole = logits_of(path)
    for count in (1, 2, 17, 39):
        assert relative_error(logits_of(path, IDS[:count]), whole[:count]) < 1e-12


def test_more_rows_than_a_block_of_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gemma3(tmp_path / "tiny.gguf", sliding_window=5)
    whole = logits_of(path)
    monkeypatch.setattr("edgeinfer.model.reference._QUERY_BLOCK", 7)
    monkeypatch.setattr("edgeinfer.model.reference._DECODED_ELEMENTS", 1000)
    assert relative_error(logits_of(path), whole) < 1e-12


@pytest.mark.parametrize("weight_format", ["Q8_0", "Q4_0", "Q5_1", "F16", "BF16"])
def test_quantized_weights_count_as_what_they_decode_to(weight_format: str, tmp_path: Path) -> None:
    quantized = tiny_llama(tmp_path / "quantized.gguf", weight_format=weight_format)
    with GGUFFile.open(quantized) as file:
        decode = format_by_name(weight_format).decode_rows
        decoded = {name: decode(file.tensor_blocks(name)) for name, record in file.tensors.items() if len(record.shape) == 2}
    plain = tiny_llama(tmp_path / "plain.gguf", tensors=decoded)
    assert logits_of(quantized).tobytes() == logits_of(plain).tobytes()


def test_outputs_are_the_rows_that_were_asked_for(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    whole = logits_of(path)
    assert whole.shape == (40, 292)
    assert relative_error(logits_of(path, outputs="last"), whole[-1:]) < 1e-12
    assert relative_error(logits_of(path, outputs=[30, 2, 2]), whole[[30, 2, 2]]) < 1e-12


def test_logits_come_in_blocks_and_only_when_they_are_asked_for(tmp_path: Path) -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def observe(operation: Operation, output: NDArray[np.float64]) -> None:
        seen.append((operation.outputs[0].name, output.shape))

    with GGUFFile.open(tiny_llama(tmp_path / "tiny.gguf")) as file:
        whole = reference_logits(file, IDS)
        blocks = reference_logit_blocks(file, IDS, block=16, observe=observe)
        assert not seen
        first = next(blocks)
        assert first.shape == (16, 292)
        body = len(seen)
        assert seen[-1] == ("logits", (16, 292))
        assert ("x1", (40, 64)) in seen
        rest = list(blocks)
        assert [block.shape for block in rest] == [(16, 292), (8, 292)]
        assert [name for name, _ in seen[body:]] == ["selected", "hidden", "logits"] * 2  # the layers ran once
    assert relative_error(np.concatenate([first, *rest]), whole) < 1e-12


def test_a_fused_program_can_be_observed(tmp_path: Path) -> None:
    with GGUFFile.open(tiny_llama(tmp_path / "tiny.gguf")) as file:
        kinds: list[str] = []
        reference_logits(file, IDS, program=fuse(build_program(file)), observe=lambda operation, output: kinds.append(operation.kind))
    assert "add" not in kinds


@pytest.mark.parametrize(
    ("ids", "outputs", "named"),
    [
        ([], "all", "at least one token id"),
        ([1, 292], "all", "token id 292 does not exist; it must be from 0 to 291"),
        ([-1], "all", "token id -1"),
        ([1.5], "all", "float64"),
        ([[1]], "all", "token id"),
        ([1, 2], [2], "position 2 does not exist; it must be from 0 to 1"),
        ([1, 2], [-1], "position -1"),
        ([1, 2], [], "at least one position"),
        ([1, 2], "first", "'first'"),
    ],
)
def test_a_wrong_request_is_refused_at_once(ids: Any, outputs: Any, named: str, tmp_path: Path) -> None:
    with GGUFFile.open(tiny_llama(tmp_path / "tiny.gguf")) as file:
        with pytest.raises(InvalidRequestError, match=named):
            reference_logit_blocks(file, ids, outputs)
        with pytest.raises(InvalidRequestError, match="block is 0"):
            reference_logit_blocks(file, [1], block=0)


def test_activations_beyond_half_precision_stay_finite(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    up = (random.standard_normal((128, 64)) * 1e5).astype(np.float32)
    key = (random.standard_normal((32, 64)) * 3e4).astype(np.float32)
    path = tiny_qwen2(tmp_path / "tiny.gguf", tensors={"blk.0.ffn_up.weight": up, "blk.0.attn_k.weight": key})
    largest: dict[str, float] = {}

    def observe(operation: Operation, output: NDArray[np.float64]) -> None:
        largest[operation.outputs[0].name] = float(np.abs(output).max())

    with GGUFFile.open(path) as file:
        assert np.isfinite(reference_logits(file, IDS, observe=observe)).all()
    assert largest["m0"] > 3e5
    assert largest["k0"] > 1e5


def test_a_damaged_weight_is_an_error_and_no_answer(tmp_path: Path) -> None:
    norm = np.ones(64, np.float32)
    norm[3] = np.nan
    with pytest.raises(NonFiniteError, match="no finite number"):
        logits_of(tiny_llama(tmp_path / "tiny.gguf", tensors={"output_norm.weight": norm}))

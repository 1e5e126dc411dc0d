"""The tiny models are what they promise: llama.cpp loads each, their logits spread, and a chain comes out as it was rigged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.gguf.reader import GGUFFile
from tests.support.tiny_models import chain_model, tiny_gemma3, tiny_llama, tiny_qwen2
from tests.support.vocabularies import CONTROL, Piece, bpe_vocabulary, byte_characters, sentencepiece_vocabulary

BUILDERS: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_llama,
    "llama, biases, tied, sentencepiece": lambda path: tiny_llama(path, biases=True, tied=True, vocabulary=sentencepiece_vocabulary()),
    "llama, K-quants": lambda path: tiny_llama(
        path, width=256, heads=8, feed_forward=256, weight_format=lambda name: "Q6_K" if "down" in name else "Q4_K"
    ),
    "llama, wide heads": lambda path: tiny_llama(path, head_size=32),
    "qwen2": tiny_qwen2,
    "gemma3": tiny_gemma3,
}


def _llama(path: Path) -> Any:
    import llama_cpp

    return llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False, n_threads=1)


@pytest.mark.llamacpp
@pytest.mark.parametrize("name", BUILDERS)
def test_llama_cpp_loads_a_tiny_model_and_its_logits_spread(name: str, tmp_path: Path) -> None:
    model = _llama(BUILDERS[name](tmp_path / "tiny.gguf"))
    ids = model.tokenize(b"hello world, the 123 caf\xc3\xa9", add_bos=True)
    assert model.detokenize(ids) == b"hello world, the 123 caf\xc3\xa9"
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)])
    assert np.isfinite(logits).all()
    assert 1.5 < logits.std(axis=1).mean() < 6
    assert len(set(logits.argmax(axis=1).tolist())) > len(ids) // 3


@pytest.mark.llamacpp
@pytest.mark.parametrize("kind", ["sentencepiece", "bpe"])
def test_llama_cpp_follows_a_chain(kind: Any, tmp_path: Path) -> None:
    chain = chain_model(tmp_path / "chain.gguf", ["Hel", "lo", " wor", b"\xe4", b"\xbd", b"\xa0", Piece("<|odd|>", CONTROL), "!?"], kind=kind)
    model = _llama(chain.path)
    model.eval(model.tokenize(b"the", add_bos=True))
    answer: list[int] = []
    for _ in chain.chain:
        logits = np.array(model.scores[model.n_tokens - 1])
        answer.append(int(logits.argmax()))
        assert np.sort(logits)[-1] - np.sort(logits)[-2] > 19
        model.eval(answer[-1:])
    assert tuple(answer) == chain.chain
    assert answer[-1] == model.token_eos()
    assert model.detokenize(answer) == "Hello wor你!?".encode()


def test_a_chain_without_an_end_returns_to_its_start(tmp_path: Path) -> None:
    chain = chain_model(tmp_path / "chain.gguf", ["a1", "b2"], ends=False)
    with GGUFFile.open(chain.path) as file:
        output = file.tensor_bytes("output.weight").view(np.float32).reshape(file.tensors["output.weight"].shape)
        first, second = chain.piece_ids
        assert output[:, first].argmax() == second
        assert output[:, second].argmax() == first
        assert output[:, chain.vocabulary.bos].argmax() == first


def test_a_chain_refuses_a_token_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only once"):
        chain_model(tmp_path / "chain.gguf", ["a1", "b2"], [0, 1, 0])


def test_metadata_and_tensors_can_be_replaced_and_left_out(tmp_path: Path) -> None:
    replacement = np.full(64, 2, np.float32)
    metadata = {"llama.rope.freq_base": None, "llama.new": 5}
    path = tiny_llama(tmp_path / "tiny.gguf", metadata=metadata, tensors={"output_norm.weight": replacement, "output.weight": None})
    with GGUFFile.open(path) as file:
        assert "llama.rope.freq_base" not in file.metadata
        assert file.metadata["llama.new"] == 5
        assert "output.weight" not in file.tensors
        assert np.array_equal(file.tensor_bytes("output_norm.weight").view(np.float32), replacement)


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    first, second, other = (tiny_gemma3(tmp_path / f"{number}.gguf", seed=seed).read_bytes() for number, seed in enumerate((1, 1, 2)))
    assert first == second != other


def test_both_halves_of_every_merge_are_tokens() -> None:
    vocabulary = bpe_vocabulary()
    for merge in vocabulary.metadata["tokenizer.ggml.merges"]:
        assert {*merge.split(" "), merge.replace(" ", "")} <= set(vocabulary.texts)


def test_tokens_are_unique_and_every_byte_has_one() -> None:
    for vocabulary in (bpe_vocabulary(), sentencepiece_vocabulary()):
        assert len(set(vocabulary.texts)) == vocabulary.size
    assert len(set(byte_characters().values())) == 256

"""Vocabularies that contradict themselves or need something unknown: a TokenizerError that names the key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.core.errors import InvalidRequestError, ModelNotFoundError, TokenizerError
from edgeinfer.tokenizer import load_tokenizer, tokenizer_from_metadata
from tests.tokenizer.vocabularies import byte_pair_metadata, sentence_piece_metadata

SIZE = len(sentence_piece_metadata()["tokenizer.ggml.tokens"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", None, "no vocabulary"),
        ("model", "bert", "'bert'"),
        ("model", "t5", "'t5'"),
        ("tokens", None, "tokens is missing"),
        ("tokens", [], "tokens is empty"),
        ("tokens", np.zeros(3, np.int32), "array of int32"),
        ("tokens", "abc", "must be an array of strings"),
        ("scores", None, "scores is missing"),
        ("scores", np.zeros(SIZE, np.float64), "array of float64"),
        ("scores", np.zeros(SIZE, np.int32), "FLOAT32"),
        ("scores", np.zeros(SIZE - 1, np.float32), f"{SIZE - 1} entries.*{SIZE}"),
        ("scores", np.full(SIZE, np.nan, np.float32), "NaN"),
        ("token_type", np.ones(SIZE, np.int8), "array of int8"),
        ("token_type", np.ones(SIZE + 1, np.int32), f"{SIZE + 1} entries"),
        ("token_type", ["a"] * SIZE, "array of strings"),
        ("bos_token_id", SIZE, f"{SIZE}.*between 0 and {SIZE - 1}"),
        ("bos_token_id", -1, "bos_token_id is -1"),
        ("eos_token_id", 2**31, "eos_token_id"),
        ("eos_token_id", "2", "must be a token id"),
        ("eos_token_id", 1.0, "must be a token id"),
        ("add_bos_token", 1, "must be a BOOL"),
        ("add_space_prefix", "yes", "must be a BOOL"),
        ("pre", 5, "must be a string"),
    ],
)
def test_a_wrong_value_is_refused_and_named(key: str, value: Any, message: str) -> None:
    metadata = sentence_piece_metadata()
    metadata.pop(f"tokenizer.ggml.{key}", None)
    if value is not None:
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(TokenizerError, match=message) as caught:
        tokenizer_from_metadata(metadata)
    assert f"tokenizer.ggml.{key}" in str(caught.value)


@pytest.mark.parametrize("piece", ["<0x-1>", "<0xZZ>", "<0x1>", "<0x041>", "0x41", "<0X41>"])
def test_a_byte_token_must_look_like_one(piece: str) -> None:
    metadata = sentence_piece_metadata()
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[3 + 0x41] = piece
    metadata["tokenizer.ggml.tokens"] = tokens
    with pytest.raises(TokenizerError, match=f"token {3 + 0x41} is a byte token"):
        tokenizer_from_metadata(metadata)


def test_a_malformed_byte_text_of_a_normal_token_is_plain_text() -> None:
    tokenizer = tokenizer_from_metadata(sentence_piece_metadata(pieces=["<0x-1>", "<0xZZ>"]))
    assert tokenizer.token_bytes(tokenizer.vocabulary_size - 1) == b"<0xZZ>"
    assert tokenizer.decode(tokenizer.encode("<0x-1> <0xZZ>")) == "<0x-1> <0xZZ>"


def test_a_token_twice_is_refused() -> None:
    metadata = sentence_piece_metadata(pieces=["twice", "once", "twice"])
    with pytest.raises(TokenizerError, match="both 'twice'"):
        tokenizer_from_metadata(metadata)


def test_empty_tokens_do_not_count_as_duplicates() -> None:
    tokenizer = tokenizer_from_metadata(sentence_piece_metadata(pieces=["", ""]))
    assert tokenizer.token_text(tokenizer.vocabulary_size - 1) == f"[EMPTY_{tokenizer.vocabulary_size - 1}]"


@pytest.mark.parametrize("merge", ["ab", "", " ", "a ", "a"])
def test_a_merge_must_have_two_pieces(merge: str) -> None:
    metadata = byte_pair_metadata()
    metadata["tokenizer.ggml.merges"] = [*metadata["tokenizer.ggml.merges"], merge]
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.merges"):
        tokenizer_from_metadata(metadata)


def test_bos_must_be_named_where_it_is_asked_for() -> None:
    metadata = byte_pair_metadata()
    del metadata["tokenizer.ggml.bos_token_id"]
    with pytest.raises(TokenizerError, match="bos_token_id"):
        tokenizer_from_metadata({**metadata, "tokenizer.ggml.add_bos_token": True})
    del metadata["tokenizer.ggml.add_bos_token"]
    with pytest.raises(TokenizerError, match="bos_token_id"):
        tokenizer_from_metadata({**metadata, "tokenizer.ggml.pre": "llama-bpe"})
    assert not tokenizer_from_metadata({**metadata, "tokenizer.ggml.pre": "qwen2"}).add_bos


def test_ids_outside_the_vocabulary_and_texts_that_are_none() -> None:
    tokenizer = tokenizer_from_metadata(sentence_piece_metadata())
    for token_id in (-1, tokenizer.vocabulary_size):
        with pytest.raises(InvalidRequestError, match=f"token id {token_id}"):
            tokenizer.decode([token_id])
        with pytest.raises(InvalidRequestError, match=f"token id {token_id}"):
            tokenizer.stream().push(token_id)
        with pytest.raises(InvalidRequestError):
            tokenizer.token_text(token_id)
    with pytest.raises(InvalidRequestError, match="U\\+D83D"):
        tokenizer.encode("half a pair: \ud83d")
    with pytest.raises(InvalidRequestError, match="bytes"):
        tokenizer.encode(b"text")  # type: ignore[arg-type]


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ModelNotFoundError):
        load_tokenizer("/no/such/file.gguf")


def test_a_character_without_a_piece_is_the_unknown_token() -> None:
    metadata = sentence_piece_metadata()
    keep = [index for index, piece in enumerate(metadata["tokenizer.ggml.tokens"]) if not piece.startswith("<0x")]
    for key in ("tokens", "scores", "token_type"):
        values = metadata[f"tokenizer.ggml.{key}"]
        metadata[f"tokenizer.ggml.{key}"] = [values[index] for index in keep] if key == "tokens" else np.array([values[index] for index in keep], values.dtype)
    assert tokenizer_from_metadata(metadata).encode("жж")[-2:] == [0, 0]  # the unknown token

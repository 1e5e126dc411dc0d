"""SentencePiece's space before a text: where it is added, that it is taken away again once, and that streaming does the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.gguf.writer import write_gguf
from edgeinfer.tokenizer import Tokenizer, tokenizer_from_metadata
from tests.support.vocabularies import CONTROL, Piece
from tests.tokenizer.vocabularies import sentence_piece_metadata

PIECES = ("▁user", "user", "▁us", "us", "▁H", "▁x", "▁▁x", "▁▁H")
TEXTS = ("user", " user", "<|s|>user", "<|s|> user", "a<|s|> b<|s|>c")


def _metadata(flag: bool | None) -> dict[str, object]:
    return sentence_piece_metadata(PIECES, [Piece("<|s|>", CONTROL)], add_space_prefix=flag)


@pytest.mark.llamacpp
@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("text", TEXTS)
def test_text_around_special_tokens_has_llama_cpps_ids_and_comes_back(flag: bool | None, text: str, tmp_path: Path) -> None:
    from tests.tokenizer.oracle import LlamaCppTokenizer

    metadata = _metadata(flag)
    path = tmp_path / "vocabulary.gguf"
    write_gguf(path, {"general.architecture": "llama", **metadata}, {})
    tokenizer = tokenizer_from_metadata(metadata)
    with LlamaCppTokenizer(path) as oracle:
        for add_special in (False, True):
            for parse_special in (False, True):
                assert tokenizer.encode(text, add_special, parse_special) == oracle.encode(text, add_special, parse_special)
    ids = tokenizer.encode(text, parse_special=True)
    assert tokenizer.decode(ids) == text
    if flag is False and not text.startswith((" ", "<|s|> ", "a")):
        assert "▁" not in "".join(tokenizer.token_text(token_id) for token_id in ids)


def _streamed(tokenizer: Tokenizer, ids: list[int], starts_sequence: bool = True) -> str:
    stream = tokenizer.stream(starts_sequence=starts_sequence)
    return "".join([stream.push(token_id) for token_id in ids]) + stream.finish()


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (("▁H", "▁world", "▁", "▁x", "!"), "H world  x!"),
        (("▁", "▁x"), " x"),
        (("▁", "▁", "x"), " x"),
        (("▁▁x", "▁▁H"), " x  H"),
        (("user", "▁x"), "user x"),
    ],
)
def test_at_most_one_leading_space_is_removed_once(pieces: tuple[str, ...], text: str) -> None:
    tokenizer = tokenizer_from_metadata(_metadata(True))
    tokens = [tokenizer.token_text(token_id) for token_id in range(tokenizer.vocabulary_size)]
    ids = [tokens.index(piece) for piece in pieces]
    assert tokenizer.decode(ids) == text
    assert _streamed(tokenizer, ids) == text
    with_bos = [1, *ids]
    assert tokenizer.decode(with_bos, skip_special=True) == text
    continued = "".join(pieces).replace("▁", " ")
    assert tokenizer.decode(ids, starts_sequence=False) == continued
    assert _streamed(tokenizer, ids, starts_sequence=False) == continued


def test_without_the_prefix_no_space_is_taken_away() -> None:
    tokenizer = tokenizer_from_metadata(_metadata(False))
    ids = tokenizer.encode(" user  x")
    assert tokenizer.decode(ids) == _streamed(tokenizer, ids) == " user  x"


def test_scores_decide_and_the_leftmost_wins_among_equals() -> None:
    metadata = sentence_piece_metadata(["ab", "bc", "aa", "aaa"])
    scores = np.array(metadata["tokenizer.ggml.scores"])
    scores[-4:] = (-1.0, -2.0, -3.0, -4.0)
    tokenizer = tokenizer_from_metadata({**metadata, "tokenizer.ggml.scores": scores, "tokenizer.ggml.add_space_prefix": False})
    assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("abc")] == ["ab", "c"]
    assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("aaaa")] == ["aa", "aa"]
    assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("aaaaa")] == ["aa", "aaa"]

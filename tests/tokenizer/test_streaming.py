"""Decoding token by token: no character is split, none is lost, and the joined text is that of all ids at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.tokenizer import Tokenizer, tokenizer_from_metadata
from tests.support.vocabularies import CONTROL, USER_DEFINED, Piece
from tests.tokenizer.vocabularies import byte_pair_metadata, sentence_piece_metadata

SPECIAL = (Piece("<|odd|>", CONTROL), Piece("<|shown|>", USER_DEFINED))
TOKENIZERS = {
    "byte pairs": tokenizer_from_metadata(byte_pair_metadata(["Ġä", "äĤ", "çĲ"], SPECIAL)),
    "sentence pieces": tokenizer_from_metadata(sentence_piece_metadata(["▁▁▁", "▁é"], SPECIAL)),
}
FIRST_BYTE = {"byte pairs": 0, "sentence pieces": 3}


def _deltas(tokenizer: Tokenizer, ids: list[int], skip_special: bool = False, starts_sequence: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special, starts_sequence=starts_sequence)
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_characters_of_several_tokens_come_out_whole_and_at_once(name: str) -> None:
    ids = [FIRST_BYTE[name] + byte for byte in "🦙中é".encode()]
    assert _deltas(TOKENIZERS[name], ids) == ["", "", "", "🦙", "", "", "中", "", "é", ""]


def test_a_token_with_a_space_and_the_first_byte_of_a_character() -> None:
    tokenizer = TOKENIZERS["byte pairs"]
    space_and_first = [tokenizer.token_text(token_id) for token_id in range(tokenizer.vocabulary_size)].index("Ġä")
    assert _deltas(tokenizer, [ord("a"), space_and_first, 0xB8, 0xAD]) == ["a", " ", "", "中", ""]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_cut_character_is_one_replacement_at_the_end(name: str, kept: int) -> None:
    ids = [FIRST_BYTE[name] + byte for byte in b"x" + "🦙".encode()[:kept]]
    deltas = _deltas(TOKENIZERS[name], ids)
    assert deltas == ["x", *[""] * kept, "\ufffd"]
    assert TOKENIZERS[name].decode(ids) == "x\ufffd"


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_joined_deltas_are_the_decoded_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=24))
    for skip_special in (False, True):
        for starts_sequence in (False, True):
            whole = tokenizer.decode(ids, skip_special, starts_sequence=starts_sequence)
            assert "".join(_deltas(tokenizer, ids, skip_special, starts_sequence)) == whole


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=40).filter(lambda text: "▁" not in text))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_what_was_encoded_comes_back(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    for parse_special in (False, True):
        assert tokenizer.decode(tokenizer.encode(text + "<|odd|>" + text, parse_special=parse_special)) == text + "<|odd|>" + text


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_shown_or_left_out(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("a<|odd|>b<|shown|>c", parse_special=True)
    assert tokenizer.decode(ids) == "a<|odd|>b<|shown|>c"
    assert tokenizer.decode(ids, skip_special=True) == "ab<|shown|>c"

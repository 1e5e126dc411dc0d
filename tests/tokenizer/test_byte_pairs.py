"""Merging by rank, and the table of pre-tokenizers."""

from __future__ import annotations

import itertools
import random
import warnings

import pytest

from edgeinfer.core.errors import TokenizerError
from edgeinfer.tokenizer import load_tokenizer, tokenizer_from_metadata
from edgeinfer.tokenizer.bpe import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE, merge_by_rank
from edgeinfer.tokenizer.pretokenizers import find_pre_tokenizer
from tests.conftest import llamacpp_models
from tests.support.vocabularies import byte_characters
from tests.tokenizer.vocabularies import byte_pair_metadata

SENTENCE = "12345678 I don't DON'T x\n\n y"


def _merge_naively(word: str, ranks: dict[str, int]) -> list[str]:
    symbols = list(word)
    while True:
        pairs = [(ranks[f"{left} {right}"], place) for place, (left, right) in enumerate(itertools.pairwise(symbols)) if f"{left} {right}" in ranks]
        if not pairs:
            return symbols
        place = min(pairs)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def test_merging_is_that_of_a_naive_loop() -> None:
    generator = random.Random(4)
    for _ in range(300):
        pieces = list("abc")
        ranks: dict[str, int] = {}
        for rank in range(generator.randint(1, 25)):
            left, right = generator.choice(pieces), generator.choice(pieces)
            if f"{left} {right}" not in ranks and len(left + right) < 12:
                ranks[f"{left} {right}"] = rank
                pieces.append(left + right)
        word = "".join(generator.choice("abcd") for _ in range(generator.randint(0, 30)))
        assert merge_by_rank(word, ranks) == _merge_naively(word, ranks)


def test_the_library_and_our_merging_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = (llamacpp_models() / "ggml-vocab-gpt-2.gguf.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    ids = []
    for characters in (0, 10**9):
        monkeypatch.setattr("edgeinfer.tokenizer.bpe._LIBRARY_AFTER", characters)
        for name in ("gpt-2", "starcoder"):
            tokenizer = load_tokenizer(llamacpp_models() / f"ggml-vocab-{name}.gguf")
            ids.append([tokenizer.encode(text + chr(code) * 9) for code, text in enumerate(texts)])
    assert ids[:2] == ids[2:]


def test_byte_characters_are_those_of_gpt_2() -> None:
    assert byte_characters() == CHARACTER_OF_BYTE
    assert {character: byte for byte, character in byte_characters().items()} == BYTE_OF_CHARACTER


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("llama-bpe", ["123", "456", "78", " I", " don", "'t", " DON", "'T", " x", "\n\n", " y"]),
        ("smaug-bpe", ["123", "456", "78", " I", " don", "'t", " DON", "'T", " x", "\n\n", " y"]),
        ("qwen2", [*"12345678", " I", " don", "'t", " DON", "'T", " x", "\n\n", " y"]),
        ("gpt-2", ["12345678", " I", " don", "'t", " DON", "'", "T", " x", "\n\n", " y"]),
        ("gpt-4o", ["123", "456", "78", " I", " don't", " DON'T", " x", "\n\n", " y"]),
        ("default", ["123", "456", "78", " I", " don", "'", "t", " DON", "'", "T", " x", "\n\n", " y"]),
    ],
)
def test_each_name_cuts_with_its_own_pattern(pre: str, words: list[str]) -> None:
    assert find_pre_tokenizer(pre).split(SENTENCE) == words


def test_names_share_ids_only_where_they_share_cuts() -> None:
    ids = {pre: tokenizer_from_metadata(byte_pair_metadata(pre=pre)).encode(SENTENCE) for pre in ("llama-bpe", "qwen2", "smaug-bpe")}
    assert ids["llama-bpe"] == ids["smaug-bpe"] != ids["qwen2"]


@pytest.mark.parametrize("pre", [None, "", "default"])
def test_a_file_that_does_not_say_is_read_with_a_warning(pre: str | None) -> None:
    with pytest.warns(UserWarning, match=r"pre-tokenizer.*Convert the model again"):
        tokenizer = tokenizer_from_metadata(byte_pair_metadata(pre=pre))
    assert tokenizer.decode(tokenizer.encode(SENTENCE)) == SENTENCE


def test_a_named_pre_tokenizer_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer_from_metadata(byte_pair_metadata(pre="qwen2"))


def test_an_unknown_name_is_refused_and_quoted() -> None:
    with pytest.raises(TokenizerError, match="'nope'"):
        tokenizer_from_metadata(byte_pair_metadata(pre="nope"))


def test_merges_whose_result_is_no_token_fall_back_to_bytes() -> None:
    metadata = byte_pair_metadata()
    metadata["tokenizer.ggml.merges"] = [*metadata["tokenizer.ggml.merges"], "q q"]  # the library refuses such a list
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.encode("aqq") == [ord("a"), ord("q"), ord("q")]


def test_a_character_that_is_no_token_parts_its_neighbours() -> None:
    metadata = byte_pair_metadata()
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[0xFF] = "something else"
    metadata["tokenizer.ggml.tokens"] = tokens
    tokenizer = tokenizer_from_metadata(metadata)
    with_it, without = tokenizer.encode("h\u00e9e"), tokenizer.encode("he")
    assert len(without) == 1
    assert with_it == [ord("h"), 0xC3, 0xA9, ord("e")]
    tokens[0xA9], tokens[0xC3] = "other", "others"
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.encode("h\u00e9e") == [ord("h"), ord("e")]  # as llama.cpp: left out, but not merged across

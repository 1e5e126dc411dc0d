"""Special tokens: found or not, longest first, and the ids that end a generation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.tokenizer import TokenType, load_tokenizer, tokenizer_from_metadata
from edgeinfer.tokenizer.special import SpecialTokenFinder
from tests.support.vocabularies import CONTROL, NORMAL, USER_DEFINED, Piece
from tests.tokenizer.vocabularies import byte_pair_metadata, sentence_piece_metadata


def test_control_tokens_need_parse_special_and_user_defined_ones_do_not() -> None:
    tokenizer = tokenizer_from_metadata(byte_pair_metadata(special=[Piece("<|c|>", CONTROL), Piece("<|u|>", USER_DEFINED)]))
    control, user = tokenizer.vocabulary_size - 2, tokenizer.vocabulary_size - 1
    assert tokenizer.encode("a<|c|>b<|u|>") == [ord("a"), *b"<|c|>b", user]
    assert tokenizer.encode("a<|c|>b<|u|>", parse_special=True) == [ord("a"), control, ord("b"), user]


def test_the_longest_token_is_cut_out_of_the_whole_text_first() -> None:
    finder = SpecialTokenFinder(["<a>", "<a><b>", "b><c", "x"], [0, 1, 2])
    assert finder.cut("<a><a><b><c>") == [0, 1, "<c>"]
    assert finder.cut("b><c<a>") == [2, 0]
    assert finder.cut("") == []
    assert SpecialTokenFinder([], []).cut("text") == ["text"]


def test_white_space_beside_a_token_can_belong_to_it() -> None:
    finder = SpecialTokenFinder(["<l>", "<r>"], [0, 1], frozenset([0]), frozenset([1]))
    assert finder.cut("a \n<l> b <r>\t c\u00a0<r>  ") == ["a", 0, " b ", 1, "c\u00a0", 1]


@pytest.mark.parametrize("metadata", [byte_pair_metadata, sentence_piece_metadata])
def test_bos_and_eos_are_added_as_the_file_says(metadata: Callable[..., dict[str, object]]) -> None:
    for add_bos in (False, True):
        for add_eos in (False, True):
            tokenizer = tokenizer_from_metadata(metadata(add_bos_token=add_bos, add_eos_token=add_eos))
            assert tokenizer.bos_id is not None
            assert tokenizer.eos_id is not None
            expected = [tokenizer.bos_id] * add_bos + tokenizer.encode("hello") + [tokenizer.eos_id] * add_eos
            assert tokenizer.encode("hello", add_special=True) == expected
            assert tokenizer.encode("", add_special=True) == [tokenizer.bos_id] * add_bos + [tokenizer.eos_id] * add_eos


def test_a_second_bos_is_kept_with_a_warning() -> None:
    tokenizer = tokenizer_from_metadata(sentence_piece_metadata())
    with pytest.warns(UserWarning, match="begins with two"):
        assert tokenizer.encode("<s>hello", add_special=True, parse_special=True)[:2] == [1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokenizer.encode("<s>hello", add_special=True)[1] != 1
        assert tokenizer.encode("<s>hello", parse_special=True)[:1] == [1]


def _ends(*pieces: Piece, **changes: Any) -> set[str]:
    tokenizer = tokenizer_from_metadata(byte_pair_metadata(special=pieces, **changes))
    return {tokenizer.token_text(token_id) for token_id in tokenizer.end_of_generation_ids}


def test_ends_of_generation_go_by_ids_and_by_names() -> None:
    built_in = {"<|end_of_text|>", "<|im_end|>"}
    assert _ends() == built_in
    assert _ends(Piece("<end_of_turn>", CONTROL), Piece("<|eot_id|>", NORMAL), Piece("<|other|>", CONTROL)) == built_in | {"<end_of_turn>", "<|eot_id|>"}
    assert _ends(Piece("<|done|>", CONTROL), eot_token_id=len(byte_pair_metadata()["tokenizer.ggml.tokens"])) == built_in | {"<|done|>"}
    harmony = (Piece("<|return|>", CONTROL), Piece("<|call|>", CONTROL), Piece("<|end|>", CONTROL))
    assert _ends(*harmony) == built_in | {"<|return|>", "<|call|>"}
    assert _ends(*harmony[1:]) == built_in | {"<|call|>", "<|end|>"}


def test_a_name_that_ends_a_generation_makes_a_control_token() -> None:
    tokenizer = tokenizer_from_metadata(byte_pair_metadata(special=[Piece("<|eot_id|>", NORMAL), Piece("<|channel|>", CONTROL)]))
    assert tokenizer.token_type(tokenizer.vocabulary_size - 2) is TokenType.CONTROL
    assert tokenizer.token_type(tokenizer.vocabulary_size - 1) is TokenType.USER_DEFINED


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "bos", "ends"),
    [
        ("smollm2-135m", "<|im_start|>", {"<|im_end|>", "<|endoftext|>", "<repo_name>", "<reponame>", "<file_sep>"}),
        ("gemma-3-270m", "<bos>", {"<eos>", "<end_of_turn>", "</s>"}),
        ("qwen2.5-coder-0.5b", "<|endoftext|>", {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}),
    ],
)
def test_real_models(name: str, bos: str, ends: set[str], model_path: Callable[[str], Path]) -> None:
    tokenizer = load_tokenizer(model_path(name))
    assert tokenizer.bos_id is not None
    assert tokenizer.token_text(tokenizer.bos_id) == bos
    found = {tokenizer.token_text(token_id) for token_id in tokenizer.end_of_generation_ids}
    assert len(found & ends) >= 2, found
    assert tokenizer.end_of_generation_ids >= {tokenizer.eos_id}

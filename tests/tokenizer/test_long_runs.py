"""Long runs of one kind of character: seconds at most, about twice the time for twice the length, and the ids of a slow reference."""

from __future__ import annotations

import time
import warnings

import pytest

from edgeinfer.tokenizer import Tokenizer, load_tokenizer
from edgeinfer.tokenizer.pretokenizers import find_pre_tokenizer, pre_tokenizer_names
from tests.conftest import llamacpp_models

RUNS = {
    "letters": ("A", 200_000),
    "ideographs": ("字", 100_000),
    "spaces": (" ", 200_000),
    "dots": (".", 200_000),
    "line feeds": ("\n", 100_000),
    "digits": ("7", 100_000),
    "pairs": ("ab", 100_000),
    "words": ("hello ", 80_000),
    "brackets": ("<", 100_000),
    "letter and mark": ("é", 50_000),
}
VOCABULARIES = ("gpt-2", "qwen2", "llama-bpe", "deepseek-llm", "llama-spm")
DISTINCT_PRE_TOKENIZERS = list({id(find_pre_tokenizer(name)): name for name in reversed(pre_tokenizer_names())}.values())
_loaded: dict[str, Tokenizer] = {}


def _tokenizer(name: str) -> Tokenizer:
    if name not in _loaded:
        _loaded[name] = load_tokenizer(llamacpp_models() / f"ggml-vocab-{name}.gguf")
        _loaded[name].encode("what is built on first use")
    return _loaded[name]


def _seconds(tokenizer: Tokenizer, text: str) -> float:
    start = time.perf_counter()
    ids = tokenizer.encode(text)
    seconds = time.perf_counter() - start
    assert tokenizer.decode(ids) == text
    return seconds


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("run", RUNS)
def test_a_long_run_takes_time_in_proportion_to_its_length(name: str, run: str) -> None:
    tokenizer = _tokenizer(name)
    part, count = RUNS[run]
    once = _seconds(tokenizer, part * (count // 2))
    twice = _seconds(tokenizer, part * count)
    assert twice < 20
    assert twice < 8 * once + 0.5, (once, twice)  # four times would be quadratic; the rest is for a busy machine


@pytest.mark.llamacpp
@pytest.mark.parametrize("name", VOCABULARIES)
def test_shortened_runs_have_llama_cpps_ids(name: str) -> None:
    from tests.tokenizer.oracle import LlamaCppTokenizer

    tokenizer = _tokenizer(name)
    with LlamaCppTokenizer(llamacpp_models() / f"ggml-vocab-{name}.gguf") as oracle:
        for part, _ in RUNS.values():
            for count in (1, 2, 3, 7, 64, 333):
                for text in (part * count, part * count + "x", "x" + part * count + " y"):
                    assert tokenizer.encode(text) == oracle.encode(text), (part, count)


@pytest.mark.parametrize("name", DISTINCT_PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_long_runs_quickly(name: str) -> None:
    pre_tokenizer = find_pre_tokenizer(name)
    for part, count in RUNS.values():
        for text in (part * (count // 2), part * (count // 2) + "x"):
            start = time.perf_counter()
            words = pre_tokenizer.split(text)
            assert time.perf_counter() - start < 5, part
            assert "".join(words) == text


@pytest.mark.slow
def test_a_megabyte_of_one_letter() -> None:
    for name in ("gpt-2", "llama-spm"):
        assert _seconds(_tokenizer(name), "A" * 1_000_000) < 60


def test_a_long_run_of_special_tokens() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer = _tokenizer("qwen2")
    text = "<|im_start|><|im_end|>" * 20_000
    start = time.perf_counter()
    ids = tokenizer.encode(text, parse_special=True)
    assert time.perf_counter() - start < 10
    assert len(ids) == 40_000
    assert tokenizer.decode(ids) == text

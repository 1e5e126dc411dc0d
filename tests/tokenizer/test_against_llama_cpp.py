"""Random texts and every class boundary of Unicode: our ids and those of llama.cpp's own tokenizer are the same."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.gguf.writer import typed, write_gguf
from edgeinfer.tokenizer import Tokenizer, load_tokenizer
from edgeinfer.tokenizer.pretokenizers import find_pre_tokenizer, pre_tokenizer_names
from edgeinfer.tokenizer.unicode_classes import _table
from tests.conftest import llamacpp_models, model_path
from tests.support.vocabularies import bpe_vocabulary, byte_characters

pytestmark = pytest.mark.llamacpp

VOCABULARIES = ("llama-spm", "llama-bpe", "gpt-2", "qwen2", "phi-3", "gemma-4", "deepseek-llm")
MODELS = ("smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b")
SWITCHES = ((False, False), (False, True), (True, False), (True, True))
DISTINCT_PRE_TOKENIZERS = list({id(find_pre_tokenizer(name)): name for name in reversed(pre_tokenizer_names())}.values())


def _compare_random_texts(path: Path, count: int, seed: int) -> Tokenizer:
    from tests.tokenizer.oracle import LlamaCppTokenizer, random_text

    generator = random.Random(seed)
    with LlamaCppTokenizer(path) as oracle, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubled BOS tokens and default pre-tokenizers are wanted here
        tokenizer = load_tokenizer(path)
        special = [tokenizer.token_text(token_id) for token_id in range(tokenizer.vocabulary_size) if tokenizer.is_special(token_id)]
        special = special[:100] + generator.sample(special, min(len(special), 200))
        for _ in range(count):
            text = random_text(generator, special)
            for add_special, parse_special in SWITCHES:
                assert tokenizer.encode(text, add_special, parse_special) == oracle.encode(text, add_special, parse_special), text
            ids = tokenizer.encode(text, parse_special=True)
            stream = tokenizer.stream()
            assert "".join([stream.push(token_id) for token_id in ids]) + stream.finish() == tokenizer.decode(ids)
    return tokenizer


@pytest.mark.parametrize("name", VOCABULARIES)
def test_random_texts_have_llama_cpps_ids(name: str) -> None:
    _compare_random_texts(llamacpp_models() / f"ggml-vocab-{name}.gguf", 250, seed=1)


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_random_texts_have_llama_cpps_ids_in_real_models(name: str) -> None:
    _compare_random_texts(model_path(name), 600, seed=2)


@pytest.mark.parametrize("name", DISTINCT_PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_as_llama_cpp_does(name: str, tmp_path: Path) -> None:
    from tests.tokenizer.oracle import with_pre_tokenizer

    source = llamacpp_models() / "ggml-vocab-gpt-2.gguf"
    _compare_random_texts(with_pre_tokenizer(source, name, tmp_path / "vocabulary.gguf"), 100, seed=3)


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2", "phi-3"])
def test_pieces_and_ends_of_generation_are_llama_cpps(name: str) -> None:
    from tests.tokenizer.oracle import LlamaCppTokenizer

    path = llamacpp_models() / f"ggml-vocab-{name}.gguf"
    tokenizer = load_tokenizer(path)
    with LlamaCppTokenizer(path) as oracle:
        for token_id in range(tokenizer.vocabulary_size):
            assert tokenizer.token_bytes(token_id) == oracle.piece(token_id), token_id
        assert tokenizer.end_of_generation_ids == {token_id for token_id in range(tokenizer.vocabulary_size) if oracle.ends_generation(token_id)}


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen35", "deepseek-coder", "deepseek-v3", "gpt-4o"])
def test_every_code_point_has_llama_cpps_class(pre: str, tmp_path: Path) -> None:
    """A vocabulary in which the last byte of any character merges with a letter, a digit, a mark, a symbol, a tab: the ids tell which of them it joins.

    Between the places where a class begins or ends, code points are all alike, so the neighbours of those places and a sample are enough.
    """
    from tests.tokenizer.oracle import LlamaCppTokenizer

    characters = byte_characters()
    neighbours = ["a", "1", "!", "+", characters[9]]
    merges = [f"{characters[byte]} {neighbour}" for byte in range(0x80, 0xC0) for neighbour in neighbours]
    vocabulary = bpe_vocabulary(pre=pre, add_bos=False)
    metadata = dict(vocabulary.metadata)
    texts = [*vocabulary.texts, *(merge.replace(" ", "") for merge in merges)]
    metadata["tokenizer.ggml.tokens"] = texts
    metadata["tokenizer.ggml.merges"] = merges
    metadata["tokenizer.ggml.token_type"] = typed([1] * len(texts), "INT32")
    path = tmp_path / "probe.gguf"
    write_gguf(path, {"general.architecture": "llama", **metadata}, {})

    table = _table(separate_han=False)
    borders = np.flatnonzero(np.diff(table.astype(np.int16)))
    codes = sorted({*borders.tolist(), *(borders + 1).tolist(), *range(0x80, 0x110000, 997)})
    probes = [chr(code) for code in codes if code > 0x7F and not 0xD800 <= code < 0xE000]
    assert len(probes) > 3000
    tokenizer = load_tokenizer(path)
    with LlamaCppTokenizer(path) as oracle:
        for start in range(0, len(probes), 64):
            text = "".join(f"\n{probe}{neighbour}" for probe in probes[start : start + 64] for neighbour in "a1!+\t")
            assert tokenizer.encode(text) == oracle.encode(text), f"U+{ord(probes[start]):04X} and the 63 after it"

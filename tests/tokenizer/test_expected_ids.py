"""Token ids of llama.cpp's own vocabularies against the ids that llama.cpp publishes beside them: no BOS, no parsing of special tokens."""

from __future__ import annotations

import pytest

from edgeinfer.core.errors import TokenizerError
from edgeinfer.tokenizer import load_tokenizer
from tests.conftest import llamacpp_models

VOCABULARIES = (
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_are_those_that_llama_cpp_publishes(name: str) -> None:
    path = llamacpp_models() / f"ggml-vocab-{name}.gguf"
    texts = path.with_name(path.name + ".inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = path.with_name(path.name + ".out").read_text().split("\n")
    assert len(texts) >= 40
    tokenizer = load_tokenizer(path)
    for text, line in zip(texts, lines, strict=False):
        ids = tokenizer.encode(text)
        assert ids == [int(number) for number in line.split()], text
        assert tokenizer.decode(ids) == text
        stream = tokenizer.stream()
        assert "".join([stream.push(token_id) for token_id in ids]) + stream.finish() == text


def test_a_wordpiece_vocabulary_is_refused_by_name() -> None:
    with pytest.raises(TokenizerError, match="'bert'"):
        load_tokenizer(llamacpp_models() / "ggml-vocab-bert-bge.gguf")


def test_ids_do_not_need_the_file_to_stay_open() -> None:
    from edgeinfer.gguf.reader import GGUFFile

    with GGUFFile.open(llamacpp_models() / "ggml-vocab-gpt-2.gguf") as file:
        tokenizer = load_tokenizer(file)
    assert tokenizer.encode("Hello world") == [15496, 995]

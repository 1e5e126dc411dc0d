"""llama.cpp's tokenizer alone, against the ids that its own tests expect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer.backends.llamacpp_vocabulary import LlamaCppVocabulary
from edgeinfer.core.errors import ModelFileError
from edgeinfer.gguf.writer import write_gguf


@pytest.mark.llamacpp
@pytest.mark.parametrize("name", ["llama-spm", "gpt-2"])
def test_the_oracle_gives_the_expected_ids(name: str, llamacpp_models: Callable[[], Path]) -> None:
    base = llamacpp_models() / f"ggml-vocab-{name}.gguf"
    texts = base.with_suffix(".gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    expected = [[int(part) for part in line.split()] for line in base.with_suffix(".gguf.out").read_text().splitlines()]
    with LlamaCppVocabulary(base) as vocabulary:
        assert vocabulary.size > 30_000
        assert [vocabulary.encode(text) for text in texts[: len(expected)]] == expected
    vocabulary.close()  # again: idempotent


@pytest.mark.llamacpp
def test_what_is_no_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stub.gguf").write_bytes(b"GGUF nonsense")
    with pytest.raises(ModelFileError, match="is a stub of 13 bytes"):  # by our reader, which looks first
        LlamaCppVocabulary(tmp_path / "stub.gguf")
    write_gguf(tmp_path / "bare.gguf", {"general.architecture": "llama"}, {})
    with pytest.raises(ModelFileError, match="cannot open the vocabulary of .*bare.gguf: .*(tokenizer|key)"):
        LlamaCppVocabulary(tmp_path / "bare.gguf")

"""The reader on real models, against gguf-py (all values, one model: it needs ten seconds for a vocabulary of 262,144) and llama.cpp (vocabularies)."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.gguf.values import DeclaredType, StringArray, ValueType
from tests.conftest import model_path

MODELS = ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"]


def _compare_with_gguf_py(path: Path) -> None:
    reference = gguf.GGUFReader(path)
    with GGUFFile.open(path) as file:
        fields = {key: field for key, field in reference.fields.items() if not key.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for key, field in fields.items():
            kinds = [ValueType[kind.name] for kind in field.types]
            declared = file.value_type(key)
            assert declared.kind is kinds[0]
            if len(kinds) > 1:
                assert declared == DeclaredType(ValueType.ARRAY, kinds[1])
            found = file.metadata[key]
            assert (found.tolist() if isinstance(found, np.ndarray) else found.to_list() if isinstance(found, StringArray) else found) == field.contents()
        assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
        for tensor in reference.tensors:
            info = file.tensors[tensor.name]
            assert info.shape == tuple(reversed(tensor.shape.tolist()))
            assert (info.offset, info.nbytes, info.format_name) == (tensor.data_offset, tensor.n_bytes, tensor.tensor_type.name)
            assert np.array_equal(file.tensor_bytes(tensor.name)[:4096], tensor.data.reshape(-1).view(np.uint8)[:4096])


@pytest.mark.model
def test_every_value_equals_that_of_gguf_py() -> None:
    _compare_with_gguf_py(model_path("smollm2-135m"))


@pytest.mark.model
@pytest.mark.llamacpp
@pytest.mark.parametrize("name", MODELS)
def test_vocabularies_equal_those_of_llama_cpp(name: str) -> None:
    import llama_cpp

    path = model_path(name)
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    try:
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        count = llama_cpp.llama_vocab_n_tokens(vocabulary)
        with GGUFFile.open(path) as file:
            tokens, scores = file.metadata["tokenizer.ggml.tokens"], file.metadata.get("tokenizer.ggml.scores")
            assert isinstance(tokens, StringArray)
            assert tokens.to_bytes_list() == [llama_cpp.llama_vocab_get_text(vocabulary, token) for token in range(count)]
            if scores is not None:
                assert isinstance(scores, np.ndarray)
                assert scores.tolist() == [llama_cpp.llama_vocab_get_score(vocabulary, token) for token in range(count)]
    finally:
        llama_cpp.llama_model_free(model)


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_opening_is_fast_and_touches_only_the_header(name: str) -> None:
    """A generous bound: the aim is a twentieth of a second. gguf-py needs up to ten."""
    path = model_path(name)
    start = time.perf_counter()
    with GGUFFile.open(path) as file:
        assert time.perf_counter() - start < 1
        file.refuse_unsupported_formats()
        smaps = Path("/proc/self/smaps")
        if smaps.exists():
            resident = int(smaps.read_text().split(str(path))[1].split("Rss:")[1].split()[0]) * 1024
            first = min(info.offset for info in file.tensors.values())
            # Reading ahead maps pages around those that are touched.
            assert resident < first + 4 * 2**20

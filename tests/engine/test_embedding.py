"""Embeddings: pooling as arithmetic, where the pooling comes from, what texts get at their ends, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import Engine
from edgeinfer.core.errors import ContextLengthError, InvalidRequestError, UnsupportedModelError
from edgeinfer.engine.embedding import chosen_pooling, pooled
from tests.support.tiny_models import tiny_llama

ROWS = np.array([[3.0, 4.0], [0.0, 8.0], [6.0, 0.0]], dtype=np.float32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("mean", [3.0, 4.0]), ("last", [6.0, 0.0]), ("cls", [3.0, 4.0]), ("none", ROWS.tolist())],
)
def test_pooling(pooling: str, expected: list[Any]) -> None:
    assert pooled(ROWS, pooling, normalize=False).tolist() == expected
    assert pooled(ROWS, pooling, normalize=False).dtype == np.float32


def test_normalizing_gives_length_one_and_leaves_zeros() -> None:
    assert pooled(ROWS, "mean", normalize=True).tolist() == pytest.approx([0.6, 0.8])
    assert np.linalg.norm(pooled(ROWS, "none", normalize=True), axis=1).tolist() == pytest.approx([1, 1, 1])
    assert pooled(np.zeros((2, 3), np.float32), "mean", normalize=True).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("wanted", "number", "expected"),
    [(None, None, "mean"), (None, 0, "mean"), (None, 1, "mean"), (None, 2, "cls"), (None, 3, "last"), ("none", 3, "none"), ("last", 4, "last")],
)
def test_the_caller_decides_else_the_file_else_the_mean(wanted: str | None, number: int | None, expected: str) -> None:
    metadata = {"general.architecture": "llama"} | ({} if number is None else {"llama.pooling_type": number})
    assert chosen_pooling(wanted, metadata) == expected


def test_a_pooling_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="pooling is 'max'; it must be one of mean, last, cls, none"):
        chosen_pooling("max", {})
    with pytest.raises(UnsupportedModelError, match=r"llama\.pooling_type is 4.*reranker"):
        chosen_pooling(None, {"general.architecture": "llama", "llama.pooling_type": 4})
    for odd in ("mean", 1.5, [1], np.array([1, 2])):
        with pytest.raises(UnsupportedModelError, match=r"llama\.pooling_type is"):
            chosen_pooling(None, {"general.architecture": "llama", "llama.pooling_type": odd})
    assert chosen_pooling(None, {"general.architecture": "llama", "llama.pooling_type": np.uint32(2)}) == "cls"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = {"llama.pooling_type": 3, "tokenizer.ggml.add_eos_token": True}
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama.gguf", metadata=metadata)


def test_the_file_decides_about_pooling_and_what_stands_at_the_ends_of_texts(model: Path) -> None:
    with Engine.load(model, context=64, threads=1) as engine:
        text = "a few words"
        ids = engine.tokenize(text, add_special=True)
        assert ids[-1] == engine.tokenizer.eos_id  # type: ignore[attr-defined]
        (last,) = engine.embed([text])
        assert np.array_equal(last, engine.embed([ids], "last")[0])
        assert np.array_equal(last, engine.embed([ids], "none")[0][-1])
        assert np.linalg.norm(last) == pytest.approx(1, abs=1e-6) and np.linalg.norm(engine.embed([text], normalize=False)[0]) > 2
        assert not np.array_equal(last, engine.embed([ids[:-1]])[0])
        assert engine.embed([]) == []
        assert engine.embed(["", text])[1].tolist() == last.tolist()  # an empty text still has its BOS and EOS


def test_input_that_cannot_be_embedded_is_refused_and_names_what_is_wrong(model: Path) -> None:
    with Engine.load(model, context=64, threads=1) as engine:
        for prompts, message in (
            ("a text", "a list of one"),
            ([[]], "no token ids"),
            ([[1, 10**6]], "outside the vocabulary"),
            ([3], "expected a text or a list of token ids"),
        ):
            with pytest.raises(InvalidRequestError, match=message):
                engine.embed(prompts)  # type: ignore[arg-type]
        texts = ["ok"] * 57 + ["one too long " * 30] + ["ok"] * 42
        with pytest.raises(ContextLengthError, match=r"prompts\[57\]: [0-9]+ tokens do not fit the context of 64") as caught:
            engine.embed(texts)
        assert caught.value.prompt_tokens > caught.value.context == 64
        assert len(engine.embed(texts[:57])) == 57
    with Engine.load(model, backend="fake", context=64) as fake, pytest.raises(InvalidRequestError, match=r"no hidden states.*backend='numba'"):
        fake.embed(["a"])

"""Whole engines on rigged models whose greedy output is known, with the real tokenizers: what a user sees of texts, stops and limits."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.core.errors import ContextLengthError, InvalidRequestError
from edgeinfer.core.results import Completion
from tests.support.tiny_models import ChainModel, chain_model, tiny_llama
from tests.support.vocabularies import bpe_vocabulary

Load = Callable[..., tuple[Engine, ChainModel]]


def _backends() -> list[object]:
    names: list[object] = [pytest.param("llamacpp", marks=pytest.mark.llamacpp)]
    return names + (["numba"] if importlib.util.find_spec("edgeinfer.backends.numba") is not None else [])


@pytest.fixture(params=_backends())
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Load]:
    """Loads an engine on a chain of pieces; all are closed at the end."""
    engines: list[Engine] = []

    def load(pieces: Sequence[Any], options: dict[str, Any] | None = None, **chain: Any) -> tuple[Engine, ChainModel]:
        model = chain_model(tmp_path / f"chain{len(engines)}.gguf", pieces, **chain)
        given = {"context": 256, "threads": 1, "maximum_sequences": 4, **(options or {})}
        engines.append(Engine.load(model.path, backend=request.param, **given))
        return engines[-1], model

    yield load
    for engine in engines:
        engine.close()


def _both(engine: Engine, params: SamplingParams, prompt: str | list[int] = "#") -> Completion:
    whole = engine.generate(prompt, params)
    events = list(engine.stream(prompt, params))
    streamed = events[-1].completion
    assert streamed is not None
    assert "".join(event.text for event in events) == streamed.text == whole.text
    assert streamed.token_ids == whole.token_ids and streamed.usage == whole.usage and streamed.finish_reason == whole.finish_reason
    return whole


@pytest.mark.parametrize("kind", ["sentencepiece", "bpe"])
def test_a_chain_comes_out_as_it_was_rigged(load: Load, kind: str) -> None:
    engine, model = load(["The", " red", " pa", "nda", " sle", "eps"], kind=kind)
    completion = _both(engine, SamplingParams(max_tokens=50))
    assert completion.text == "The red panda sleeps"
    assert completion.token_ids == model.chain[:-1]
    assert completion.finish_reason == "stop"
    assert engine.detokenize(completion.token_ids) == completion.text


@pytest.mark.parametrize("kind", ["sentencepiece", "bpe"])
@pytest.mark.parametrize(
    ("stop", "text"), [(["nda sle"], "The red pa"), (["a sleep"], "The red pand"), (["zz", "nda sle"], "The red pa"), (["eps!"], "The red panda sleeps")]
)
def test_stop_texts_that_span_tokens(load: Load, kind: str, stop: list[str], text: str) -> None:
    engine, _ = load(["The", " red", " pa", "nda", " sle", "eps"], kind=kind)
    completion = _both(engine, SamplingParams(max_tokens=50, stop=stop))
    assert (completion.text, completion.finish_reason) == (text, "stop")
    assert completion.usage.completion_tokens == {"nda sle": 5, "a sleep": 6, "zz": 5, "eps!": 6}[stop[0]]


def test_a_stop_whose_start_repeats(load: Load) -> None:
    engine, _ = load(["aa", "a", "b", "zz"])
    assert _both(engine, SamplingParams(stop="aab")).text == "a"


@pytest.mark.parametrize("kind", ["sentencepiece", "bpe"])
def test_characters_made_of_several_tokens(load: Load, kind: str) -> None:
    pieces = [bytes([byte]) for byte in b"\xf0\x9f\xa6\x99\xe4\xb8\xad\xc3\xa9"]
    engine, _ = load(pieces, kind=kind)
    completion = _both(engine, SamplingParams(max_tokens=50))
    assert completion.text == "🦙中é" == engine.detokenize(completion.token_ids)
    for event in engine.stream("#", SamplingParams(max_tokens=50)):
        assert "\ufffd" not in event.text
    for limit in range(1, 9):
        cut = _both(engine, SamplingParams(max_tokens=limit))
        assert cut.text == engine.detokenize(cut.token_ids) and cut.finish_reason == "length"
        assert cut.text.rstrip("\ufffd") == bytes(b for piece in pieces[:limit] for b in piece).decode("utf-8", "ignore")


def test_a_token_that_ends_within_a_character(load: Load) -> None:
    engine, _ = load([b" \xe4", b"\xb8", b"\xad", "!"], kind="bpe")
    assert _both(engine, SamplingParams(max_tokens=9)).text == " 中!"


@pytest.mark.parametrize("pieces", [[" Hello", " world", " ", " x", "!"], ["  Hello", " world"]])
def test_spaces_of_sentencepiece_tokens_stay(load: Load, pieces: list[str]) -> None:
    engine, model = load(pieces)
    for prompt in ("#", "a  #"):
        completion = _both(engine, SamplingParams(max_tokens=9), prompt)
        assert completion.text == "".join(pieces)  # it continues a prompt: not even the first space may go
        ids = engine.tokenize(prompt)
        assert engine.detokenize([*ids, *completion.token_ids]) == prompt + completion.text
    assert _both(engine, SamplingParams(max_tokens=9), [model.vocabulary.bos]).text == "".join(pieces)[1:]  # here it begins the text


def test_a_model_that_never_ends_fills_its_context(load: Load) -> None:
    engine, _ = load(["A", "B"], ends=False, options={"context": 128})
    prompts = ["#", "##", "###", "####"]
    for limit in (None, 10**9):
        for prompt, completion in zip(prompts, engine.generate_many(prompts, SamplingParams(max_tokens=limit)), strict=True):
            assert completion.finish_reason == "length"
            assert completion.usage.total_tokens == 128, prompt
            assert set(completion.text) == {"A", "B"}


def test_prompts_at_the_border_of_the_context(load: Load) -> None:
    engine, model = load(["A", "B"], ends=False)
    filler = [model.vocabulary.texts.index("#")]
    assert _both(engine, SamplingParams(max_tokens=500), filler * 255).usage.completion_tokens == 1
    completion = _both(engine, SamplingParams(max_tokens=500), filler * 200)
    assert (completion.usage.completion_tokens, completion.finish_reason) == (56, "length")
    for length in (256, 257, 5000):
        with pytest.raises(ContextLengthError, match=f"{length}.*256"):
            engine.generate(filler * length)
    assert engine.generate("#", SamplingParams(max_tokens=2)).text == "AB"


def test_sampling_from_a_chain_is_reproducible(load: Load) -> None:
    engine, _ = load(["A", "B"], ends=False, margin=math.log(400))
    hot = {"max_tokens": 40, "temperature": 1.0, "ignore_eos": True}
    first = _both(engine, SamplingParams(seed=42, **hot))
    engine.generate("other traffic", SamplingParams(**hot))
    assert engine.generate_many(["#", "##", "#"], SamplingParams(seed=42, **hot))[2].token_ids == first.token_ids
    unseeded = [engine.generate("#", SamplingParams(**hot)) for _ in range(3)]
    assert len({completion.token_ids for completion in unseeded}) == 3
    assert engine.generate("#", SamplingParams(seed=unseeded[0].seed, **hot)).token_ids == unseeded[0].token_ids


def test_token_ids_are_checked_against_the_vocabulary(load: Load) -> None:
    engine, model = load(["A", "B"])
    size = model.vocabulary.size
    for wrong in ([-1], [size], [10**18], [1.5], ["a", 1], [], [[1], [2]]):
        with pytest.raises(InvalidRequestError):
            engine.generate(wrong)
    with pytest.raises(InvalidRequestError, match=f"{size}.*{size} tokens"):
        engine.generate([size])
    with pytest.raises(InvalidRequestError, match=f"{size} tokens"):
        engine.detokenize([-1])
    assert engine.generate([size - 1], SamplingParams(max_tokens=1)).text == "A"


def test_an_empty_prompt_needs_a_beginning_token(load: Load, tmp_path: Path) -> None:
    engine, _ = load(["A", "B"])
    assert engine.generate("").text == "AB"
    without = tiny_llama(tmp_path / "without.gguf", vocabulary=bpe_vocabulary(add_bos=False))
    with Engine.load(without, backend="fake", threads=1, maximum_sequences=2) as other:
        with pytest.raises(InvalidRequestError, match="empty"):
            other.generate("")
        with pytest.raises(InvalidRequestError):
            other.generate("\ud800")
        assert other.generate(" ", SamplingParams(max_tokens=1)).usage.prompt_tokens == 1

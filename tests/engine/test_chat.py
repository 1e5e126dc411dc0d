"""Chatting through the engine: template, end of turn, streaming, and models without a template."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.core.errors import ChatTemplateError, ContextLengthError, InvalidRequestError
from tests.support.tiny_models import ChainModel, chain_model
from tests.support.vocabularies import CONTROL, Piece

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MESSAGES = [{"role": "user", "content": "hi"}]
BACKENDS: list[Any] = [pytest.param("llamacpp", marks=pytest.mark.llamacpp)]
BACKENDS += ["numba"] if importlib.util.find_spec("edgeinfer.backends.numba") is not None else []


def _model(path: Path, template: str | None = TEMPLATE, **chain: Any) -> ChainModel:
    """Answers " Hello you" and then says that its turn ends; `chain` may change that."""
    pieces = [" Hello", " you", Piece("<|im_end|>", CONTROL), Piece("<|im_start|>", CONTROL)]
    return chain_model(path / "chat.gguf", pieces, chain.pop("sequence", [0, 1, 2]), metadata={"tokenizer.chat_template": template}, **chain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_answer_ends_with_the_turn_and_streams_the_same(tmp_path: Path, backend: str) -> None:
    model = _model(tmp_path)
    with Engine.load(model.path, backend=backend, threads=1, context=128) as engine:
        completion = engine.chat(MESSAGES)
        events = list(engine.chat_stream(MESSAGES))
        many = [engine.chat([*MESSAGES, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]).text for _ in range(2)]
    assert (completion.text, completion.finish_reason) == ("Hello you", "stop")  # the space that marks the first word of a text is not shown
    assert completion.token_ids == model.piece_ids[:2]
    assert "".join(event.text for event in events) == completion.text
    assert events[-1].completion is not None and events[-1].completion.usage == completion.usage
    assert many == ["Hello you"] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_stop_and_max_tokens_hold_in_a_chat(tmp_path: Path, backend: str) -> None:
    with Engine.load(_model(tmp_path).path, backend=backend, threads=1, context=128) as engine:
        assert engine.chat(MESSAGES, SamplingParams(max_tokens=1)).finish_reason == "length"
        assert engine.chat(MESSAGES, SamplingParams(stop="lo y")).text == "Hel"


def test_a_prompt_of_messages_that_does_not_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with Engine.load(_model(tmp_path).path, backend="fake", context=32) as engine:
        for call in (engine.chat, engine.chat_stream):
            with pytest.raises(ContextLengthError, match="32"):
                call([{"role": "user", "content": "a long story " * 10}])


def test_a_model_without_a_template_is_refused_and_still_completes(tmp_path: Path) -> None:
    with Engine.load(_model(tmp_path, template=None).path, backend="fake") as engine:
        for call in (engine.chat, engine.chat_stream):
            with pytest.raises(ChatTemplateError):
                call(MESSAGES)
        assert engine.generate("#", SamplingParams(max_tokens=1, ignore_eos=True)).usage.completion_tokens == 1


@pytest.mark.parametrize("wrong", [[], "hi", None, {"role": "user"}, [1], [{"content": "no role"}]])
def test_what_are_no_messages_is_refused(tmp_path: Path, wrong: Any) -> None:
    with Engine.load(_model(tmp_path).path, backend="fake") as engine:
        with pytest.raises((InvalidRequestError, ChatTemplateError)):
            engine.chat(wrong)
        assert engine.chat(MESSAGES, SamplingParams(max_tokens=1, ignore_eos=True)).usage.completion_tokens == 1

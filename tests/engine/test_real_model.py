"""The default model through the whole engine: a sensible answer, the same alone, in a batch, after a prefix hit and streamed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from edgeinfer import Engine, SamplingParams

pytestmark = pytest.mark.model

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time", "1, 2, 3, 4, 5,", "Die Hauptstadt von Deutschland ist", "猫は"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    from tests.conftest import model_path

    with Engine.load(model_path("smollm2-135m"), context=512, maximum_sequences=6) as loaded:
        yield loaded


def test_it_knows_the_capital_of_france(engine: Engine) -> None:
    assert engine.generate(PROMPTS[0], SamplingParams(max_tokens=4)).text.startswith(" Paris")


def test_a_chat_answers_without_any_marker_in_its_text(engine: Engine) -> None:
    messages = [{"role": "user", "content": "Write one sentence about the sea."}]
    completion = engine.chat(messages, SamplingParams(max_tokens=120))
    assert completion.finish_reason == "stop" and len(completion.text.split()) > 3 and "<|" not in completion.text
    assert "".join(event.text for event in engine.chat_stream(messages, SamplingParams(max_tokens=120))) == completion.text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_answers_as_each_prompt_alone(engine: Engine, temperature: float) -> None:
    params = [SamplingParams(max_tokens=limit, temperature=temperature, seed=limit) for limit in (1, 3, 8, 16, 24, 24)]
    alone = [engine.generate(prompt, item) for prompt, item in zip(PROMPTS, params, strict=True)]
    together = engine.generate_many(PROMPTS, params)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.text for one in together] == [one.text for one in alone]
    streamed = list(engine.stream(PROMPTS[5], params[5]))
    assert "".join(event.text for event in streamed) == alone[5].text


def test_a_prefix_hit_and_scoring_have_the_bits_of_generation(engine: Engine) -> None:
    ids = random.Random(3).choices(range(1000, 40_000), k=200)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    cold, hot = engine.generate(ids, params), engine.generate(ids, params)
    assert (cold.usage.cached_tokens, hot.usage.cached_tokens) == (0, 192)
    assert cold.token_ids == hot.token_ids
    logits = engine.logits([*ids, *cold.token_ids])
    assert np.argmax(logits[199:-1], axis=1).tolist() == list(cold.token_ids)

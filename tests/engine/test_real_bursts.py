"""Bursts of real models: an answer holds the lowest id of each row's largest logit, or the token that the sampler draws there, whoever shares the burst."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer import Engine, SamplingParams
from edgeinfer.sampling import Sampler
from tests.real_files import model_path

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is", "def fibonacci(n):\n", "Once upon a time", "1, 2, 3, 4, 5,", "Die Hauptstadt von Deutschland ist", "猫は",
    "SELECT name, count(*) FROM", "The largest rivers are:\n1.", '{"a": [1, 2, {"b": null}], ',
]  # fmt: skip
COUNT = 16
GREEDY = SamplingParams(max_tokens=COUNT, ignore_eos=True)
DRAWN = [
    SamplingParams(max_tokens=COUNT, ignore_eos=True, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for seed, (temperature, top_k, top_p, min_p) in enumerate(
        [(0.8, 0, 1.0, 0.0), (0.8, 40, 0.95, 0.05), (1.0, 0, 0.95, 0.0), (1.0, 0, 1.0, 0.05), (1.5, 0, 0.9, 0.01), (2.0, 100, 1.0, 0.0)]
    )
]


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine.load(model_path(request.param), context=64, threads=2, maximum_sequences=9, cache_tokens=9 * 64, prewarm=True) as loaded:
        yield loaded


def rows_of(engine: Engine, prompt: list[int], answer: list[int]) -> NDArray[np.float32]:
    """The logits that each token of the answer was chosen from, computed in one piece and without bursts."""
    return engine.logits([*prompt, *answer])[len(prompt) - 1 : -1]


def answers(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    return [list(completion.token_ids) for completion in engine.generate_many(prompts, params)]


def test_greedy_bursts_choose_the_largest_logits(engine: Engine) -> None:
    """In a batch that is too large for bounds, in others that are not, and alone."""
    prompts = [engine.tokenize(text) for text in PROMPTS]
    together = answers(engine, prompts, [GREEDY] * len(prompts))
    for prompt, answer in zip(prompts, together, strict=True):
        assert rows_of(engine, prompt, answer).argmax(axis=1).tolist() == answer
    for count in (8, 3, 1):
        assert answers(engine, prompts[:count], [GREEDY] * count) == together[:count]


def test_drawn_bursts_choose_what_the_sampler_does(engine: Engine) -> None:
    """Beside others that are drawn otherwise, beside greedy ones, alone, and again."""
    prompts = [engine.tokenize(text) for text in PROMPTS[: len(DRAWN)]]
    together = answers(engine, prompts, DRAWN)
    for prompt, params, answer in zip(prompts, DRAWN, together, strict=True):
        sampler = Sampler(params, params.seed or 0)
        assert [sampler.sample(row, index) for index, row in enumerate(rows_of(engine, prompt, answer))] == answer
    mixed = answers(engine, [*prompts, prompts[0]], [*DRAWN, GREEDY])
    assert mixed == [*together, *answers(engine, prompts[:1], [GREEDY])]
    assert [answers(engine, [prompt], [params])[0] for prompt, params in zip(prompts, DRAWN, strict=True)] == together

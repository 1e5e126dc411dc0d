"""Sampled answers over kernels that draw: the tokens of the sampler for every seed, alone and together, in fewer steps than tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.sampling import Sampler
from tests.support.tiny_models import tiny_llama

PARAMS = [
    SamplingParams(max_tokens=40, temperature=0.8, top_k=20, top_p=0.95, seed=1, ignore_eos=True),
    SamplingParams(max_tokens=33, temperature=1.4, top_p=0.9, min_p=0.01, seed=2, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=2.0, seed=3, ignore_eos=True),
    SamplingParams(max_tokens=25, temperature=1e-3, seed=4, ignore_eos=True),  # beyond what kernels draw
    SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True),
]


@pytest.fixture(scope="module", params=[{}, {"weight_format": "Q8_0", "tied": True}], ids=["plain", "in two planes"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The second has bounds for what is chosen greedily (`kernels_numba.ops.screen`), so bursts go by several tapes."""
    model = tiny_llama(tmp_path_factory.mktemp("models") / "llama.gguf", **request.param)
    with Engine.load(model, context=128, threads=2, prewarm=True) as loaded:
        yield loaded


def sampled(engine: Engine, prompt: list[int], params: SamplingParams, count: int) -> list[int]:
    """The tokens by the sampler, from logits that are computed anew for each."""
    sampler, known = Sampler(params, params.seed or 0), list(prompt)
    for index in range(count):
        known.append(sampler.sample(engine.logits(known)[-1], index))
    return known[len(prompt) :]


@pytest.mark.parametrize("params", PARAMS[:3], ids=["top_k", "top_p", "plain"])
def test_an_answer_has_the_tokens_of_the_sampler_in_bursts(engine: Engine, params: SamplingParams) -> None:
    state = engine._loop.scheduler
    before = state.state.steps
    answer = list(engine.generate([5, 9, 11], params).token_ids)
    assert state.state.steps - before < len(answer)
    assert answer == sampled(engine, [5, 9, 11], params, len(answer))


def test_answers_together_are_those_alone(engine: Engine) -> None:
    prompts = [[5, 9, 11], [7], [8, 3, 2, 60], [30, 31], [1, 2]]
    alone = [engine.generate(prompt, params).token_ids for prompt, params in zip(prompts, PARAMS, strict=True)]
    for chosen in (range(5), range(3), (0, 4), (2, 1)):
        together = engine.generate_many([prompts[index] for index in chosen], [PARAMS[index] for index in chosen])
        assert [completion.token_ids for completion in together] == [alone[index] for index in chosen]


def test_a_stop_text_or_a_reader_that_leaves_ends_a_sampled_answer(engine: Engine) -> None:
    params = PARAMS[0]
    text = engine.generate([5, 9, 11], params).text
    place = len(text) // 2
    stopped = engine.generate([5, 9, 11], dataclasses.replace(params, stop=text[place : place + 5]))
    assert stopped.finish_reason == "stop" and text.startswith(stopped.text)
    stream = engine.stream([5, 9, 11], params)
    first = [next(stream).token_ids[0] for _ in range(3)]
    stream.close()  # type: ignore[attr-defined]
    assert first == list(engine.generate([5, 9, 11], params).token_ids[:3])

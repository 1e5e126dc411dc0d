"""The part of the contract suite about bursts: the tokens of single steps, the largest or drawn ones, from every backend that declares them, a refusal from
the others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.core.requests import SamplingParams
from edgeinfer.core.steps import UNDECIDED, Draws
from edgeinfer.sampling import Sampler
from tests.backends import test_contract as contract
from tests.backends.support import Driver, Rows

installed_example, case, backend, driver = contract.installed_example, contract.case, contract.backend, contract.driver  # fixtures


def test_a_burst_gives_the_tokens_of_single_steps_or_is_refused(driver: Driver) -> None:
    capabilities = driver.backend.capabilities
    prompts = [contract._tokens(count, seed=count) for count in (9, 15, 30)]  # the second has its next position in a new page
    last = [Rows(number, len(tokens) - 1, tokens[-1:]) for number, tokens in enumerate(prompts)]
    for number, tokens in enumerate(prompts):
        driver.run(Rows(number, 0, tokens[:-1]))
    if capabilities.maximum_passes == 1:
        with pytest.raises(InvalidRequestError, match="burst of 4 passes"):
            driver.burst(4, *last)
        return
    count = min(8, capabilities.maximum_passes)
    expected = [driver.greedy(number, tokens, count) for number, tokens in enumerate(prompts)]
    assert driver.burst(count, last[0]) == expected[:1]
    assert driver.burst(count, *last) == expected
    assert driver.burst(1, *last) == [tokens[:1] for tokens in expected]
    end = next((index for index in range(count) if expected[1].index(expected[1][index]) == index > 0), 0)
    place = min([end, *(tokens.index(expected[1][end]) for tokens in expected if expected[1][end] in tokens)])
    assert driver.burst(count, *last, end_ids=[-1, expected[1][end]]) == [tokens[: place + 1] for tokens in expected]
    assert driver.burst(count, *last, interrupt=1) == [tokens[:1] for tokens in expected]
    # a burst that ended early leaves positions behind it that were computed for nothing; they are computed again
    other = contract._tokens(20, 77)
    assert contract._equal(capabilities.bit_exact_chunks, driver.run(Rows(0, 9, other))[0], driver.whole(50, [*prompts[0], *other])[9:])


def test_a_burst_that_is_none_is_refused(driver: Driver) -> None:
    most, row = driver.backend.capabilities.maximum_passes, Rows(1, 0, [40])
    for passes, part in ((most + 1, row), (0, row), (2, Rows(1, 0, [40, 41])), (2, Rows(1, 0, [40], outputs=0))):
        with pytest.raises(InvalidRequestError, match="burst"):
            driver.burst(passes, part)


PARAMS = (
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95), SamplingParams(temperature=1.2), None, SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01),
)  # fmt: skip


def test_a_burst_draws_the_tokens_of_the_sampler_or_is_refused(driver: Driver) -> None:
    prompts = [contract._tokens(count, seed=count) for count in (9, 15, 30, 12)]
    last = [Rows(number, len(tokens) - 1, tokens[-1:]) for number, tokens in enumerate(prompts)]
    samplers = [Sampler(params or SamplingParams(), number) for number, params in enumerate(PARAMS)]
    count = min(6, driver.backend.capabilities.maximum_passes)
    draws = Draws(PARAMS, np.array([[sampler.uniform(index) for sampler in samplers] for index in range(count)]))
    for number, tokens in enumerate(prompts):
        driver.run(Rows(number, 0, tokens[:-1]))
    if not driver.backend.capabilities.draws:
        with pytest.raises(InvalidRequestError, match="burst"):
            driver.burst(count, *last, draws=draws)
        return
    found = driver.burst(count, *last, draws=draws)
    for number, (tokens, sampler) in enumerate(zip(prompts, samplers, strict=True)):
        known = list(tokens)
        for index, token in enumerate(found[number]):
            known.append(sampler.sample(driver.run(Rows(number, len(known) - 1, known[-1:]))[0][-1], index))
            assert token == known[-1] or (token == UNDECIDED and index == len(found[number]) - 1)
    short = dataclasses.replace(draws, params=PARAMS[:2])
    for wrong in (short, dataclasses.replace(draws, params=(SamplingParams(temperature=1e-9), *PARAMS[1:]))):
        with pytest.raises(InvalidRequestError, match="draw"):
            driver.burst(count, *last, draws=wrong)

"""The part of the contract suite about bursts: the tokens of single steps from every backend that declares them, a refusal from the others."""

from __future__ import annotations

import pytest

from edgeinfer.core.errors import InvalidRequestError
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
    assert driver.burst(count, last[0])[0] == expected[:1]
    found, logits = driver.burst(count, *last)
    assert found == expected
    assert contract._equal(capabilities.bit_exact_batches, logits[2:], driver.run(Rows(2, 29 + count - 1, expected[2][count - 2 : count - 1]))[0])
    end = next((index for index in range(count) if expected[1].index(expected[1][index]) == index > 0), 0)
    place = min([end, *(tokens.index(expected[1][end]) for tokens in expected if expected[1][end] in tokens)])
    assert driver.burst(count, *last, end_ids=[-1, expected[1][end]])[0] == [tokens[: place + 1] for tokens in expected]
    assert driver.burst(count, *last, interrupt=1)[0] == [tokens[:1] for tokens in expected]
    # a burst that ended early leaves positions behind it that were computed for nothing; they are computed again
    other = contract._tokens(20, 77)
    assert contract._equal(capabilities.bit_exact_chunks, driver.run(Rows(0, 9, other))[0], driver.whole(50, [*prompts[0], *other])[9:])


def test_a_burst_that_is_none_is_refused(driver: Driver) -> None:
    most, row = driver.backend.capabilities.maximum_passes, Rows(1, 0, [40])
    for passes, part in ((most + 1, row), (0, row), (2, Rows(1, 0, [40, 41])), (2, Rows(1, 0, [40], outputs=0))):
        with pytest.raises(InvalidRequestError, match="burst"):
            driver.burst(passes, part)

"""The sampler as a whole: boundary values, seeds, ties, and answers that must not change."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.core.requests import SamplingParams
from edgeinfer.sampling import Sampler, fresh_seed

LOGITS = (2 * np.random.default_rng(5).standard_normal(1000)).astype(np.float32)
FLAT = (0.01 * np.random.default_rng(6).standard_normal(300)).astype(np.float32)


def _draws(count: int, seed: int = 42, logits: Any = LOGITS, **params: Any) -> list[int]:
    sampler = Sampler(SamplingParams(**params), seed)
    return [sampler.sample(logits, index) for index in range(count)]


def test_temperature_zero_takes_the_largest_and_of_equal_ones_the_lower_id() -> None:
    assert _draws(3) == [int(np.argmax(LOGITS))] * 3
    assert _draws(1, logits=np.array([1, 7, 3, 7], dtype=np.float32)) == [1]


def test_the_filters_do_not_matter_at_temperature_zero() -> None:
    assert _draws(1, top_k=5, top_p=0.1, min_p=0.9) == _draws(1)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    list(itertools.product([0, 1e-9, 1.0, 999_999.0], [0, 1, 10**9], [0.0, 1.0], [0.0, 1.0])),
)
def test_at_least_one_token_survives_every_combination(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    best = int(np.argmax(LOGITS))
    tokens = _draws(5, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert all(0 <= token < len(LOGITS) for token in tokens)
    if temperature <= 1e-9 or top_k == 1 or top_p == 0.0 or min_p == 1.0:
        assert tokens == [best] * 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": -1},
        {"top_p": 1.0000001},
        {"min_p": 2},
        {"seed": -7},
        {"seed": 2**64},
        {"seed": "abc"},
        {"seed": 1.5},
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"max_tokens": 1.5},
        {"max_tokens": "10"},
        {"max_tokens": True},
        {"stop": [""]},
        {"stop": [1]},
        {"stop": ""},
        {"stop": 5},
        {"stop": {"a": 1}},
    ],
)
def test_values_that_cannot_be_honoured_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_stops_may_be_a_text_a_list_or_none() -> None:
    """JSON's null, which clients send for what they leave open, means no stop."""
    given: list[Any] = ["a", ["a", "b"], ("a",), [], None]
    assert [SamplingParams(stop=stop).stop_texts for stop in given] == [("a",), ("a", "b"), ("a",), (), ()]


def test_top_k_off_reaches_many_tokens() -> None:
    assert len(set(_draws(200, logits=FLAT, temperature=1.0))) > 100
    assert len(set(_draws(200, logits=FLAT, temperature=1.0, top_k=3))) == 3


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others() -> None:
    first = _draws(20, logits=FLAT, temperature=1.0)
    assert _draws(20, logits=FLAT, temperature=1.0) == first
    for seed in (0, 43, 2**32, 2**32 + 42, 2**63, 2**64 - 1):
        assert _draws(20, seed=seed, logits=FLAT, temperature=1.0) != first


def test_fresh_seeds_differ_and_survive_json() -> None:
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(int(float(seed)) == seed for seed in seeds)


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    tokens = _draws(6000, logits=logits, temperature=1.0)
    for token, probability in enumerate((0.5, 0.3, 0.2)):
        assert abs(tokens.count(token) / 6000 - probability) < 0.025


def test_the_tokens_of_a_seed_are_pinned() -> None:
    """A change of these numbers is a change of what users' seeds give: it must be meant, and told."""
    assert _draws(12, temperature=0.8, top_k=40, top_p=0.95, min_p=0.02) == PINNED_FILTERED
    assert _draws(12, temperature=1.0) == PINNED_PLAIN


PINNED_FILTERED = [639, 600, 803, 803, 861, 458, 803, 639, 185, 636, 803, 639]
PINNED_PLAIN = [600, 388, 702, 722, 861, 324, 803, 493, 182, 469, 715, 534]


def test_a_large_vocabulary_costs_little() -> None:
    logits = (4 * np.random.default_rng(1).standard_normal(262_144)).astype(np.float32)
    start = time.perf_counter()
    _draws(20, logits=logits, temperature=0.7, top_k=40, top_p=0.9)
    _draws(20, logits=logits, temperature=0.7, top_p=0.9)
    assert time.perf_counter() - start < 4

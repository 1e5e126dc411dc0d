"""Filters over candidates, each on its own, against plain definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.sampling import transforms
from edgeinfer.sampling.transforms import candidates, draw, exponential, keep_min_p, keep_top_p, scale_temperature


def _logits(size: int, seed: int = 0) -> NDArray[np.float32]:
    return (3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def test_exponential_is_within_two_units_in_the_last_place() -> None:
    values = np.concatenate([np.linspace(-700, 0, 20_001), -np.geomspace(1e-20, 700, 2_000), np.zeros(1)])
    expected = np.array([math.exp(value) for value in values])
    units = np.abs(exponential(values) - expected) / np.spacing(expected)
    assert units.max() <= 2
    assert exponential(np.zeros(1))[0] == 1.0


def test_exponential_has_the_same_bits_for_a_value_alone_and_among_others() -> None:
    values = -np.abs(_logits(1003).astype(np.float64)) * 10
    together = exponential(values)
    assert all(exponential(values[index : index + 1])[0] == together[index] for index in range(len(values)))


def test_the_bits_of_the_exponential_are_pinned() -> None:
    pinned = [value.hex() for value in exponential(np.array([-0.1, -1.0, -10.0, -43.9])).tolist()]
    assert pinned == PINNED_EXPONENTIALS


PINNED_EXPONENTIALS = ["0x1.cf46d99d52b3ap-1", "0x1.78b56362cef38p-2", "0x1.7cd79b5647c9ap-15", "0x1.961958cfa95e6p-64"]


@pytest.mark.parametrize("top_k", [1, 2, 7, 99, 100, 101, 5000])
def test_top_k_keeps_the_largest(top_k: int) -> None:
    logits = _logits(100)
    ids, scores = candidates(logits, top_k)
    expected = sorted(sorted(range(100), key=lambda index: (-logits[index], index))[:top_k])
    assert ids.tolist() == expected
    assert scores.max() == 0.0


def test_top_k_zero_is_off() -> None:
    assert len(candidates(_logits(50), 0)[0]) == 50


def test_equal_logits_at_the_border_of_top_k_go_to_the_lower_ids() -> None:
    logits = np.array([1, 5, 1, 1, 5, 1], dtype=np.float32)
    assert candidates(logits, 3)[0].tolist() == [0, 1, 4]
    assert candidates(logits, 1)[0].tolist() == [1]


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("size", [5, 1000, 5000])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, size: int) -> None:
    logits = _logits(size) / 3  # flat enough that thousands are needed
    ids, scores = keep_top_p(*candidates(logits, 0), top_p)
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    kept = probabilities[ids]
    assert kept.sum() >= top_p - 1e-12
    assert kept.sum() - kept.min() < top_p
    others = np.delete(probabilities, ids)
    assert len(others) == 0 or others.max() <= kept.min()
    assert len(ids) == len(scores)


def test_top_p_zero_keeps_the_best_one_with_the_lower_id() -> None:
    logits = np.array([0, 4, 4, 1], dtype=np.float32)
    assert keep_top_p(*candidates(logits, 0), 0.0)[0].tolist() == [1]


def test_top_p_one_is_off() -> None:
    assert len(keep_top_p(*candidates(_logits(50), 0), 1.0)[0]) == 50


@pytest.mark.parametrize("min_p", [1e-30, 1e-3, 0.05, 0.5, 1.0])
def test_min_p_keeps_what_is_likely_enough_beside_the_best(min_p: float) -> None:
    logits = 10 * _logits(300)
    ids, _ = keep_min_p(*candidates(logits, 0), min_p)
    relative = np.exp(logits.astype(np.float64) - logits.max())
    assert ids.tolist() == np.flatnonzero(relative >= min_p).tolist()


def test_min_p_one_keeps_all_equal_maxima_and_zero_is_off() -> None:
    logits = np.array([0, 4, 4, 1], dtype=np.float32)
    assert keep_min_p(*candidates(logits, 0), 1.0)[0].tolist() == [1, 2]
    assert keep_min_p(*candidates(logits, 0), 0.0)[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
def test_a_tiny_temperature_always_draws_the_best(temperature: float) -> None:
    ids, scores = scale_temperature(*candidates(_logits(100), 0), temperature)
    best = int(np.argmax(_logits(100)))
    assert {draw(ids, scores, uniform) for uniform in (0.0, 0.5, 1 - 2**-53)} == {best}


def test_draw_follows_the_cumulated_weights() -> None:
    ids = np.array([3, 8, 9], dtype=np.int64)
    scores = np.log(np.array([0.5, 1.0, 0.5]))
    assert [draw(ids, scores, uniform) for uniform in (0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53)] == [3, 3, 8, 8, 9, 9]


def test_candidates_at_minus_infinity_are_never_drawn() -> None:
    ids = np.arange(3, dtype=np.int64)
    scores = np.array([-np.inf, 0.0, -np.inf])
    assert {draw(ids, scores, uniform) for uniform in (0.0, 0.3, 1 - 2**-53)} == {1}


@pytest.mark.parametrize("top_k", [1, 40, 2047, 5000, 20_000])
@pytest.mark.parametrize("levels", [3, 40, 10**6])
def test_top_k_of_many_keeps_the_largest_and_of_equal_ones_the_lower_ids(top_k: int, levels: int) -> None:
    logits = np.random.default_rng(levels).integers(0, levels, 20_001).astype(np.float32)
    expected = np.sort(np.argsort(-logits, kind="stable")[:top_k])
    assert candidates(logits, top_k)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("spread", [0.01, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_what_the_machine_finds_is_what_the_definition_says(spread: float, rounded: bool) -> None:
    """Of many candidates; where they are equal in groups, borders of the sums are met exactly and the definition has to decide."""
    found = 0
    for seed in range(12):
        logits = spread * np.random.default_rng(seed).standard_normal(9000)
        _, scores = candidates((np.round(logits) if rounded else logits).astype(np.float32), 0)
        for top_p in (0.0, 0.05, 0.5, 0.95, 0.9999):
            fast = transforms._nucleus_by_machine(scores, top_p)
            found += fast is not None
            assert fast is None or fast.tolist() == transforms._nucleus(scores, top_p).tolist()
        cumulated = np.add.accumulate(exponential(scores))
        for uniform in (0.0, 0.1 + seed / 20, 0.5, 1 - 2**-53):
            index = transforms._drawn_by_machine(scores, uniform)
            found += index is not None
            assert index is None or index == np.searchsorted(cumulated, uniform * cumulated[-1], side="right")
    assert found > 30


def test_a_point_on_a_border_is_left_to_the_definition() -> None:
    ids, scores = candidates(np.zeros(8192, np.float32), 0)
    assert transforms._drawn_by_machine(scores, 0.5) is None and draw(ids, scores, 0.5) == 4096
    assert transforms._drawn_by_machine(scores, 0.5 + 1e-6) == 4096
    assert transforms._nucleus_by_machine(scores, 0.25) is None and len(keep_top_p(ids, scores, 0.25)[0]) == 2048

"""The metrics against the formulas written out directly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeinfer.core.errors import NonFiniteError
from edgeinfer.verify.metrics import AgreementTally, kl_divergence, log_softmax


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64))
    return powers / powers.sum(axis=-1, keepdims=True)


def _logits(seed: int, rows: int = 9, vocabulary: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocabulary)).astype(np.float32)


def test_log_softmax_is_the_logarithm_of_softmax() -> None:
    row = _logits(1)[0]
    np.testing.assert_allclose(log_softmax(row), np.log(_softmax(row)), rtol=1e-13)


def test_log_softmax_survives_large_logits() -> None:
    row = np.array([1e4, 1e4 - 1, -1e4], dtype=np.float32)
    expected = -math.log1p(math.exp(-1))
    np.testing.assert_allclose(log_softmax(row)[:2], [expected, expected - 1], rtol=1e-12)


def test_kl_divergence_is_the_sum_over_the_vocabulary() -> None:
    p, q = _softmax(_logits(1)[0]), _softmax(_logits(2)[0])
    expected = sum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p, q))
    assert kl_divergence(np.log(p), np.log(q)) == pytest.approx(expected, rel=1e-12)
    assert kl_divergence(np.log(p), np.log(p)) == 0.0
    assert kl_divergence(np.log(p), np.log(q)) != pytest.approx(kl_divergence(np.log(q), np.log(p)), rel=1e-3)


def test_tally_gives_means_worst_and_perplexity() -> None:
    a, b = _logits(1), _logits(2)
    b[:4] = a[:4]  # four rows agree exactly
    targets = list(np.random.default_rng(3).integers(0, 50, 9))
    tally = AgreementTally(("a", "b"), (("a", "b"),))
    tally.add({"a": a[:5], "b": b[:5]}, targets[:5])
    tally.add({"a": a[5:], "b": b[5:]}, targets[5:])
    found = tally.result()
    p, q = _softmax(a), _softmax(b)
    divergences = (p * np.log(p / q)).sum(axis=1)
    assert found.positions == 9
    assert found.kl["a", "b"] == pytest.approx(divergences.mean(), rel=1e-12)
    assert found.kl_worst["a", "b"] == pytest.approx(divergences.max(), rel=1e-12)
    assert found.top1["a", "b"] == pytest.approx((a.argmax(1) == b.argmax(1)).mean())
    assert found.perplexity["a"] == pytest.approx(math.exp(-np.log(p[np.arange(9), targets]).mean()), rel=1e-12)


def test_uniform_logits_have_the_vocabulary_as_perplexity() -> None:
    tally = AgreementTally(("a",), ())
    tally.add({"a": np.full((3, 50), 7.0, dtype=np.float32)}, [1, 2, 3])
    assert tally.result().perplexity["a"] == pytest.approx(50)


def test_merged_tallies_equal_one_tally() -> None:
    a, b, targets = _logits(1), _logits(2), [0] * 9
    whole, first, second = (AgreementTally(("a", "b"), (("a", "b"),)) for _ in range(3))
    whole.add({"a": a, "b": b}, targets)
    first.add({"a": a[:2], "b": b[:2]}, targets[:2])
    second.add({"a": a[2:], "b": b[2:]}, targets[2:])
    first.merge(second)
    assert first.result().kl["a", "b"] == pytest.approx(whole.result().kl["a", "b"], rel=1e-12)
    assert first.result().positions == 9


def test_what_is_not_finite_or_does_not_match_is_refused() -> None:
    tally = AgreementTally(("a", "b"), (("a", "b"),))
    bad = _logits(1)
    bad[2, 3] = np.inf
    with pytest.raises(NonFiniteError, match="b gave 1 logits"):
        tally.add({"a": _logits(1), "b": bad}, [0] * 9)
    with pytest.raises(ValueError, match="different shapes"):
        tally.add({"a": _logits(1), "b": _logits(1, vocabulary=49)}, [0] * 9)
    with pytest.raises(ValueError, match="no position"):
        AgreementTally(("a",), ()).result()

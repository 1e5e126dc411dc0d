"""The fixed sequences for exp, tanh, erf, sine and cosine against the mathematical functions; the twins have the kernels' bits (test_ops), so they stand in."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels_numba.ops import reference

F32 = np.float32


def grid(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 200_001).astype(F32)


def relative_error(actual: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(actual - exact) / np.abs(exact)))


def test_exp() -> None:
    x = grid(-87.3, 88.0)
    assert relative_error(reference.exp(x).astype(np.float64), np.exp(x.astype(np.float64))) < 2e-7
    assert reference.exp(np.array([0.0, -0.0], F32)).tolist() == [1.0, 1.0]
    low, high = reference.exp(np.array([-1e30, -np.inf], F32)), reference.exp(np.array([1e30, np.inf], F32))
    assert (low == low[0]).all() and 0 < low[0] < 1.3e-38
    assert (high == high[0]).all() and 1.6e38 < high[0] < np.inf
    assert np.isnan(reference.exp(np.array([np.nan], F32))).all()
    assert (np.diff(reference.exp(grid(-20, 0))) >= 0).all()


def test_tanh() -> None:
    x = np.concatenate([grid(-10, 10), grid(-0.01, 0.01), np.array([1e-30, -1e-45, 30.0, -1e30, np.inf], F32)])
    x = x[x != 0]
    assert relative_error(reference.tanh(x).astype(np.float64), np.tanh(x.astype(np.float64))) < 3e-7
    assert (np.abs(reference.tanh(x)) <= 1).all()


def test_erf() -> None:
    x = np.concatenate([grid(-6, 6)[::50], grid(-0.01, 0.01)[::500], np.array([1e-30, -1e-36, 30.0, -1e30, np.inf], F32)])
    x = x[x != 0]
    exact = np.array([math.erf(value) for value in x.astype(np.float64)])
    assert relative_error(reference.erf(x).astype(np.float64), exact) < 3e-7
    assert (np.abs(reference.erf(x)) <= 1).all()


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("gelu_erf", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
        ("relu_squared", lambda x: max(x, 0.0) ** 2),
    ],
)
def test_activations(function: str, exact) -> None:
    x = np.concatenate([grid(-12, 12)[::40], np.array([1e-30, 40.0, -40.0, 500.0, -500.0], F32)])
    expected = np.array([exact(float(value)) for value in x])
    error = np.abs(reference.ACTIVATIONS[function](x) - expected)
    assert (error <= 4e-7 * np.maximum(np.abs(expected), np.minimum(np.abs(x), 1.0))).all()


def test_cosine_sine() -> None:
    angles = np.concatenate([np.linspace(-10, 10, 100_001), np.linspace(0, 2**20, 100_001), np.arange(400) * (math.pi / 2)])
    cosine, sine = reference.cosine_sine(angles)
    exact = angles.astype(np.longdouble)
    assert np.max(np.abs(cosine - np.cos(exact))) < 1e-7
    assert np.max(np.abs(sine - np.sin(exact))) < 1e-7

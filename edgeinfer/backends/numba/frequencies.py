"""Rope frequencies, computed exactly and rounded once to float64, so that no `pow` of a library decides bits. Called when a program is emitted."""

from __future__ import annotations

import decimal

import numpy as np
from numpy.typing import NDArray


def rope_frequencies(base: float, pairs: int, linear_factor: float, factors: NDArray[np.float32] | None) -> NDArray[np.float64]:
    """float64[pairs]: base ** (-i / pairs) / (linear_factor * factors[i]), each the nearest float64 of the exact value (Su et al., 2021, RoFormer)."""
    context = decimal.Context(prec=40)
    logarithm = context.ln(decimal.Decimal(base))
    result = np.empty(pairs, np.float64)
    for pair in range(pairs):
        exponent = context.divide(context.multiply(logarithm, decimal.Decimal(-pair)), decimal.Decimal(pairs))
        divisor = context.multiply(decimal.Decimal(linear_factor), decimal.Decimal(float(factors[pair])) if factors is not None else decimal.Decimal(1))
        result[pair] = float(context.divide(context.exp(exponent), divisor))
    return result

"""What happens to logits before a token is drawn: pure functions over candidates. The sampler calls them; tests call them one by one.

A candidate set is two arrays: `ids` int64[n], ascending, and `scores` float64[n], the logits of those ids minus the largest logit (so the best is 0).
Only elementwise IEEE operations and comparisons are used, and sums run in a fixed order: NumPy's `exp` and pairwise `sum` choose their
instructions, and with them their last bits, by the machine. The order of the chain (top-k, top-p, min-p, then temperature) is llama.cpp's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]

NEGLIGIBLE = -44.0
"""A score below this has less than 2^-63 of the best candidate's weight: 2^18 of them together are beneath the resolution of a draw. They are
dropped.
"""

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # 32 significant bits: k * high is exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_INVERSE_FACTORIALS = (
    1.0 / 6227020800.0,
    1.0 / 479001600.0,
    1.0 / 39916800.0,
    1.0 / 3628800.0,
    1.0 / 362880.0,
    1.0 / 40320.0,
    1.0 / 5040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
)
_BLOCK = 4096  # values whose intermediate results stay in the first cache levels


def exponential(values: Scores) -> Scores:
    """exp of float64 values in [-746, 700], within 2 units in the last place, with the same bits everywhere.

    Cody and Waite's reduction to |r| <= ln(2) / 2, then the Taylor polynomial of degree 13 (its remainder is below 2^-56).
    """
    result = np.empty_like(values)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        exponents = np.rint(block * _LOG2_E)
        reduced = (block - exponents * _LN2_HIGH) - exponents * _LN2_LOW
        power = np.full_like(reduced, _INVERSE_FACTORIALS[0])
        for coefficient in _INVERSE_FACTORIALS[1:]:
            power *= reduced
            power += coefficient
        np.ldexp(power, exponents.astype(np.int32), out=result[start : start + _BLOCK])
    return result


def ordered_sum(values: Scores) -> float:
    """The sum from left to right; `values` is not empty."""
    return float(np.add.accumulate(values)[-1])


def candidates(logits: NDArray[np.float32], top_k: int) -> tuple[Ids, Scores]:
    """The `top_k` largest of float32[vocabulary] (0 or more than there are: all); of equal ones at the border the lower ids survive."""
    if 0 < top_k < len(logits):
        border = np.partition(logits, len(logits) - top_k)[len(logits) - top_k]
        above = np.flatnonzero(logits > border)
        equal = np.flatnonzero(logits == border)[: top_k - len(above)]
        ids = np.sort(np.concatenate([above, equal]))
    else:
        ids = np.arange(len(logits), dtype=np.int64)
    chosen = logits[ids].astype(np.float64)
    return ids.astype(np.int64), chosen - chosen.max()


def drop_negligible(ids: Ids, scores: Scores) -> tuple[Ids, Scores]:
    """Without the candidates whose weight cannot influence a draw (see NEGLIGIBLE)."""
    keep = scores >= NEGLIGIBLE
    return ids[keep], scores[keep]


def keep_top_p(ids: Ids, scores: Scores, top_p: float) -> tuple[Ids, Scores]:
    """The smallest set of best candidates whose probabilities reach `top_p` together; never empty. Equal scores: the lower id is the better one."""
    if top_p >= 1.0:
        return ids, scores
    ids, scores = drop_negligible(ids, scores)
    weights = exponential(scores)
    total = ordered_sum(weights)
    # All those with less than (1 - top_p) / n of the total together have less than 1 - top_p of it: they are never needed. The half is for rounding.
    near = np.flatnonzero(weights >= 0.5 * (1.0 - top_p) * total / len(weights))
    order = near[np.argsort(-scores[near], kind="stable")]
    reached = np.add.accumulate(weights[order])
    count = min(int(np.searchsorted(reached, top_p * total, side="left")) + 1, len(order))
    kept = np.sort(order[:count])
    return ids[kept], scores[kept]


def keep_min_p(ids: Ids, scores: Scores, min_p: float) -> tuple[Ids, Scores]:
    """The candidates with at least `min_p` times the probability of the best; the best always survives."""
    if min_p <= 0.0:
        return ids, scores
    near = scores >= math.log(min_p) - 1.0  # far from the border on the safe side, so that the machine's logarithm decides nothing
    ids, scores = ids[near], scores[near]
    keep = exponential(scores) >= min_p
    return ids[keep], scores[keep]


def scale_temperature(ids: Ids, scores: Scores, temperature: float) -> tuple[Ids, Scores]:
    """Scores divided by a `temperature` above 0. A tiny one sends all but the best to minus infinity, which is what it means."""
    with np.errstate(over="ignore"):
        return ids, scores / temperature


def draw(ids: Ids, scores: Scores, uniform: float) -> int:
    """The id at the point `uniform` in [0, 1) of the cumulated weights, in ascending order of ids."""
    ids, scores = drop_negligible(ids, scores)
    cumulated = np.add.accumulate(exponential(scores))
    index = int(np.searchsorted(cumulated, uniform * float(cumulated[-1]), side="right"))
    return int(ids[min(index, len(ids) - 1)])


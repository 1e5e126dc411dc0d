"""What happens to logits before a token is drawn: pure functions over candidates. The sampler calls them; tests call them one by one.

A candidate set is two arrays: `ids` int64[n], ascending, and `scores` float64[n], the logits of those ids minus the largest logit (so the best is 0).
Only elementwise IEEE operations and comparisons decide, and sums run in a fixed order: NumPy's `exp` and pairwise `sum` choose their instructions, and
with them their last bits, by the machine. These find a decision among many candidates, which stands where it is further from its border than any
machine's last bits. The order of the chain (top-k, top-p, min-p, then temperature) is llama.cpp's.
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
_FEW = 1024  # so many candidates are weighed by definition; of more, decisions are found faster and only checked
_ROUNDING = 2.0**-48
"""Of a sum, by addend: several times what an order of summation and any machine's exponential can move it by."""
_DEPTHS = (6.0, 8.0, 10.0, 13.0, 18.0, 44.0)
"""Below the best score: how far to look for the nucleus. With a `top_p` of 0.95 the first does for three tokens of four."""
_COLUMNS = 2048
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
        near = np.flatnonzero(logits >= _lower_bound(logits, top_k))
        values = logits[near]
        border = np.partition(values, len(values) - top_k)[len(values) - top_k]
        above = near[values > border]
        equal = near[values == border][: top_k - len(above)]
        ids = np.sort(np.concatenate([above, equal])).astype(np.int64)
        chosen = logits[ids].astype(np.float64)
    else:
        ids = np.arange(len(logits), dtype=np.int64)
        chosen = logits.astype(np.float64)
    return ids, chosen - chosen.max()


def _lower_bound(logits: NDArray[np.float32], top_k: int) -> np.float32:
    """A value that at least `top_k` logits reach: the `top_k`-th largest of the maxima of some, which are found much faster than an order of all."""
    columns = max(_COLUMNS, 2 * top_k)
    rows = len(logits) // columns
    maxima = logits[: rows * columns].reshape(rows, columns).max(axis=0) if rows > 1 else logits
    return np.partition(maxima, len(maxima) - top_k)[len(maxima) - top_k]


def drop_negligible(ids: Ids, scores: Scores) -> tuple[Ids, Scores]:
    """Without the candidates whose weight cannot influence a draw (see NEGLIGIBLE)."""
    keep = scores >= NEGLIGIBLE
    return ids[keep], scores[keep]


def keep_top_p(ids: Ids, scores: Scores, top_p: float) -> tuple[Ids, Scores]:
    """The smallest set of best candidates whose probabilities reach `top_p` together; never empty. Equal scores: the lower id is the better one."""
    if top_p >= 1.0:
        return ids, scores
    kept = _nucleus_by_machine(scores, top_p) if len(scores) > _FEW else None
    if kept is None:
        ids, scores = drop_negligible(ids, scores)
        kept = _nucleus(scores, top_p)
    return ids[kept], scores[kept]


def _nucleus(scores: Scores, top_p: float) -> NDArray[np.intp]:
    """The indices of the set, ascending: this is its definition."""
    weights = exponential(scores)
    total = ordered_sum(weights)
    # All those with less than (1 - top_p) / n of the total together have less than 1 - top_p of it: they are never needed. The half is for rounding.
    near = np.flatnonzero(weights >= 0.5 * (1.0 - top_p) * total / len(weights))
    order = near[np.argsort(-scores[near], kind="stable")]
    reached = np.add.accumulate(weights[order])
    count = min(int(np.searchsorted(reached, top_p * total, side="left")) + 1, len(order))
    return np.sort(order[:count])


def _nucleus_by_machine(scores: Scores, top_p: float) -> NDArray[np.intp] | None:
    """`_nucleus` with the machine's exponential and sums, in a tenth of the time; None where their last bits could matter."""
    weights = np.exp(scores)
    total = float(weights.sum())
    target, margin = top_p * total, total * len(scores) * _ROUNDING
    for depth in _DEPTHS:
        near = np.flatnonzero(scores >= -depth)
        if weights[near].sum() >= target + margin:
            break
    order = near[np.argsort(-scores[near], kind="stable")]
    reached = np.add.accumulate(weights[order])
    count = int(np.searchsorted(reached, target, side="left")) + 1
    if count > len(order) or reached[count - 1] < target + margin or (count > 1 and reached[count - 2] > target - margin):
        return None
    return np.sort(order[:count])


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
    index = _drawn_by_machine(scores, uniform) if len(scores) > _FEW else None
    if index is None:
        ids, scores = drop_negligible(ids, scores)
        cumulated = np.add.accumulate(exponential(scores))
        index = min(int(np.searchsorted(cumulated, uniform * float(cumulated[-1]), side="right")), len(ids) - 1)
    return int(ids[index])


def _drawn_by_machine(scores: Scores, uniform: float) -> int | None:
    """The index that is drawn, found with the machine's exponential; None where its last bits could matter."""
    cumulated = np.add.accumulate(np.exp(scores))
    total = float(cumulated[-1])
    target, margin = uniform * total, total * len(scores) * _ROUNDING
    index = int(np.searchsorted(cumulated, target, side="right"))
    if index == len(scores) or cumulated[index] - margin <= target or (index and cumulated[index - 1] + margin > target):
        return None
    return index

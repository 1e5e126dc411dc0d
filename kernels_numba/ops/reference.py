"""The naive NumPy twin of each kernel: same name, same arithmetic, arrays instead of addresses. For tests, and for reading what a kernel computes.

Matrices are float32[rows, width] without padding. Where a kernel's order of operations matters, the twin follows it, so that results are equal bit
for bit; `fma` is exact without an fma instruction. Nothing here is fast.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernels_numba.ops import mathematics as m

Floats = NDArray[np.float32]
F32 = np.float32
GROUP = 32
SPAN = 256


# -- arithmetic


def fma(x: Floats, y: Floats | np.float32, z: Floats | np.float32) -> Floats:
    """x * y + z with one rounding: the product is exact in float64, the sum is rounded to odd there, then to float32 (Boldo and Melquiond, 2008)."""
    with np.errstate(all="ignore"):
        product = np.asarray(np.multiply(x, y, dtype=np.float64))
        addend = np.asarray(z, dtype=np.float64)
        product, addend = np.broadcast_arrays(product, addend)
        total = product + addend
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        bits = total.view(np.int64)
        inexact = (error != 0) & np.isfinite(error)
        moved = np.where((error.view(np.int64) ^ bits) < 0, bits - 1, bits + 1)
        return np.where(inexact & (bits & 1 == 0), moved, bits).view(np.float64).astype(F32)


def sum_lanes(value: Floats) -> Floats:
    """float32[..., 16] -> float32[...]: lanes i and i + 8, then + 4, + 2, + 1."""
    for half in (8, 4, 2, 1):
        value = value[..., :half] + value[..., half:]
    return value[..., 0]


def _round(value: Floats) -> Floats:
    magic = F32(12582912.0)
    return (value + magic) - magic


def _polynomial(coefficients: tuple[np.float32, ...], x: Floats) -> Floats:
    """Horner with fma; coefficients in ascending powers."""
    total = np.broadcast_to(coefficients[-1], x.shape)
    for coefficient in coefficients[-2::-1]:
        total = fma(total, x, np.broadcast_to(coefficient, x.shape))
    return total


def exp(x: Floats) -> Floats:
    x = np.where(m.EXP_LOWEST > x, m.EXP_LOWEST, x)
    x = np.where(m.EXP_HIGHEST < x, m.EXP_HIGHEST, x)
    n = _round(x * m.LOG2_E)
    r = fma(n, -m.LN2_HIGH, x)
    r = fma(n, -m.LN2_LOW, r)
    p = fma(_polynomial(m.EXP_COEFFICIENTS, r), r * r, r) + F32(1)
    power = ((np.nan_to_num(n).astype(np.int32) + np.int32(127)) << np.int32(23)).astype(np.int32).view(F32)
    return p * power


def tanh(x: Floats) -> Floats:
    with np.errstate(all="ignore"):
        square = x * x
        small = fma(_polynomial(m.TANH_COEFFICIENTS, square) * square, x, x)
        magnitude = np.abs(x)
        large = F32(1) - F32(2) / (exp(magnitude + magnitude) + F32(1))
        return np.where(magnitude < m.TANH_SMALL, small, np.copysign(large, x))


def erf(x: Floats) -> Floats:
    with np.errstate(all="ignore"):
        small = fma(_polynomial(m.ERF_SMALL_COEFFICIENTS, x * x), x, x)
        magnitude = np.abs(x)
        t = np.where(m.ERF_LARGE < magnitude, m.ERF_LARGE, magnitude)
        large = F32(1) - exp(_polynomial(m.ERF_LARGE_COEFFICIENTS, t) * t)
        return np.where(magnitude < m.ERF_SMALL, small, np.copysign(large, x))


def cosine_sine(angle: NDArray[np.float64]) -> tuple[Floats, Floats]:
    magic = 6755399441055744.0
    n = (angle * m.TWO_OVER_PI + magic) - magic
    r = (angle - n * m.HALF_PI_HIGH) - n * m.HALF_PI_LOW
    z = r * r
    s = np.full_like(z, m.SINE_COEFFICIENTS[-1])
    for coefficient in m.SINE_COEFFICIENTS[-2::-1]:
        s = s * z + coefficient
    s = s * z * r + r
    c = np.full_like(z, m.COSINE_COEFFICIENTS[-1])
    for coefficient in (*m.COSINE_COEFFICIENTS[-2::-1], 1.0):
        c = c * z + coefficient
    quadrant = n.astype(np.int64) & 3
    sine, cosine = s.astype(F32), c.astype(F32)
    swapped = quadrant & 1 == 1
    sine, cosine = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where((quadrant + 1) & 2 == 2, -cosine, cosine), np.where(quadrant & 2 == 2, -sine, sine)


# -- quantization


def tile_width(rows: int) -> int:
    return 1 if rows == 1 else 4 if rows <= 8 else 16


def quantize_values(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """float32[rows, width] -> codes int8[rows, groups, 32] and scales float32[rows, groups]."""
    rows, width = x.shape
    groups = -(-width // GROUP)
    padded = np.zeros((rows, groups * GROUP), F32)
    padded[:, :width] = x
    values = padded.reshape(rows, groups, GROUP)
    with np.errstate(all="ignore"):
        largest = np.abs(values).max(axis=2)  # NaN if any is
        usable = (largest >= F32(2.0**-100)) & (largest < np.inf)
        scale = np.where(usable, largest / F32(127), F32(0))
        scale = np.where(np.isfinite(largest), scale, F32(np.nan))
        inverse = np.where(usable, F32(127) / largest, F32(0))
        scaled = np.where(usable[..., None], values * inverse[..., None], F32(0))
    return np.rint(scaled).astype(np.int8), scale.astype(F32)


def quantize(x: Floats) -> NDArray[np.uint8]:
    """float32[rows, width] -> the activation blocks, in the layout of `ops.common`."""
    rows = len(x)
    codes, scales = quantize_values(x)
    groups = scales.shape[1]
    per_tile = tile_width(rows)
    tiles = -(-rows // per_tile)
    block = np.dtype(
        [
            ("codes", np.int8, (per_tile, GROUP)),
            ("scale", F32, per_tile),
            ("scaled_sum", F32, per_tile),
            ("low_sum", np.int32, per_tile),
            ("high_sum", np.int32, per_tile),
        ]
    )
    blocks = np.zeros((tiles, groups), block)
    for row in range(rows):
        tile, lane = divmod(row, per_tile)
        sums = codes[row].astype(np.int32)
        blocks["codes"][tile, :, lane] = codes[row]
        blocks["scale"][tile, :, lane] = scales[row]
        blocks["low_sum"][tile, :, lane] = sums[:, :16].sum(axis=1)
        blocks["high_sum"][tile, :, lane] = sums[:, 16:].sum(axis=1)
        with np.errstate(over="ignore"):
            blocks["scaled_sum"][tile, :, lane] = scales[row] * sums.sum(axis=1).astype(F32)
    return blocks.view(np.uint8).reshape(-1)


# -- norm and rope


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """float32[rows, segments * segment], weight float32[segment]."""
    segment = len(weight)
    values = x.reshape(-1, segment)
    vectors = -(-segment // 16)
    padded = np.zeros((len(values), vectors * 16), F32)
    padded[:, :segment] = values
    lanes = padded.reshape(len(values), vectors, 16)
    chains = [np.zeros((len(values), 16), F32) for _ in range(4)]
    with np.errstate(all="ignore"):
        for index in range(vectors):
            chain = index % 4 if index < vectors // 4 * 4 else 0
            chains[chain] = fma(lanes[:, index], lanes[:, index], chains[chain])
        total = sum_lanes((chains[0] + chains[1]) + (chains[2] + chains[3]))
        factor = F32(1) / np.sqrt(total / F32(segment) + F32(epsilon)) + (total - total)
        return (values * factor[:, None] * weight).reshape(x.shape)


def rms_norm_quantize(x: Floats, weight: Floats, epsilon: float) -> NDArray[np.uint8]:
    return quantize(rms_norm(x, weight, epsilon))


def rope_table(positions: NDArray[np.int32], frequencies: NDArray[np.float64]) -> Floats:
    """float32[rows, 2 * pairs]: cosines then sines."""
    return np.concatenate(cosine_sine(positions.astype(np.float64)[:, None] * frequencies), axis=1)


def rope(x: Floats, table: Floats, heads: int, head_size: int, neighbours: bool) -> Floats:
    pairs = table.shape[1] // 2
    result = x.reshape(len(x), heads, head_size).copy()
    first = slice(0, 2 * pairs, 2) if neighbours else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if neighbours else slice(pairs, 2 * pairs)
    x0, x1 = result[..., first].copy(), result[..., second].copy()
    cosine, sine = (np.broadcast_to(part[:, None], x0.shape) for part in (table[:, :pairs], table[:, pairs:]))
    result[..., first] = fma(x0, cosine, -(x1 * sine))
    result[..., second] = fma(x1, cosine, x0 * sine)
    return result.reshape(x.shape)


# -- attention


def cached(cache_type: str, x: Floats) -> Floats:
    """float32[..., size] as the cache holds and gives it back."""
    if cache_type != "q8_0":
        with np.errstate(over="ignore"):
            return x.astype({"f16": np.float16, "f32": F32}[cache_type]).astype(F32)
    codes, scales = quantize_values(x.reshape(-1, x.shape[-1]))
    held = codes.reshape(*scales.shape, GROUP).astype(F32) * scales.astype(np.float16).astype(F32)[..., None]
    return held.reshape(len(codes), -1)[:, : x.shape[-1]].reshape(x.shape)


Codes = tuple[NDArray[np.int64], Floats]
"""Integer codes [..., size] and the float32[...] scales that they stand with."""


def key_codes(x: Floats) -> Codes:
    """Keys, or queries that are scaled, float32[..., size] as the cache type q16_0 has them."""
    largest = np.abs(x).max(axis=-1)
    scaled = largest >= F32(2.0**-100)
    reciprocal = F32(1) / np.where(scaled, largest, F32(1))
    squares: Floats = np.zeros((*x.shape[:-1], 16), F32)
    for start in range(0, x.shape[-1], 16):
        part = np.asarray(x[..., start : start + 16] * reciprocal[..., None], F32)
        squares = fma(part, part, squares)
    code = np.minimum(F32(32767), F32(46300) / np.sqrt(np.where(scaled, sum_lanes(squares), F32(1))))
    inverse = np.where(scaled, code * reciprocal, F32(0))
    return _round(x * inverse[..., None]).astype(np.int64), np.where(scaled, largest / code, F32(0))


def value_codes(x: Floats) -> Codes:
    """Values float32[..., size] as the cache type q16_0 has them."""
    largest = np.abs(x).max(axis=-1)
    scaled = largest >= F32(2.0**-100)
    inverse = np.where(scaled, F32(8191) / np.where(scaled, largest, F32(1)), F32(0))
    return _round(x * inverse[..., None]).astype(np.int64), np.where(scaled, largest / F32(8191), F32(0))


def _attend(
    score: Callable[[int, int], Floats], weigh: Callable[[Floats, int, int], Floats], slot: int, window: int, cap: float
) -> Floats:  # fmt: skip
    """One row and head. `score(low, high)` of these positions; `weigh(weights, low, high)` sums their values."""
    start = max(0, slot - window + 1) if window > 0 else 0
    state: tuple[Floats, Floats, Floats] | None = None
    for span in range(start // SPAN, slot // SPAN + 1):
        low, high = max(start, span * SPAN), min(slot + 1, (span + 1) * SPAN)
        scores = score(low, high)
        if cap:
            scores = softcap(scores, cap)
        largest = np.asarray(scores.max())
        weights = exp(scores - largest)
        total = _sum_by_lanes(weights, low)
        weighted = weigh(weights, low, high)
        if state is None:
            state = (largest, total, weighted)
        else:
            new = np.maximum(state[0], largest)
            old_factor, new_factor = exp(np.array([state[0] - new, largest - new], F32))
            state = (new, fma(total, new_factor, state[1] * old_factor), fma(weighted, new_factor, state[2] * old_factor))
    assert state is not None
    return state[2] * (F32(1) / state[1])


def _sum_by_lanes(weights: Floats, low: int) -> Floats:
    """The sum of the weights of the positions from `low` on."""
    lanes = np.zeros(-(-(low % 16 + len(weights)) // 16) * 16, F32)
    lanes[low % 16 : low % 16 + len(weights)] = weights
    chain = np.zeros(16, F32)
    for vector in lanes.reshape(-1, 16):
        chain = chain + vector
    return sum_lanes(chain)


def attention(queries: Floats, keys: Floats, values: Floats, slots: NDArray[np.int32], scale: float, window: int = 0, cap: float = 0.0) -> Floats:
    """Rows of one sequence: queries float32[rows, heads, key_size], keys float32[positions, kv_heads, key_size] and values
    float32[positions, kv_heads, value_size] as the cache holds them -> float32[rows, heads, value_size]."""
    rows, heads, _ = queries.shape
    result = np.zeros((rows, heads, values.shape[2]), F32)
    for row in range(rows):
        for head in range(heads):
            kv_head = head // (heads // keys.shape[1])
            query = queries[row, head] * F32(scale)

            def score(low: int, high: int, query: Floats = query, kv_head: int = kv_head) -> Floats:
                scores = np.zeros(high - low, F32)
                for dimension, factor in enumerate(query):
                    scores = fma(keys[low:high, kv_head, dimension], factor, scores)
                return scores

            def weigh(weights: Floats, low: int, high: int, kv_head: int = kv_head) -> Floats:
                weighted = np.zeros(values.shape[2], F32)
                for weight, value in zip(weights, values[low:high, kv_head], strict=True):
                    weighted = fma(value, weight, weighted)
                return weighted + F32(0)

            result[row, head] = _attend(score, weigh, int(slots[row]), window, cap)
    return result


def attention_integers(queries: Floats, keys: Codes, values: Codes, slots: NDArray[np.int32], scale: float, window: int = 0, cap: float = 0.0) -> Floats:
    """`attention` with the codes of the cache type q16_0."""
    rows, heads, _ = queries.shape
    result = np.zeros((rows, heads, values[0].shape[2]), F32)
    for row in range(rows):
        for head in range(heads):
            kv_head = head // (heads // keys[0].shape[1])
            query, query_scale = key_codes(queries[row, head] * F32(scale))

            def score(low: int, high: int, query: NDArray[np.int64] = query, query_scale: Floats = query_scale, kv_head: int = kv_head) -> Floats:
                dots = keys[0][low:high, kv_head] @ query
                assert (np.abs(dots) < 2**31).all()
                return dots.astype(F32) * keys[1][low:high, kv_head] * query_scale

            def weigh(weights: Floats, low: int, high: int, kv_head: int = kv_head) -> Floats:
                weights = weights * values[1][low:high, kv_head]
                step = max(_sum_by_lanes(weights, low) * F32(1 / (2**18 - 256)), weights.max() * F32(1 / 32767))
                if step < F32(2.0**-100):
                    return np.zeros(values[0].shape[2], F32)
                codes = _round(weights * (F32(1) / step)).astype(np.int64)
                assert codes.sum() <= 2**18 and codes.max() <= 32767
                return (codes @ values[0][low:high, kv_head]).astype(F32) * step

            result[row, head] = _attend(score, weigh, int(slots[row]), window, cap)
    return result


# -- activation and elementwise


def silu(x: Floats) -> Floats:
    return x / (F32(1) + exp(-x))


def gelu_tanh(x: Floats) -> Floats:
    with np.errstate(all="ignore"):
        inner = fma(F32(0.044715) * x * x, x, x)
        return x / (F32(1) + exp(F32(-1.5957691216057308) * inner))


def gelu_erf(x: Floats) -> Floats:
    return F32(0.5) * x * (F32(1) + erf(x * F32(0.7071067811865476)))


def relu_squared(x: Floats) -> Floats:
    with np.errstate(all="ignore"):
        positive = np.where(x < 0, F32(0), x)
        return positive * positive


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "relu_squared": relu_squared,
}


def activation(function: str, gate: Floats, up: Floats | None) -> Floats:
    value = ACTIVATIONS[function](gate)
    return value if up is None else value * up


def activation_quantize(function: str, gate: Floats, up: Floats | None) -> NDArray[np.uint8]:
    return quantize(activation(function, gate, up))


def add(x: Floats, y: Floats) -> Floats:
    return x + y


def scale(x: Floats, factor: float) -> Floats:
    return x * F32(factor)


def softcap(x: Floats, cap: float) -> Floats:
    return F32(cap) * tanh(x / F32(cap))


def select_outputs(x: Floats, output_rows: NDArray[np.int32]) -> Floats:
    return x[output_rows]


def choose_tokens(x: Floats) -> NDArray[np.int32]:
    """The lowest column of each row's largest value: int32[rows]."""
    return np.array([min(np.flatnonzero(row == row.max())) for row in x], np.int32)


def check_logits(x: Floats, block: int) -> tuple[bool, Floats]:
    """Whether all values are finite, and the largest of every 16th column in blocks of `block` columns: float32[rows, blocks, 16]."""
    rows, columns = x.shape
    padded = np.full((rows, -(-columns // block) * block), -np.inf, np.float32)
    padded[:, :columns] = x
    return bool(np.isfinite(x).all()), padded.reshape(rows, -1, block // 16, 16).max(axis=2)

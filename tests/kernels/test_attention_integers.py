"""The cache type q16_0: what its codes are, that they stay within 32 bits, that nothing that is no number is hidden, and how exact it is."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_numba.executor import step as step_words
from kernels_numba.ops import reference
from tests.kernels.support import Memory, PagedStore, StepWords, every_level, run
from tests.kernels.test_attention import Case, Sequences

CASE = Case(cache_type="q16_0", kv_heads=2, key_size=80, value_size=48, positions=37)


@every_level
@pytest.mark.parametrize("workers", [1, 3])
def test_stores_codes(level: str, workers: int) -> None:
    sequences = Sequences(level, CASE, [37])
    sequences.keys[0][3, :3] = [1e30, -1e30, 6e-8]
    sequences.keys[0][4] = 0
    sequences.keys[0][5] = 1e-31
    sequences.values[0][5] = 1e-31
    sequences.values[0][6, :48] = np.arange(48) - 23.5
    sequences.step([(0, slot) for slot in range(37)], workers)
    keys, values = sequences.store.read_codes(sequences.pages[0][1], 37)
    expected = reference.key_codes(sequences.keys[0].reshape(37, 2, 80)), reference.value_codes(sequences.values[0].reshape(37, 2, 48))
    for actual, (codes, scales) in zip((keys, values), expected, strict=True):
        np.testing.assert_array_equal(actual[0], codes)
        np.testing.assert_array_equal(actual[1].view(np.uint32), scales.view(np.uint32))
    assert not keys[0][4].any() and not keys[1][5].any() and not values[0][5].any()


@every_level
@pytest.mark.parametrize(("value", "status"), [(3.4e38, 0), (-np.inf, step_words.STATUS_NON_FINITE), (np.nan, step_words.STATUS_NON_FINITE)])
@pytest.mark.parametrize("of_keys", [True, False])
def test_an_infinity_is_a_fault(level: str, value: float, status: int, of_keys: bool) -> None:
    memory, step = Memory(), StepWords(1, pages=[[[0]]])
    store = PagedStore(memory, "q16_0", 1, 1, 32, 32)
    whole, faulty = np.full((1, 32), 0.5, np.float32), np.array([[value] + [1.0] * 31], np.float32)
    x, y = (memory.matrix(part) for part in ((faulty, whole) if of_keys else (whole, faulty)))
    run(level, "ops.pages", "store_keys_values", ("q16_0",), [x.address, x.stride, y.address, y.stride, store.address, store.page_bytes, 0, 1, 32, 32], step)
    assert step.status == status


@pytest.mark.parametrize("size", [16, 64, 256, 4096])
def test_codes_stay_within_32_bits(size: int) -> None:
    """The worst that Cauchy and Schwarz allow: the norms of the codes multiplied."""
    generator = np.random.default_rng(size)
    random = generator.standard_normal(size)
    rows = [np.ones(size), np.r_[1.0, np.zeros(size - 1)], random, np.r_[3e38, random[1:]], np.r_[1.0, np.full(size - 1, 0.999)]]
    codes, scales = reference.key_codes(np.array(rows, np.float32))
    assert np.abs(codes).max() <= 32767 and (codes**2).sum(axis=1).max() < 2**31
    step = np.abs(np.array(rows)).max(axis=1) / np.abs(codes).max(axis=1)
    assert (np.abs(codes * scales[:, None] - np.array(rows, np.float32)) <= 0.5001 * step[:, None] + 1e-7 * np.abs(rows)).all()


@every_level
@pytest.mark.parametrize("positions", [40, 256])
def test_the_largest_sums(level: str, positions: int) -> None:
    """Equal weights of equal values, and parallel queries and keys, are the largest sums that there are; the answer is the value itself."""
    case = Case(cache_type="q16_0", key_size=256, value_size=16, positions=positions, scale=1e-6)
    sequences = Sequences(level, case, [positions])
    sequences.queries[0][:] = 3.0
    sequences.keys[0][:] = 5.0
    sequences.values[0][:] = np.tile(np.array([7.0, -7.0], np.float32), 8)
    actual = sequences.in_chunks(0, positions, 1)
    np.testing.assert_array_equal(actual[-1:].view(np.uint32), sequences.expected(0, range(positions - 1, positions)).view(np.uint32))
    assert np.abs(actual / np.tile(sequences.values[0], 2) - 1).max() < 2**-9


@every_level
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_no_number_is_not_hidden(level: str, value: float) -> None:
    case = Case(cache_type="q16_0", positions=20)
    sequences = Sequences(level, case, [20])
    sequences.queries[0][7, 3] = value
    actual = sequences.in_chunks(0, 20, 1)
    assert np.isnan(actual[7, :32]).all() and np.isfinite(np.delete(actual, 7, axis=0)).all()


@every_level
def test_as_close_to_softmax_as_half_floats(level: str) -> None:
    """Against the textbook formula in float64, which shares nothing with the kernel."""
    errors = {}
    for cache_type in ("f16", "q16_0"):
        case = Case(positions=600, heads=1, key_size=64, value_size=64, cache_type=cache_type, scale=0.125)
        sequences = Sequences(level, case, [600])
        actual = sequences.in_chunks(0, 600, 1)
        q, k, v = (part[0].astype(np.float64) for part in (sequences.queries, sequences.keys, sequences.values))
        scores = np.where(np.tri(600, dtype=bool), q @ k.T * 0.125, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected = weights @ v / weights.sum(axis=1, keepdims=True)
        errors[cache_type] = np.sqrt(((actual - expected) ** 2).mean())
    assert errors["q16_0"] < errors["f16"] < 5e-4

"""Attention over paged stores: bit for bit its twin, and the same bits however rows are grouped into steps, blocks and workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.executor import step as step_words
from kernels_numba.ops import reference
from kernels_numba.ops.attention import attention_scratch_bytes
from tests.kernels.support import Memory, PagedStore, StepWords, every_level, float_bits, run


@dataclass(frozen=True)
class Case:
    heads: int = 2
    kv_heads: int = 1
    key_size: int = 32
    value_size: int = 32
    positions: int = 40
    window: int = 0
    cap: float = 0.0
    cache_type: str = "f16"
    scale: float = 0.17
    factor: float = 1.0  # of the queries


CASES = [
    Case(),
    Case(heads=6, kv_heads=3, key_size=64, value_size=64, positions=70),
    Case(positions=300, cache_type="f32"),
    Case(positions=530, heads=1, key_size=16, value_size=16, window=100),
    Case(positions=90, window=7),
    Case(positions=90, window=1, cache_type="f32"),
    Case(positions=300, window=256, heads=1, key_size=16),
    Case(positions=70, cap=5.0, value_size=80, factor=20.0),
    Case(positions=33, heads=1, key_size=256, value_size=256),
    Case(positions=300, heads=1, key_size=16, value_size=16, factor=3000.0),
    Case(heads=14, kv_heads=2, positions=24),
    Case(positions=300, heads=3, key_size=80, value_size=48, cache_type="q8_0"),
    Case(positions=600, heads=6, kv_heads=2, key_size=64, value_size=64, window=90, cache_type="q8_0"),
    Case(cache_type="q16_0"),
    Case(positions=530, heads=1, key_size=16, value_size=16, window=100, cache_type="q16_0"),
    Case(positions=300, heads=3, key_size=80, value_size=48, cache_type="q16_0"),
    Case(positions=600, heads=6, kv_heads=2, key_size=64, value_size=64, window=90, cache_type="q16_0"),
    Case(positions=70, cap=5.0, value_size=80, factor=20.0, cache_type="q16_0"),
    Case(positions=300, heads=4, key_size=256, value_size=256, factor=30.0, cache_type="q16_0"),
    Case(positions=1290, heads=3, key_size=16, value_size=80, cache_type="q16_0"),
    Case(positions=1290, heads=3, key_size=16, value_size=80),
    Case(heads=19, key_size=16, value_size=16, positions=20),
]


class Sequences:
    """Sequences with random queries, keys and values for all their positions, in one store whose pages are scattered."""

    def __init__(self, level: str, case: Case, lengths: list[int]) -> None:
        self.level, self.case, self.lengths = level, case, lengths
        generator = np.random.default_rng(sum(lengths) + case.key_size)

        def draw(heads: int, size: int, factor: float = 1.0) -> list[NDArray[np.float32]]:
            return [(generator.standard_normal((length, heads * size)) * factor).astype(np.float32) for length in lengths]

        self.queries = draw(case.heads, case.key_size, case.factor)
        self.keys, self.values = draw(case.kv_heads, case.key_size), draw(case.kv_heads, case.value_size)
        self.memory = Memory()
        pages = [-(-length // 16) for length in lengths]
        self.store = PagedStore(self.memory, case.cache_type, sum(pages) + 3, case.kv_heads, case.key_size, case.value_size)
        order = iter(generator.permutation(sum(pages) + 3))
        # group 0 is another group's: its pages must not be looked at
        self.pages = [[[-(2**30)], [int(next(order)) for _ in range(count)]] for count in pages]

    def step(self, rows: list[tuple[int, int]], workers: int = 1, block_rows: int = 8) -> NDArray[np.float32]:
        """Appends and attends rows given as (sequence, slot); float32[rows, heads * value_size]."""
        case, memory = self.case, Memory()
        step = StepWords(
            len(rows), slots=[slot for _, slot in rows], sequences=[sequence for sequence, _ in rows], pages=self.pages, block_rows=block_rows
        )  # fmt: skip
        keys, values, queries = (
            memory.matrix(np.stack([source[sequence][slot] for sequence, slot in rows])) for source in (self.keys, self.values, self.queries)
        )
        output = memory.matrix((len(rows), case.heads * case.value_size))
        sizes = [case.key_size, case.value_size]
        place = [self.store.address, self.store.page_bytes, 1]
        append = [keys.address, keys.stride, values.address, values.stride, *place, case.kv_heads, *sizes]
        run(self.level, "ops.pages", "store_keys_values", (case.cache_type,), append, step, workers)
        scratch_bytes = attention_scratch_bytes(*sizes, max(self.lengths))
        scratch = memory.allocate(workers * scratch_bytes, 0xFF)
        scratch.reshape(workers, -1)[:, :64] = 0
        attend = [queries.address, queries.stride, *place, case.heads, case.kv_heads, *sizes]
        attend += [float_bits(case.scale), case.window, float_bits(case.cap)]
        attend += [scratch.ctypes.data, scratch_bytes, output.address, output.stride]
        run(self.level, "ops.attention", "attention", (case.cache_type,), attend, step, workers)
        memory.check()
        self.memory.check()
        return output.values

    def expected(self, sequence: int, slots: range) -> NDArray[np.float32]:
        case = self.case
        where = self.pages[sequence][1], self.lengths[sequence]
        queries = self.queries[sequence][slots.start : slots.stop].reshape(len(slots), case.heads, case.key_size)
        seen = np.array(slots, np.int32), case.scale, case.window, case.cap
        if case.cache_type == "q16_0":
            result = reference.attention_integers(queries, *self.store.read_codes(*where), *seen)
        else:
            result = reference.attention(queries, *self.store.read(*where), *seen)
        return result.reshape(len(slots), -1)

    def in_chunks(self, sequence: int, chunk: int, workers: int, block_rows: int = 8) -> NDArray[np.float32]:
        length = self.lengths[sequence]
        parts = [range(start, min(length, start + chunk)) for start in range(0, length, chunk)]
        return np.concatenate([self.step([(sequence, slot) for slot in part], workers, block_rows) for part in parts])


def same(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


@every_level
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_twin(level: str, case: Case) -> None:
    sequences = Sequences(level, case, [case.positions])
    actual = sequences.in_chunks(0, case.positions, 2)
    tail = range(max(0, case.positions - 12), case.positions)
    same(actual[tail.start :], sequences.expected(0, tail))
    head = range(4)
    same(actual[:4], sequences.expected(0, head))


@every_level
@pytest.mark.parametrize("case", CASES, ids=str)
def test_grouping_changes_no_bit(level: str, case: Case) -> None:
    """All positions at once, in chunks of 7, in blocks of 3, one by one: the shared and the single path, and one to five workers."""
    sequences = Sequences(level, case, [case.positions])
    whole = sequences.in_chunks(0, case.positions, 1)
    growing = Sequences(level, case, [case.positions])  # what lies ahead of a chunk is NaN
    same(growing.in_chunks(0, 7, 3), whole)
    same(sequences.in_chunks(0, case.positions, 2, block_rows=3), whole)
    for workers in (1, 2, 5):
        for slot in {0, 1, 15, 16, case.positions // 2, 255, 256, case.positions - 1} & set(range(case.positions)):
            same(sequences.step([(0, slot)], workers), whole[slot : slot + 1])


@every_level
def test_batches_change_no_bit(level: str) -> None:
    case = Case(heads=4, kv_heads=2)
    alone = Sequences(level, case, [19, 40, 1])
    expected = [alone.in_chunks(sequence, 100, 1) for sequence in range(3)]
    together = Sequences(level, case, [19, 40, 1])
    for sequence in (0, 1):
        together.step([(sequence, slot) for slot in range(10)])
    rows = [(0, slot) for slot in range(10, 19)] + [(1, slot) for slot in range(10, 40)] + [(2, 0)]
    actual = together.step(rows, workers=2)
    same(actual, np.concatenate([expected[0][10:], expected[1][10:], expected[2]]))


@every_level
@pytest.mark.parametrize("rows", [1, 5])
def test_pages_before_the_window_are_not_touched(level: str, rows: int) -> None:
    """They may have been given to another sequence: their ids lead far out of memory here."""
    case = Case(positions=600, window=40, heads=4, kv_heads=2)
    sequences = Sequences(level, case, [600])
    expected = sequences.in_chunks(0, 600, 1)[600 - rows :]
    first_seen = 600 - rows - 40 + 1
    for page in range(first_seen // 16):
        sequences.pages[0][1][page] = -(2**30)
    same(sequences.step([(0, slot) for slot in range(600 - rows, 600)]), expected)


@every_level
@pytest.mark.parametrize("cache_type", ["f16", "f32", "q8_0"])
def test_store_rounds_to_the_cache_type(level: str, cache_type: str) -> None:
    case = Case(cache_type=cache_type, kv_heads=2, key_size=80, value_size=48, positions=37)
    sequences = Sequences(level, case, [37])
    sequences.keys[0][3, :6] = [1e30, -1e30, 6e-8, 65519.0, 65520.0, 1.00048828125]
    sequences.keys[0][4, 32:64] = [1e-31, *[0.0] * 31]
    sequences.values[0][5, :32] = np.arange(32) - 15.5
    if cache_type == "q8_0":
        sequences.keys[0][3, :2] = [8e6, -8e6]
    for workers in (1, 2, 3):
        sequences.step([(0, slot) for slot in range(37)], workers)
        keys, values = sequences.store.read(sequences.pages[0][1], 37)
        assert np.array_equal(keys, reference.cached(cache_type, sequences.keys[0].reshape(keys.shape)))
        assert np.array_equal(values, reference.cached(cache_type, sequences.values[0].reshape(values.shape)))


@every_level
@pytest.mark.parametrize(("cache_type", "largest", "overflow"), [("f16", 65519.9, 65520.0), ("f32", 3.4e38, np.inf), ("q8_0", 8321039.5, 8321040.0)])
def test_a_key_that_the_type_does_not_hold_is_a_fault(level: str, cache_type: str, largest: float, overflow: float) -> None:
    for value, status in ((largest, 0), (-overflow, step_words.STATUS_NON_FINITE), (np.nan, step_words.STATUS_NON_FINITE)):
        memory, step = Memory(), StepWords(1, pages=[[[0]]])
        store = PagedStore(memory, cache_type, 1, 1, 32, 32)
        x = memory.matrix(np.full((1, 32), 0.5, np.float32))
        y = memory.matrix(np.array([[value] + [1.0] * 31], np.float32))
        operands = [x.address, x.stride, y.address, y.stride, store.address, store.page_bytes, 0, 1, 32, 32]
        run(level, "ops.pages", "store_keys_values", (cache_type,), operands, step)
        assert step.status == status


def test_eight_bits_are_close_to_what_they_stand_for() -> None:
    """Half a step of the group's largest magnitude / 127, and the rounding of the scale."""
    x = np.random.default_rng(5).standard_normal((50, 96)).astype(np.float32)
    error = np.abs(reference.cached("q8_0", x) - x).reshape(50, 3, 32)
    assert (error <= np.abs(x).reshape(50, 3, 32).max(axis=2, keepdims=True) * (0.5 / 127 + 2.0**-11)).all()


@every_level
def test_close_to_softmax_in_float64(level: str) -> None:
    """Against the textbook formula, which shares nothing with the kernel."""
    case = Case(positions=600, heads=1, key_size=64, value_size=64, cache_type="f32", scale=0.125)
    sequences = Sequences(level, case, [600])
    actual = sequences.in_chunks(0, 600, 1)
    q, k, v = (part[0].astype(np.float64) for part in (sequences.queries, sequences.keys, sequences.values))
    scores = np.where(np.tri(600, dtype=bool), q @ k.T * 0.125, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    assert np.abs(actual - expected).max() < 2e-6

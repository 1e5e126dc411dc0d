"""Every kernel but attention against its twin: bit for bit, on every level, for any number of workers and odd sizes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.executor.step import STATUS_NON_FINITE, STEP_WORDS
from kernels_numba.ops import reference
from kernels_numba.ops.elementwise import MAXIMA_COLUMNS, maxima_width
from tests.kernels.support import Memory, StepWords, every_level, float_bits, run

ROWS = [1, 2, 5, 8, 9, 17]
WIDTHS = [32, 48, 96, 576, 50]


def values(rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng([seed, rows, width]).standard_normal((rows, width)) * 3).astype(np.float32)


def extreme_values(rows: int, width: int) -> NDArray[np.float32]:
    """Zeros of both signs, subnormal numbers, numbers around 2^-100, huge ones: whole groups of one kind, and mixed ones."""
    kinds = np.array([0.0, -0.0, 1e-45, -1e-40, 2.0**-100, 2.0**-101, -(2.0**-100), 1e30, -3.4e38, 1.0, 126.5, 0.5, -2.5], np.float32)
    generator = np.random.default_rng(width)
    result = kinds[generator.integers(0, len(kinds), (rows, width))]
    for group in range(width // 32):
        result[0, 32 * group : 32 * group + 32] = kinds[group % len(kinds)] * generator.choice([1, -1], 32)
    return result.astype(np.float32)


def same(actual: NDArray, expected: NDArray) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(np.ascontiguousarray(actual).view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


def quantized(level: str, x: NDArray[np.float32], workers: int) -> NDArray[np.uint8]:
    memory = Memory()
    source = memory.matrix(x)
    rows, width = x.shape
    per_tile = reference.tile_width(rows)
    output = memory.allocate(-(-rows // per_tile) * -(-width // 32) * 48 * per_tile, 0xFF)
    run(level, "ops.quantize", "quantize", (), [source.address, source.stride, width, 0, output.ctypes.data], StepWords(rows), workers)
    memory.check()
    return output


@every_level
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_quantize(level: str, rows: int, width: int) -> None:
    x = values(rows, width)
    for workers in (1, 2, 3):
        same(quantized(level, x, workers), reference.quantize(x))


@every_level
def test_quantize_extreme_values(level: str) -> None:
    x = extreme_values(5, 32 * 16)
    same(quantized(level, x, 1), reference.quantize(x))


@every_level
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantize_keeps_faults_visible(level: str, bad: float) -> None:
    x = values(1, 64)
    x[0, 40] = bad
    output = quantized(level, x, 1).view(np.float32).reshape(2, 12)
    assert np.isfinite(output[0, 8])
    assert np.isnan(output[1, 8])
    assert (output[1, :8].view(np.uint32) == 0).all()


@every_level
@pytest.mark.parametrize(("rows", "segment", "segments"), [(1, 576, 1), (3, 64, 4), (5, 48, 3), (2, 50, 1), (9, 1600, 1), (1, 16, 2)])
def test_rms_norm(level: str, rows: int, segment: int, segments: int) -> None:
    x, weight = values(rows, segment * segments), values(1, segment, 7)
    for workers in (1, 2, 3):
        memory = Memory()
        source, factor = memory.matrix(x), memory.matrix(weight)
        output = memory.matrix((rows, segment * segments))
        operands = [source.address, source.stride, factor.address, segment, segments, float_bits(1e-5), 0, output.address, output.stride]
        run(level, "ops.norm", "rms_norm", (), operands, StepWords(rows), workers)
        memory.check()
        same(output.values, reference.rms_norm(x, weight[0], 1e-5))
        assert (output.full[:, output.width :] == 0).all()


@every_level
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("with_output", [False, True])
def test_rms_norm_quantize(level: str, rows: int, width: int, with_output: bool) -> None:
    x, weight = values(rows, width), values(1, width, 7)
    expected = reference.rms_norm(x, weight[0], 1e-6)
    for workers in (1, 3):
        memory = Memory()
        source, factor, output = memory.matrix(x), memory.matrix(weight), memory.matrix((rows, width))
        blocks = memory.allocate(len(reference.quantize(x)), 0xFF)
        operands = [source.address, source.stride, factor.address, width, float_bits(1e-6), 0]
        operands += [output.address if with_output else 0, output.stride, blocks.ctypes.data]
        run(level, "ops.norm", "rms_norm_quantize", (), operands, StepWords(rows), workers)
        memory.check()
        same(blocks, reference.quantize(expected))
        if with_output:
            same(output.values, expected)


@every_level
def test_rms_norm_shows_overflow(level: str) -> None:
    memory = Memory()
    x = memory.matrix(np.full((1, 32), 1e30, np.float32))
    output = memory.matrix((1, 32))
    run(level, "ops.norm", "rms_norm", (), [x.address, x.stride, x.address, 32, 1, 0, 0, output.address, output.stride], StepWords(1))
    assert np.isnan(output.values).all()


POSITIONS = [0, 1, 2, 3, 511, 4095, 40960, 2**20 - 1]


def rope_table(level: str, positions: list[int], frequencies: NDArray[np.float64], workers: int) -> NDArray[np.float32]:
    memory = Memory()
    guarded = memory.copy(frequencies)
    pairs = len(frequencies)
    output = memory.matrix((len(positions), 2 * pairs))
    step = StepWords(len(positions), positions=positions)
    run(level, "ops.rope", "rope_table", (), [guarded.ctypes.data, pairs, output.address, output.stride], step, workers)
    memory.check()
    return output.values


@every_level
@pytest.mark.parametrize("pairs", [1, 8, 16, 20, 32, 127])
def test_rope_table(level: str, pairs: int) -> None:
    frequencies = 10000.0 ** (-np.arange(pairs) / pairs)
    expected = reference.rope_table(np.array(POSITIONS, np.int32), frequencies)
    for workers in (1, 2, 3):
        same(rope_table(level, POSITIONS, frequencies, workers), expected)
    angles = np.array(POSITIONS, np.longdouble)[:, None] * frequencies.astype(np.longdouble)
    error = np.abs(expected - np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    assert error.max() < 1e-7


@every_level
@pytest.mark.parametrize("pairing", ["halves", "neighbours"])
@pytest.mark.parametrize(("head_size", "pairs"), [(64, 32), (64, 16), (80, 40), (48, 20), (16, 3), (32, 13), (256, 128)])
def test_rope(level: str, pairing: str, head_size: int, pairs: int) -> None:
    heads, rows = 3, 4
    x = values(rows, heads * head_size)
    table = values(rows, 2 * pairs, 3)
    expected = reference.rope(x, table, heads, head_size, pairing == "neighbours")
    for workers in (1, 2, 3):
        for in_place in (False, True):
            memory = Memory()
            source, guarded = memory.matrix(x), memory.matrix(table)
            output = source if in_place else memory.matrix(x.shape)
            operands = [source.address, source.stride, guarded.address, guarded.stride, heads, head_size, pairs, output.address, output.stride]
            run(level, "ops.rope", "rope", (pairing,), operands, StepWords(rows), workers)
            memory.check()
            same(output.values, expected)


@every_level
@pytest.mark.parametrize("function", list(reference.ACTIVATIONS))
@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (3, 48), (9, 96), (2, 33)])
@pytest.mark.parametrize("with_up", [True, False])
def test_activation(level: str, function: str, rows: int, width: int, with_up: bool) -> None:
    gate, up = values(rows, width, 1) * np.float32(4), values(rows, width, 2)
    expected = reference.activation(function, gate, up if with_up else None)
    for workers in (1, 2, 3):
        memory = Memory()
        first, second, output = memory.matrix(gate), memory.matrix(up), memory.matrix(gate.shape)
        blocks = memory.allocate(len(reference.quantize(gate)), 0xFF)
        operands = [first.address, first.stride, second.address if with_up else 0, second.stride, width]
        step = StepWords(rows)
        run(level, "ops.activation", "activation_quantize", (function,), [*operands, blocks.ctypes.data], step, workers)
        run(level, "ops.activation", "activation", (function,), [*operands, output.address, output.stride], step, workers)
        run(level, "ops.activation", "activation", (function,), [*operands, first.address, first.stride], step, workers)
        memory.check()
        same(output.values, expected)
        same(first.values, expected)
        same(blocks, reference.quantize(expected))


@every_level
@pytest.mark.parametrize(("rows", "width"), [(1, 576), (3, 50), (5, 16)])
def test_elementwise(level: str, rows: int, width: int) -> None:
    x, y = values(rows, width, 1), values(rows, width, 2)
    cases = {
        "add": ([], reference.add(x, y)),
        "scale": ([float_bits(0.3)], reference.scale(x, 0.3)),
        "softcap": ([float_bits(5.0)], reference.softcap(x, 5.0)),
    }
    for workers in (1, 2, 3):
        for function, (middle, expected) in cases.items():
            memory = Memory()
            source, other, output = memory.matrix(x), memory.matrix(y), memory.matrix(x.shape)
            operands = [source.address, source.stride, *([other.address, other.stride] if function == "add" else middle)]
            run(level, "ops.elementwise", function, (), [*operands, width, 0, output.address, output.stride], StepWords(rows), workers)
            memory.check()
            same(output.values, expected)


@every_level
def test_select_outputs(level: str) -> None:
    x, chosen = values(7, 80), [6, 0, 3]
    for workers in (1, 2, 3):
        memory = Memory()
        source, output = memory.matrix(x), memory.matrix((3, 80))
        step = StepWords(7, output_rows=chosen)
        run(level, "ops.elementwise", "select_outputs", (), [source.address, source.stride, 80, output.address, output.stride], step, workers)
        memory.check()
        same(output.values, reference.select_outputs(x, np.array(chosen, np.int32)))


@every_level
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 49), (1, 31)])
def test_check_logits_finds_what_is_not_finite(level: str, bad: float | None, place: tuple[int, int]) -> None:
    x = values(3, 50)
    x[0, 1] = 3.4e38
    if bad is not None:
        x[place] = bad
    for workers in (1, 2, 3):
        assert check_logits(level, x, workers)[0] == (0 if bad is None else STATUS_NON_FINITE)


@every_level
@pytest.mark.parametrize("columns", [3, 16, 50, 4096, 4097, 9000])
def test_check_logits_notes_the_largest(level: str, columns: int) -> None:
    x = values(3, columns) - np.float32(10)  # padding must not count as a larger 0
    x[1, :] = x[1, 0]
    _, expected = reference.check_logits(x, MAXIMA_COLUMNS)
    for workers in (1, 2, 3):
        same(check_logits(level, x, workers)[1].reshape(expected.shape), expected)


@every_level
@pytest.mark.parametrize("columns", [3, 16, 50, 4096, 4097, 9000])
def test_choose_tokens_takes_the_lowest_id_of_the_largest(level: str, columns: int) -> None:
    generator = np.random.default_rng(columns)
    x = values(6, columns)
    x[1, :] = x[1, 0]
    x[2, generator.integers(0, columns, 40)] = 50  # ties, in several blocks and lanes
    x[3, :] = -np.abs(x[3, :])
    x[3, generator.integers(0, columns, 3)] = [0.0, -0.0, -0.0]  # equal, whatever their signs
    x[4, -1] = 50
    x[5, :] = -3.4e38
    expected = reference.choose_tokens(x)
    for workers in (1, 3):
        step = burst_step(6, passes=1)
        choose_tokens(level, x, step, workers)
        assert step.chosen[0].tolist() == expected.tolist()
        assert (step.read("passes_done"), step.read("passes_left")) == (1, 0)
        assert step.rows_now() == step.rows_before, "the step was no burst, so there is no next row"


@every_level
@pytest.mark.parametrize("reason", ["passes", "an end", "an interrupt"])
def test_choose_tokens_prepares_the_next_pass_until_the_burst_ends(level: str, reason: str) -> None:
    passes = [values(3, 300, seed) for seed in range(4)]
    expected = [reference.choose_tokens(x) for x in passes]
    last_but_one = int(expected[2][1])
    assert all(last_but_one not in chosen for chosen in expected[:2])
    step = burst_step(3, passes=3 if reason == "passes" else 4, end_ids=[999, last_but_one] if reason == "an end" else [999])
    for count, x in enumerate(passes[:3], start=1):
        if count == 3 and reason == "an interrupt":
            step.interrupt[0] = 1
        choose_tokens(level, x, step, 2)
        assert step.read("passes_done") == count
        if count < 3:
            assert step.read("passes_left") > 0
            assert step.rows_now() == [(token, slot + count, position + count) for token, (_, slot, position) in zip(expected[count - 1], step.rows_before)]
    assert step.read("passes_left") == 0
    assert step.chosen[:3].tolist() == [chosen.tolist() for chosen in expected[:3]]


class BurstWords(StepWords):
    """The words of a burst of rows that each have a sequence of their own."""

    def __init__(self, rows: int, passes: int, end_ids: list[int]) -> None:
        slots, positions = [5 * row for row in range(rows)], [7 * row + 1 for row in range(rows)]
        super().__init__(rows, positions=positions, slots=slots, sequences=list(range(rows)), output_rows=list(range(rows)))
        self.token_ids = self.memory.copy(np.full(rows, -1, np.int32))
        self.chosen = self.memory.copy(np.full((passes, rows), -1, np.int32))
        self.interrupt = self.memory.copy(np.zeros(1, np.int64))
        self.ends = self.memory.copy(np.array(end_ids, np.int32))
        for name, value in (
            ("token_ids", self.token_ids.ctypes.data), ("passes_left", passes), ("largest", self.chosen.ctypes.data),
            ("end_ids", self.ends.ctypes.data), ("end_id_count", len(end_ids)), ("interrupt", self.interrupt.ctypes.data),
        ):  # fmt: skip
            self.words[STEP_WORDS.index(name)] = value
        self.rows_before = self.rows_now()

    def read(self, name: str) -> int:
        return int(self.words[STEP_WORDS.index(name)])

    def rows_now(self) -> list[tuple[int, int, int]]:
        """Token, slot and rope position of each row; the query blocks must have the same slots."""
        positions, slots, blocks = self._kept[0], self._kept[1], self._kept[4].reshape(-1, 4)
        assert blocks[:, 3].tolist() == slots.tolist() and blocks[:, 0].tolist() == list(range(len(slots)))
        return list(zip(self.token_ids.tolist(), slots.tolist(), positions.tolist()))


def burst_step(rows: int, passes: int, end_ids: list[int] | None = None) -> BurstWords:
    return BurstWords(rows, passes, end_ids or [])


def choose_tokens(level: str, x: np.ndarray, step: BurstWords, workers: int) -> None:
    """One pass's end, with maxima by the twin; the padding of the logits is poisoned."""
    memory = Memory()
    source = memory.matrix(x)
    source.full[:, x.shape[1] :] = np.nan
    maxima = memory.matrix(reference.check_logits(x, MAXIMA_COLUMNS)[1].reshape(len(x), -1))
    run(level, "ops.greedy", "choose_tokens", (), [source.address, source.stride, x.shape[1], maxima.address, maxima.stride], step, workers)
    memory.check()


def check_logits(level: str, x: np.ndarray, workers: int) -> tuple[int, np.ndarray]:
    """(status, maxima); the padding of the logits is poisoned."""
    memory = Memory()
    columns = x.shape[1]
    source, maxima = memory.matrix(x), memory.matrix((len(x), maxima_width(columns)))
    source.full[:, columns:] = np.nan
    step = StepWords(5, output_rows=list(range(len(x))))
    run(level, "ops.elementwise", "check_logits", (), [source.address, source.stride, columns, maxima.address, maxima.stride], step, workers)
    memory.check()
    return step.status, maxima.values

"""The output matrix in two planes: its logits have the bits of the plain form, its bounds are none too low, and the tokens found with them are those of the
largest logits, whatever the matrix is like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.executor import step as step_words
from kernels_numba.executor.step import STATUS_NON_FINITE
from kernels_numba.formats import format_by_name
from kernels_numba.layouts import PLANES, UPPER_PLANE, packed_bytes, planes_layout
from kernels_numba.ops import reference, reference_linear
from kernels_numba.ops.elementwise import CHECK_LOGITS_OPERANDS, maxima_width
from kernels_numba.ops.embedding import SCRATCH_BYTES
from kernels_numba.ops.greedy import CHOOSE_TOKENS_OPERANDS
from kernels_numba.ops.linear import LINEAR_OPERANDS
from kernels_numba.ops.screen import (
    BEST_BYTES,
    BEST_EXACT,
    BOUND_LOGITS_OPERANDS,
    CHOOSE_BEST_OPERANDS,
    CHUNK_COLUMNS,
    REFINE_BOUNDS_OPERANDS,
    SCREENED_ROWS,
    chunks_of,
)
from tests.kernels.support import Memory, StepWords, every_level, float_bits, run
from tests.kernels.weights import Bytes, extreme_rows, random_rows

Floats = NDArray[np.float32]
COLUMNS = 96  # an odd number of groups: a record holds two


def pack_planes(level: str, stored: Bytes, columns: int, workers: int = 1, piece: int = 0) -> tuple[Bytes, Memory]:
    """The packed matrix in guarded memory; `piece`: packed so many rows at a time."""
    memory = Memory()
    rows, layout = len(stored), planes_layout()
    packed = memory.allocate(packed_bytes("Q8_0", rows, columns))
    lower = packed.ctypes.data + -(-rows // 16) * layout.tile_bytes(columns)
    for first in range(0, rows, piece or rows):
        part = memory.copy(stored[first : first + (piece or rows)])
        upper = packed.ctypes.data + first // 16 * layout.tile_bytes(columns)
        operands = [part.ctypes.data, len(part), columns, upper, lower + first // 16 * layout.low_tile_bytes(columns)]
        run(level, "ops.pack", "pack_planes", (PLANES,), operands, StepWords(1), workers)
    memory.check()
    return packed, memory


@dataclass
class Result:
    """What one pass over the end of a tape left behind."""

    output: Floats  # logits, or bounds
    tokens: list[int]
    status: int
    exact_tiles: int
    maxima: Floats


def output(level: str, packed: Bytes, rows: int, x: Floats, screened: bool, workers: int = 1) -> Result:
    memory = Memory()
    outputs, columns = x.shape
    row_tiles = -(-rows // 16)
    step = StepWords(outputs + 2, output_rows=list(range(outputs)))
    chosen, interrupt = step.memory.copy(np.full(outputs, -1, np.int32)), step.memory.copy(np.zeros(1, np.int64))
    for offset, value in ((step_words.LARGEST, chosen.ctypes.data), (step_words.INTERRUPT, interrupt.ctypes.data)):
        step.words[offset // 8] = value
    blocks = memory.copy(reference.quantize(x))
    logits = memory.matrix((outputs, rows))
    maxima, bound_maxima = memory.matrix((outputs, maxima_width(rows))), memory.matrix((outputs, chunks_of(row_tiles)))
    bound_blocks = memory.allocate(workers * blocks.nbytes)
    best = memory.allocate(workers * BEST_BYTES)
    known = {
        "weights": packed.ctypes.data, "row_tiles": row_tiles, "columns": columns, "input_blocks": blocks.ctypes.data, "per_output": 1, "width": rows,
        "output": logits.address, "output_stride": logits.stride, "bound_blocks": bound_blocks.ctypes.data, "bound_blocks_bytes": blocks.nbytes,
        "bound_maxima": bound_maxima.address, "bound_maxima_stride": bound_maxima.stride, "maxima": maxima.address, "maxima_stride": maxima.stride,
        "block_maxima": maxima.address, "block_maxima_stride": maxima.stride, "best": best.ctypes.data, "bias": 0, "residual": 0,
        "residual_stride": 0,
    }  # fmt: skip
    plain = (
        ("ops.linear", "linear", LINEAR_OPERANDS, (PLANES,), blocks.ctypes.data),
        ("ops.elementwise", "check_logits", CHECK_LOGITS_OPERANDS, (), logits.address),
        ("ops.greedy", "choose_tokens", CHOOSE_TOKENS_OPERANDS, (), logits.address),
    )
    from_bounds = (
        ("ops.screen", "bound_logits", BOUND_LOGITS_OPERANDS, (UPPER_PLANE,), blocks.ctypes.data),
        ("ops.screen", "refine_bounds", REFINE_BOUNDS_OPERANDS, (PLANES,), logits.address),
        ("ops.screen", "choose_best", CHOOSE_BEST_OPERANDS, (), 0),
    )
    for module, function, names, tags, source in from_bounds if screened else plain:
        operands = known | {"input": source, "input_stride": logits.stride}
        run(level, module, function, tags, [operands[name] for name in names], step, workers)
        logits.full[:, rows:] = np.nan  # nobody may look at the padding
    memory.check()
    exact = best.reshape(workers, -1)[:, BEST_EXACT : BEST_EXACT + 8].copy().view(np.int64).sum()
    return Result(logits.values, chosen.tolist(), step.status, int(exact), bound_maxima.values)


def same(actual: Floats, expected: Floats) -> None:
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def activations(rows: int, columns: int = COLUMNS, seed: int = 0) -> Floats:
    return np.random.default_rng([rows, columns, seed]).standard_normal((rows, columns)).astype(np.float32)


def encode(values: NDArray[np.floating]) -> Bytes:
    return format_by_name("Q8_0").encode_rows(values.astype(np.float32))


@every_level
def test_packing_in_shares_and_pieces_gives_the_same_bytes(level: str) -> None:
    for columns in (32, 96, 256):
        for rows in (1, 17, 64):
            stored = extreme_rows("Q8_0", rows, columns)
            whole, memory = pack_planes(level, stored, columns)
            assert len(whole) == packed_bytes("Q8_0", rows, columns)  # no more than the plain form
            for workers, piece in ((2, 0), (3, 16), (1, 32)):
                np.testing.assert_array_equal(pack_planes(level, stored, columns, workers, piece)[0], whole)
            memory.check()


@every_level
def test_an_embedding_row_has_the_bits_of_decode(level: str) -> None:
    for stored in (random_rows("Q8_0", 37, COLUMNS), extreme_rows("Q8_0", 37, COLUMNS)):
        packed, packed_memory = pack_planes(level, stored, COLUMNS)
        memory, tokens = Memory(), [*range(37), 0, 36]
        step = StepWords(len(tokens))
        step.words[step_words.TOKEN_IDS // 8] = step.memory.copy(np.array(tokens, np.int32)).ctypes.data
        found = memory.matrix((len(tokens), COLUMNS))
        scratch = memory.allocate(2 * SCRATCH_BYTES)
        operands = [packed.ctypes.data, COLUMNS, float_bits(22.6), scratch.ctypes.data, found.address, found.stride, 3]
        run(level, "ops.embedding", "embedding", (PLANES,), operands, step, 2)
        memory.check()
        packed_memory.check()
        same(found.values, reference_linear.embedding("Q8_0", stored, np.array(tokens), 22.6))


@every_level
@pytest.mark.parametrize("rows", [1, 16, 50, 300])
def test_logits_have_the_bits_of_the_plain_form(level: str, rows: int) -> None:
    """Negative scales included: only bounds need them not to be there."""
    for stored in (random_rows("Q8_0", rows, COLUMNS), extreme_rows("Q8_0", rows, COLUMNS)):
        packed, memory = pack_planes(level, stored, COLUMNS)
        x = activations(33)
        expected = reference_linear.linear("Q8_0", stored, x)
        for count in (1, 3, 4, 5, 8, 9, 16, 17, 33):
            found = output(level, packed, rows, x[:count], screened=False, workers=count % 3 + 1)
            same(found.output, expected[:count])
            assert found.tokens == reference.choose_tokens(expected[:count]).tolist() and found.status == 0 and found.exact_tiles == 0
        memory.check()


@every_level
def test_bounds_equal_their_twin_and_are_not_too_low(level: str) -> None:
    for rows in (17, 300):
        for stored in (random_rows("Q8_0", rows, 256), positive_scales(extreme_rows("Q8_0", rows, 256))):
            packed, _ = pack_planes(level, stored, 256)
            x = activations(SCREENED_ROWS, 256)
            x[1:3] = [[1.0], [-1.0]]
            x[3] *= np.float32(2.0**-95)  # scales near the smallest
            for count in (1, 2, 4, 5, 8):
                # what refining leaves of the bounds: it writes nothing into them
                found = output(level, packed, rows, x[:count], screened=True, workers=count % 2 + 1)
                bounds = reference_linear.bounds(stored, x[:count])
                same(found.output, bounds)
                assert (bounds >= reference_linear.linear("Q8_0", stored, x[:count])).all()
                padded = np.full((count, chunks_of(-(-rows // 16)) * CHUNK_COLUMNS), -np.inf, np.float32)
                padded[:, :rows] = bounds
                same(found.maxima, padded.reshape(count, -1, CHUNK_COLUMNS).max(axis=2))


def positive_scales(stored: Bytes) -> Bytes:
    blocks = stored.reshape(-1, 34).copy()
    blocks[:, 1] &= 0x7F
    return blocks.reshape(stored.shape)


def heads() -> dict[str, Bytes]:
    """Matrices that are hard to choose from, of 1,000 rows."""
    generator = np.random.default_rng(3)
    normal = generator.standard_normal((1000, COLUMNS))
    clustered = normal[:1] + 0.05 * generator.standard_normal((1000, COLUMNS))
    twins = normal.copy()
    twins[[7, 500, 999]] = twins[3]  # equal rows in other tiles and chunks, and in the same tile
    peak = activations(SCREENED_ROWS).astype(np.float64)
    large = normal.copy()
    large[[30, 400, 401, 990]] = 4 * peak[:4]  # the best by far; equal ones among them
    large[[31, 402]] = 4 * peak[:1]
    low = -np.abs(normal) - 3 * np.sign(peak[:1])  # all logits of the first row are negative: padding must not win
    return {
        "normal": encode(normal),
        "clustered": encode(clustered),
        "all equal": encode(np.repeat(normal[:1], 1000, axis=0)),
        "zero": encode(np.zeros((1000, COLUMNS))),
        "equal rows": encode(twins),
        "clear winners": encode(large),
        "negative logits": encode(low),
        "extreme": positive_scales(extreme_rows("Q8_0", 1000, COLUMNS)),
    }


@every_level
@pytest.mark.parametrize("name", heads())
def test_tokens_are_those_of_the_largest_logits(level: str, name: str) -> None:
    stored = heads()[name]
    for rows in (1000, 991, 130, 5):
        packed, memory = pack_planes(level, stored[:rows], COLUMNS)
        x = activations(SCREENED_ROWS)
        x[-1] = -x[0]
        x[-2] = 0
        expected = reference_linear.linear("Q8_0", stored[:rows], x)
        for count in range(1, SCREENED_ROWS + 1):
            for workers in {1, 2, count}:
                found = output(level, packed, rows, x[-count:], screened=True, workers=workers)
                assert found.tokens == reference.choose_tokens(expected[-count:]).tolist() and found.status == 0
                if name == "clear winners" and count == 1:
                    assert found.exact_tiles <= workers + 2
        memory.check()


@every_level
def test_a_bound_that_equals_the_best_logit_rules_nothing_out(level: str) -> None:
    """Activations of 0 but for one of -1 in columns where all lower bits are 0: then bounds are the logits, and all of them ties."""
    stored = positive_scales(np.zeros((600, 34 * 3), np.uint8)).reshape(-1, 34)
    stored[:, :2] = np.array([0.5], np.float16).view(np.uint8)
    stored[:, 2:] = 0x80  # -128: code 0
    rows = stored.reshape(600, -1).copy()
    packed, _ = pack_planes(level, rows, COLUMNS)
    x = np.zeros((1, COLUMNS), np.float32)
    x[0, 5] = -1
    np.testing.assert_array_equal(reference_linear.bounds(rows, x), reference_linear.linear("Q8_0", rows, x))
    found = output(level, packed, 600, x, screened=True, workers=2)
    assert found.tokens == [0] and found.exact_tiles == 2 + -(-600 // 16) - 1  # nothing is ruled out: each tile once, the first by both


@every_level
@pytest.mark.parametrize("scale", [2.0**66, 2.0**100, 3e37])
def test_huge_activations_rule_nothing_out_and_what_is_not_finite_is_found(level: str, scale: float) -> None:
    stored = heads()["normal"]
    packed, _ = pack_planes(level, stored, COLUMNS)
    x = activations(3) * np.float32(scale) / np.float32(8)
    x[1] = activations(1)[0]
    expected = reference_linear.linear("Q8_0", stored, x)
    found = output(level, packed, len(stored), x, screened=True, workers=2)
    if np.isfinite(expected).all():
        assert found.tokens == reference.choose_tokens(expected).tolist() and found.status == 0
    else:
        assert found.status == STATUS_NON_FINITE
    for bad in (np.nan, np.inf, -np.inf):
        x[2, 40] = bad
        assert output(level, packed, len(stored), x, screened=True, workers=2).status == STATUS_NON_FINITE

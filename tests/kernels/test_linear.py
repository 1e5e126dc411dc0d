"""Linear kernels of every format: bit for bit their twins, the same bits for any grouping of rows and any workers, and close to float64 arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.formats import format_by_name
from kernels_numba.ops import reference, reference_linear
from kernels_numba.ops.linear import LINEAR_OPERANDS
from kernels_numba.ops.linear import linear as linear_kernel
from kernels_numba.simd.levels import level_by_name
from tests.kernels.support import Memory, StepWords, run
from tests.kernels.weights import FORMATS, QUANTIZED, Bytes, column_counts, extreme_rows, levels_and_formats, pack, random_rows

Floats = NDArray[np.float32]
TOKENS = [1, 3, 4, 5, 8, 9, 16, 17, 33]
MATRIX_ROWS = [1, 15, 16, 17, 50, 64]


@cache
def activations(tokens: int, columns: int) -> Floats:
    values = np.random.default_rng(columns).standard_normal((tokens, columns)) * np.exp(np.arange(tokens) % 5 - 2)[:, None]
    return values.astype(np.float32)


def quantized(x: Floats) -> Bytes:
    """`reference.quantize`, kept: the same activations meet many matrices."""
    key = (x.shape, x.tobytes())
    if key not in _quantized:
        _quantized[key] = reference.quantize(x)
    return _quantized[key]


_quantized: dict[tuple[tuple[int, ...], bytes], Bytes] = {}


def linear(
    level: str, format_name: str, packed: Bytes, rows: int, x: Floats, bias: Floats | None = None, residual: Floats | None = None, workers: int = 1,
    row_blocks: int = 0,
) -> Floats:  # fmt: skip
    """float32[tokens, rows] of the kernel; checks guards and padding."""
    memory = Memory()
    tokens, columns = x.shape
    operands = {"weights": packed.ctypes.data, "row_tiles": -(-rows // 16), "columns": columns, "per_output": 0}
    if format_by_name(format_name).quantized:
        operands |= {"input": memory.copy(quantized(x)).ctypes.data, "input_stride": 0}
    else:
        matrix = memory.matrix(x)
        operands |= {"input": matrix.address, "input_stride": matrix.stride}
    output = memory.matrix((tokens, rows))
    output.full[:] = np.nan
    operands |= {"output": output.address, "output_stride": output.stride, "bias": 0, "residual": 0, "residual_stride": 0}
    if bias is not None:
        operands["bias"] = memory.matrix(bias[None]).address
    if residual is not None:
        other = memory.matrix(residual)
        operands |= {"residual": other.address, "residual_stride": other.stride}
    function = "linear" if format_by_name(format_name).quantized else "linear_float"
    run(level, "ops.linear", function, (format_name,), [operands[name] for name in LINEAR_OPERANDS], StepWords(tokens, row_blocks=row_blocks), workers)
    memory.check()
    assert np.isfinite(output.full).all()  # padded rows of the matrix are zeros: their columns hold no rubbish
    return output.values


def same(actual: Floats, expected: Floats) -> None:
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def twin(format_name: str) -> Callable[[str, Bytes, Floats], Floats]:
    return reference_linear.linear if format_by_name(format_name).quantized else reference_linear.linear_float


@pytest.mark.parametrize(("level", "format_name"), levels_and_formats(FORMATS))
def test_equals_the_twin_for_any_rows_tokens_and_workers(level: str, format_name: str) -> None:
    for columns in column_counts(format_name):
        x = activations(max(TOKENS), columns)
        for rows in MATRIX_ROWS:
            stored = random_rows(format_name, rows, columns)
            packed, memory = pack(level, format_name, stored, columns, workers=rows % 3 + 1)
            generator = np.random.default_rng(rows)
            bias = generator.standard_normal(rows).astype(np.float32)
            residual = generator.standard_normal((max(TOKENS), rows)).astype(np.float32)
            plain = twin(format_name)(format_name, stored, x)
            for tokens in TOKENS:
                some, more = x[:tokens], residual[:tokens]
                same(linear(level, format_name, packed, rows, some, workers=1), plain[:tokens])
                same(linear(level, format_name, packed, rows, some, bias, workers=2), plain[:tokens] + bias)
                same(linear(level, format_name, packed, rows, some, None, more, workers=3), plain[:tokens] + more)
                same(linear(level, format_name, packed, rows, some, bias, more, workers=4), plain[:tokens] + bias + more)
            memory.check()


@pytest.mark.parametrize(("level", "format_name"), levels_and_formats(("Q4_K", "Q6_K", "Q8_0")))
def test_more_rows_and_row_tiles_than_pass_at_once(level: str, format_name: str) -> None:
    """More row tiles than `ROW_TILES_IN_CACHE`, more tiles of tokens than `matrices.TOKEN_TILES`, the last not full; workers share columns or rows."""
    rows, tokens, columns = 300, 150, 256
    stored, x = random_rows(format_name, rows, columns), activations(tokens, columns)
    packed, memory = pack(level, format_name, stored, columns, 2)
    residual = np.random.default_rng(1).standard_normal((tokens, rows)).astype(np.float32)
    plain = twin(format_name)(format_name, stored, x)
    same(linear(level, format_name, packed, rows, x), plain)
    same(linear(level, format_name, packed, rows, x, residual=residual, workers=2), plain + residual)
    same(linear(level, format_name, packed, rows, x, residual[0, :], residual, workers=3, row_blocks=3), plain + residual[0] + residual)
    memory.check()


@pytest.mark.parametrize(("level", "format_name"), levels_and_formats(FORMATS))
def test_extreme_blocks_equal_the_twin(level: str, format_name: str) -> None:
    """All codes at their ends with activations of +-127 (no sum overflows), scales that are zero, negative, subnormal and the largest halves."""
    for seed in range(3):
        columns = column_counts(format_name)[-1]
        stored = extreme_rows(format_name, 33, columns, seed)
        packed, memory = pack(level, format_name, stored, columns, 2)
        x = activations(17, columns).copy()
        x[:4] = np.array([1.0, -1.0, 0.0, 2.0**-90])[:, None]
        x[4, ::2] *= -1
        expected = twin(format_name)(format_name, stored, x)
        assert np.isfinite(expected).all()
        for tokens in (1, 8, 17):
            same(linear(level, format_name, packed, 33, x[:tokens]), expected[:tokens])
        memory.check()


@pytest.mark.parametrize("format_name", QUANTIZED)
def test_parts_of_a_weight_are_what_its_format_decodes(format_name: str) -> None:
    for stored in (random_rows(format_name, 17, 768), extreme_rows(format_name, 17, 768)):
        parts = reference_linear.weight_parts(format_name, stored)
        factor = np.repeat(parts.scale[..., None], 2, axis=2) * (1 if parts.sub_scales is None else parts.sub_scales.astype(np.float32))
        values = np.repeat(factor, 16, axis=2) * parts.codes.astype(np.float32)
        values = values if parts.minimum is None else values + parts.minimum[..., None]
        np.testing.assert_array_equal(values.reshape(17, 768), format_by_name(format_name).decode_rows(stored))


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_twin_is_close_to_float64(format_name: str) -> None:
    """The relative error, of the norm of a row of outputs over that of |x| |w|, of dequantized weights and quantized activations: float32 sums alone."""
    for stored in (random_rows(format_name, 50, 768), extreme_rows(format_name, 50, 768)):
        x = activations(9, 768)
        weights = format_by_name(format_name).decode_rows(stored).astype(np.float64)
        seen = x.astype(np.float64)
        if format_by_name(format_name).quantized:
            codes, scales = reference.quantize_values(x)
            seen = (codes * scales[..., None].astype(np.float64)).reshape(9, 768)
        computed = twin(format_name)(format_name, stored, x)
        size = np.abs(seen) @ np.abs(weights).T
        error = np.abs(computed - seen @ weights.T)
        assert (error <= 2e-6 * size + 1e-30).all(), (error / np.maximum(size, 1e-30)).max()
        # int8 activations with a scale per 32: half a step of 1/127 of the block's largest value
        whole = np.linalg.norm(computed - x.astype(np.float64) @ weights.T, axis=1) / np.linalg.norm(np.abs(x.astype(np.float64)) @ np.abs(weights).T, axis=1)
        assert whole.max() < 2e-3, whole.max()


INSTRUCTIONS = {
    "x86_amx": "vpdpbusd", "x86_avx512vnni": "vpdpbusd", "x86_cascadelake": "vpdpbusd", "x86_avxvnni": "vpdpbusd", "x86_avx2": "vpmaddubsw", "arm_i8mm": "sdot",
    "arm_dotprod": "sdot", "arm_neon": "smull",
}  # fmt: skip


@pytest.mark.parametrize("level", sorted(INSTRUCTIONS))
def test_linear_uses_the_dot_product_of_the_level_and_calls_nothing(level: str) -> None:
    from kernels_numba.executor.compile import assembly
    from kernels_numba.ops.tags import resolve_tag

    text = assembly(level_by_name(level), "kernel", linear_kernel, (resolve_tag("Q4_0"),))
    words = text.split()
    assert ("tdpbssd" in words) == (level == "x86_amx")
    assert any(word.startswith(INSTRUCTIONS[level]) for word in words)
    assert not {"call", "callq", "bl", "blr"} & set(words)



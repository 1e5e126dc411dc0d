"""Block matrices hold what the formats store: exactly, or with a bounded error where a format has no form in ONNX."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.onnx import matrices
from edgeinfer.backends.onnx.matrices import block_matrix, decoded, held_matrix, is_exact, matrix_form
from kernels_numba.formats import all_formats, format_by_name

QUANTIZED = [name for name, stored in all_formats().items() if stored.quantized]


def _rows(format_name: str, rows: int = 5, columns: int = 512) -> np.ndarray:
    values = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    values[1] = 0
    values[2] += 3  # far from zero: the minimum matters
    return format_by_name(format_name).encode_rows(values)


@pytest.mark.parametrize("format_name", QUANTIZED)
def test_a_block_matrix_is_what_the_format_decodes(format_name: str) -> None:
    rows = _rows(format_name)
    expected = format_by_name(format_name).decode_rows(rows)
    matrix = block_matrix(format_name, rows)
    largest = np.abs(expected).max(axis=1, keepdims=True)
    bound = 3e-7 if is_exact(format_name) else 0.5 / 127 * 1.001
    assert (np.abs(decoded(matrix) - expected) <= bound * largest).all()
    assert matrix.form == matrix_form(format_name) and (matrix.offsets is not None) == matrix.form.has_offsets


@pytest.mark.parametrize("format_name", QUANTIZED)
def test_random_bytes_are_held_too(format_name: str) -> None:
    stored = format_by_name(format_name)
    rows = np.random.default_rng(2).integers(0, 256, (4, 2 * stored.block_bytes), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        expected = stored.decode_rows(rows)
    fine = np.isfinite(expected).all(axis=1)  # random float16 scales may be no numbers
    assert fine.any()
    found = decoded(block_matrix(format_name, rows[fine]))
    largest = np.abs(expected[fine]).max(axis=1, keepdims=True)
    assert (np.abs(found - expected[fine]) <= (1e-6 if is_exact(format_name) else 0.5 / 127 * 1.001) * largest).all()


def test_a_format_without_a_form_is_requantized(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows("Q5_1")
    monkeypatch.setattr(matrices, "_DIRECT", {})
    assert not is_exact("Q5_1")
    expected = format_by_name("Q5_1").decode_rows(rows)
    error = np.abs(decoded(block_matrix("Q5_1", rows)) - expected).reshape(5, -1, 32)
    assert (error.max(axis=2) <= np.abs(expected).reshape(5, -1, 32).max(axis=2) * 0.5 / 127 * 1.001).all()
    assert error[1].max() == 0


def test_matrices_of_one_form_are_held_together_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "_CHUNK_ELEMENTS", 1024)  # two rows at a time
    first, second = _rows("Q5_0"), _rows("Q8_0", rows=3)
    held = held_matrix([("Q5_0", first), ("Q8_0", second)], 512)
    expected = [block_matrix("Q5_0", first), block_matrix("Q8_0", second)]
    assert np.array_equal(held.codes, np.concatenate([part.codes for part in expected]))
    assert np.array_equal(held.scales, np.concatenate([part.scales for part in expected])) and held.offsets is None
    four = held_matrix([("Q4_1", _rows("Q4_1"))], 512)
    codes = block_matrix("Q4_1", _rows("Q4_1")).codes
    assert np.array_equal(four.codes & 15, codes[:, 0::2]) and np.array_equal(four.codes >> 4, codes[:, 1::2])

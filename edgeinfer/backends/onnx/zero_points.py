"""Formats with a minimum as codes of 8 bits around a zero point, which ONNX Runtime multiplies without a second product for the minimum. Called by the
dialect `cpu` for sessions of our own.

A stored weight is d * q + m with few levels q, and 8 bits have room for multiples of it: with codes k * q the step is d / k, and the zero point -m * k / d is
rounded to a whole number. k is the one of several multiples for which that rounds least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeinfer.backends.onnx.matrices import BlockMatrix, Codes, Floats, MatrixForm, block_matrix, matrix_form
from edgeinfer.model.program import Program
from kernels_numba.formats import format_by_name

WIDENED_ELEMENTS = 256_000_000
"""Weights of 4 bits with a minimum that a model may have for all of them to be held with 8 bits instead. Such a model gains a fifth in prefill, and the
nodes that it saves weigh more in decoding than the bytes; a larger one would be decoded at the speed of its bytes, and take twice the memory."""

_CHUNK_ELEMENTS = 1 << 19
_LARGEST_CODE = 255


@dataclass(frozen=True)
class ZeroPointMatrix:
    """w[n, k] = scales[n, b] * (codes[n, k] - zero_points[n, b]), with b = k // 32. codes uint8[rows, columns], the others [rows, columns / 32]."""

    codes: Codes
    scales: Floats
    zero_points: Codes


def widens(program: Program) -> bool:
    """Whether the program's matrices of 4 bits with a minimum are few enough to be held with 8."""
    weights = {operation.weights[0].name: operation.weights[0] for operation in program.operations if operation.kind == "linear"}
    narrow = [
        weight.shape[0] * weight.shape[1]
        for weight in weights.values()
        if format_by_name(weight.format_name).quantized and matrix_form(weight.format_name) == MatrixForm(4, 32, True)
    ]
    return sum(narrow) <= WIDENED_ELEMENTS


def takes_zero_points(form: MatrixForm, widened: bool) -> bool:
    """Whether a session holds matrices of this form with zero points: all with a minimum and 8 bits, those of 4 bits where they are widened."""
    return form.has_offsets and (form.bits == 8 or widened)


def zero_point_matrix(sources: Sequence[tuple[str, Codes]], columns: int) -> ZeroPointMatrix:
    """Stored rows, (format name, uint8[rows, row bytes]) each, one below the other, a few at a time.

    A block's minimum changes by half a step at most, and a step is at most 2 / 255 of the largest magnitude that the block's levels can express, or of the
    distance between the outermost levels, if that is more. Scales are not finite where those of the file are not.
    """
    total = sum(len(rows) for _, rows in sources)
    result = ZeroPointMatrix(
        np.empty((total, columns), np.uint8), np.empty((total, columns // 32), np.float32), np.empty((total, columns // 32), np.uint8)
    )
    at, step = 0, max(1, _CHUNK_ELEMENTS // columns)
    for format_name, rows in sources:
        for start in range(0, len(rows), step):
            part = _with_zero_points(block_matrix(format_name, rows[start : start + step]))
            here = slice(at, at + len(part.codes))
            result.codes[here], result.scales[here], result.zero_points[here] = part.codes, part.scales, part.zero_points
            at = here.stop
    return result


def _with_zero_points(matrix: BlockMatrix) -> ZeroPointMatrix:
    assert matrix.offsets is not None
    rows, blocks = matrix.scales.shape
    outermost, middle = (15, 8) if matrix.form.bits == 4 else (31, 16)
    levels = matrix.codes.reshape(rows, blocks, 32) - np.uint8(2 ** (matrix.form.bits - 1) - middle)
    step = matrix.scales
    minimum = matrix.offsets - np.float32(middle) * step
    with np.errstate(all="ignore"):
        zero = -minimum / step  # in levels
        # with multiples up to this one, codes and zero point are at most 255, after a shift for a zero below the levels
        most = np.floor(np.float32(_LARGEST_CODE) / np.maximum(np.maximum(zero, outermost - zero), np.float32(outermost)))
    most = np.nan_to_num(most, nan=0.0).astype(np.float32)
    multiple, error = most.copy(), np.full(most.shape, np.inf, np.float32)
    highest = _LARGEST_CODE // outermost
    with np.errstate(all="ignore"):
        for candidate in range(highest, highest // 2, -1):
            scaled = zero * np.float32(candidate)
            rounded = np.abs(scaled - np.rint(scaled)) / np.float32(candidate)
            better = (rounded < error) & (most >= candidate)
            multiple[better] = candidate
            error[better] = rounded[better]
        points = np.rint(zero * multiple)
        scales = step / multiple
    far = multiple < 1  # nearly constant blocks far from zero
    points[far], scales[far] = 0, 0
    shift = np.maximum(-points, 0).astype(np.uint8)
    codes = levels * multiple.astype(np.uint8)[..., np.newaxis] + shift[..., np.newaxis]
    points = np.maximum(points, 0).astype(np.uint8)
    if far.any():
        values = levels[far] * step[far][:, np.newaxis] + minimum[far][:, np.newaxis]
        scales[far] = np.abs(values).max(axis=1) / np.float32(127)
        divisors = np.where(scales[far] == 0, np.float32(1), scales[far])[:, np.newaxis]
        with np.errstate(invalid="ignore"):
            codes[far] = (np.rint(values / divisors) + 128).astype(np.uint8)
        points[far] = 128
    return ZeroPointMatrix(codes.reshape(rows, -1), scales.astype(np.float32, copy=False), points)

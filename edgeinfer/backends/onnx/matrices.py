"""How ONNX operators hold a weight: codes of 4 or 8 bits with a scale a block, and what a format's minimum leaves over. Only NumPy.

A format that has no form here is requantized to 8 bits, which is said in the warnings of whoever asks. Called by the emitters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format, format_by_name
from kernels_numba.formats.k_scales import sub_block_scales
from kernels_numba.formats.nibbles import half_column, split_bits, split_nibbles

Codes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Parts = tuple[Codes, Floats, Floats | None]


@dataclass(frozen=True)
class MatrixForm:
    """What two matrices must share so that one operator can hold both: bits of a code, elements of a block, and whether the minimum leaves a rest."""

    bits: int  # 4 | 8
    block: int  # 16 | 32
    has_offsets: bool


@dataclass(frozen=True)
class BlockMatrix:
    """A weight: w[n, k] = scales[n, b] * (codes[n, k] - 2 ** (bits - 1)) + offsets[n, b], with b = k // block.

    codes uint8[rows, columns], one a byte; scales float32[rows, columns / block]; offsets the same, or None where they would all be zero.
    The zero point is the one that operators take when none is given. A minimum is no whole number of scales, so it cannot be a zero point.
    """

    form: MatrixForm
    codes: Codes
    scales: Floats
    offsets: Floats | None


@dataclass(frozen=True)
class _Direct:
    """A format that ONNX holds without loss: `split` gives codes[n, elements], scales[n, blocks] and offsets of n stored blocks."""

    form: MatrixForm
    split: Callable[[Codes], Parts]


def _q4_0(blocks: Codes) -> Parts:
    return split_nibbles(blocks[:, 2:]), half_column(blocks, 0), None


def _q4_1(blocks: Codes) -> Parts:
    scale = half_column(blocks, 0)
    return split_nibbles(blocks[:, 4:]), scale, half_column(blocks, 2) + np.float32(8) * scale


def _q5_0(blocks: Codes) -> Parts:
    codes = split_nibbles(blocks[:, 6:]) | (split_bits(blocks[:, 2:6]) << np.uint8(4))
    return codes + np.uint8(112), half_column(blocks, 0), None


def _q5_1(blocks: Codes) -> Parts:
    codes = split_nibbles(blocks[:, 8:]) | (split_bits(blocks[:, 4:8]) << np.uint8(4))
    scale = half_column(blocks, 0)
    return codes + np.uint8(112), scale, half_column(blocks, 2) + np.float32(16) * scale


def _q8_0(blocks: Codes) -> Parts:
    return blocks[:, 2:] ^ np.uint8(0x80), half_column(blocks, 0), None


def _k_nibbles(packed: Codes) -> Codes:
    """uint8[n, 128] -> uint8[n, 8, 32]: of every 32 bytes the low nibbles are one sub-block and the high nibbles the next."""
    grouped = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([grouped & np.uint8(0x0F), grouped >> np.uint8(4)], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Codes) -> Parts:
    scale, minimum = (part[:, :, 0] for part in sub_block_scales(blocks))
    return _k_nibbles(blocks[:, 16:]).reshape(-1, 256), scale, np.float32(8) * scale - minimum


def _q5_k(blocks: Codes) -> Parts:
    scale, minimum = (part[:, :, 0] for part in sub_block_scales(blocks))
    fifth = (blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & np.uint8(1)
    codes = _k_nibbles(blocks[:, 48:]) | (fifth << np.uint8(4))
    return codes.reshape(-1, 256) + np.uint8(112), scale, np.float32(16) * scale - minimum


def _q6_k(blocks: Codes) -> Parts:
    low = (blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(0x0F)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & np.uint8(0x03)
    codes = low.reshape(-1, 256) | (high.reshape(-1, 256) << np.uint8(4))
    return codes + np.uint8(96), half_column(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32), None


_DIRECT: Mapping[str, _Direct] = {
    "Q4_0": _Direct(MatrixForm(4, 32, False), _q4_0),
    "Q4_1": _Direct(MatrixForm(4, 32, True), _q4_1),
    "Q5_0": _Direct(MatrixForm(8, 32, False), _q5_0),
    "Q5_1": _Direct(MatrixForm(8, 32, True), _q5_1),
    "Q8_0": _Direct(MatrixForm(8, 32, False), _q8_0),
    "Q4_K": _Direct(MatrixForm(4, 32, True), _q4_k),
    "Q5_K": _Direct(MatrixForm(8, 32, True), _q5_k),
    "Q6_K": _Direct(MatrixForm(8, 16, False), _q6_k),
}
_REQUANTIZED = MatrixForm(8, 32, False)
_CHUNK_ELEMENTS = 1 << 20


def matrix_form(format_name: str) -> MatrixForm:
    """How weights of a quantized format are held."""
    direct = _DIRECT.get(format_name)
    return _REQUANTIZED if direct is None else direct.form


def is_exact(format_name: str) -> bool:
    """Whether the weights are held without loss (not, where a format has to be requantized)."""
    return format_name in _DIRECT or not format_by_name(format_name).quantized


def block_matrix(format_name: str, rows: Codes) -> BlockMatrix:
    """uint8[rows, row bytes] of a quantized format as a block matrix."""
    stored = format_by_name(format_name)
    direct = _DIRECT.get(format_name)
    if direct is None:
        return _requantized(stored, rows)
    count = rows.shape[0]
    codes, scales, offsets = direct.split(np.ascontiguousarray(rows).reshape(-1, stored.block_bytes))
    return BlockMatrix(
        direct.form, np.ascontiguousarray(codes).reshape(count, -1), np.ascontiguousarray(scales).reshape(count, -1),
        None if offsets is None else np.ascontiguousarray(offsets).reshape(count, -1),
    )  # fmt: skip


def _requantized(stored: Format, rows: Codes) -> BlockMatrix:
    """8 bits for whatever the format holds: blocks of 32, the largest magnitude at 127."""
    values = stored.decode_rows(rows).reshape(rows.shape[0], -1, 32)
    scales = np.abs(values).max(axis=2) / np.float32(127)
    divisors = np.where(scales == 0, np.float32(1), scales)
    codes = (np.rint(values / divisors[:, :, np.newaxis]) + 128).astype(np.uint8)
    return BlockMatrix(_REQUANTIZED, codes.reshape(rows.shape[0], -1), scales, None)


def decoded(matrix: BlockMatrix) -> Floats:
    """float32[rows, columns]: the weights themselves, to compare with."""
    rows, blocks = matrix.scales.shape
    codes = matrix.codes.reshape(rows, blocks, matrix.form.block).astype(np.float32) - np.float32(2 ** (matrix.form.bits - 1))
    values = codes * matrix.scales[:, :, np.newaxis]
    if matrix.offsets is not None:
        values += matrix.offsets[:, :, np.newaxis]
    return values.reshape(rows, -1)


def pair_nibbles(codes: Codes) -> Codes:
    """uint8[..., m] of 4-bit codes -> uint8[..., m / 2]: element 2 j in the low half of byte j, 2 j + 1 in the high half, as ONNX packs 4 bits."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


@dataclass(frozen=True)
class HeldMatrix:
    """Block matrices one below the other, packed: codes uint8[rows, columns * bits / 8] (4 bits in pairs along a row), scales and offsets as above."""

    form: MatrixForm
    codes: Codes
    scales: Floats
    offsets: Floats | None


def held_matrix(sources: Sequence[tuple[str, Codes]], columns: int) -> HeldMatrix:
    """Packs stored rows, (format name, uint8[rows, row bytes]) each, that share a form. A few rows at a time, so that little more than the result is
    in memory."""
    form = matrix_form(sources[0][0])
    total = sum(len(rows) for _, rows in sources)
    codes = np.empty((total, columns * form.bits // 8), np.uint8)
    scales = np.empty((total, columns // form.block), np.float32)
    offsets = np.empty_like(scales) if form.has_offsets else None
    at = 0
    step = max(1, _CHUNK_ELEMENTS // columns)
    for format_name, rows in sources:
        for start in range(0, len(rows), step):
            part = block_matrix(format_name, rows[start : start + step])
            here = slice(at, at + len(part.codes))
            codes[here] = pair_nibbles(part.codes) if form.bits == 4 else part.codes
            scales[here] = part.scales
            if offsets is not None:
                offsets[here] = part.offsets
            at = here.stop
    return HeldMatrix(form, codes, scales, offsets)

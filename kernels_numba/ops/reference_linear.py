"""The naive NumPy twins of the kernels that read weights: `linear`, `linear_float`, `embedding`. Beside `reference`, whose rules hold here too.

A weight's integer codes, scales and minima are taken from the file's blocks, not from the packed form: `weight_parts` knows each quantized format, and a
test holds it against the format's own `decode`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import format_by_name
from kernels_numba.formats.k_scales import sub_block_scales
from kernels_numba.formats.nibbles import half_column, split_bits, split_nibbles
from kernels_numba.ops.reference import F32, GROUP, Floats, fma, quantize_values

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int32]


@dataclass(frozen=True)
class WeightParts:
    """Per group of 32 columns: codes int32[..., groups, 32], scale float32[..., groups]; an element is scale * sub_scale * code + minimum.

    `sub_scales` int32[..., groups, 2] multiply columns 0-15 and 16-31 (None: 1); `minimum` float32[..., groups] (None: there is none).
    """

    codes: Integers
    scale: Floats
    minimum: Floats | None = None
    sub_scales: Integers | None = None


def _groups(codes: NDArray[np.generic], zero: int, scale: Floats, minimum: Floats | None = None) -> WeightParts:
    return WeightParts(codes.astype(np.int32).reshape(-1, GROUP) - np.int32(zero), scale.reshape(-1), None if minimum is None else minimum.reshape(-1))


def _five_bits(blocks: Bytes, at: int) -> Bytes:
    return split_nibbles(blocks[:, at + 4 :]) | (split_bits(blocks[:, at : at + 4]) << np.uint8(4))


def _k_nibbles(packed: Bytes) -> Bytes:
    """uint8[n, 128] -> uint8[n, 8, 32]: of every 32 bytes the low nibbles, then the high ones."""
    rows = packed.reshape(-1, 4, 32)
    return np.stack([rows & np.uint8(15), rows >> np.uint8(4)], axis=2).reshape(-1, 8, 32)


def _q5_k(blocks: Bytes) -> WeightParts:
    upper = split_bits(blocks[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1)
    scale, minimum = sub_block_scales(blocks)
    return _groups(_k_nibbles(blocks[:, 48:]) | (upper << np.uint8(4)), 0, scale, -minimum)


def _q4_k(blocks: Bytes) -> WeightParts:
    scale, minimum = sub_block_scales(blocks)
    return _groups(_k_nibbles(blocks[:, 16:]), 0, scale, -minimum)


def _q6_k(blocks: Bytes) -> WeightParts:
    codes = np.empty((len(blocks), 256), np.int32)
    for half in range(2):
        low = blocks[:, 64 * half : 64 * half + 64]
        pairs = blocks[:, 128 + 32 * half : 160 + 32 * half]
        for part in range(4):
            nibble = low[:, 32 * (part % 2) : 32 * (part % 2) + 32] >> np.uint8(4 * (part // 2)) & np.uint8(15)
            codes[:, 128 * half + 32 * part : 128 * half + 32 * part + 32] = nibble | ((pairs >> np.uint8(2 * part) & np.uint8(3)) << np.uint8(4))
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.int32).reshape(-1, 2)
    return WeightParts(codes.reshape(-1, GROUP) - np.int32(32), np.repeat(half_column(blocks, 208)[:, 0], 8), None, scales)


_PARTS: dict[str, Callable[[Bytes], WeightParts]] = {
    "Q4_0": lambda blocks: _groups(split_nibbles(blocks[:, 2:]), 8, half_column(blocks, 0)),
    "Q4_1": lambda blocks: _groups(split_nibbles(blocks[:, 4:]), 0, half_column(blocks, 0), half_column(blocks, 2)),
    "Q5_0": lambda blocks: _groups(_five_bits(blocks, 2), 16, half_column(blocks, 0)),
    "Q5_1": lambda blocks: _groups(_five_bits(blocks, 4), 0, half_column(blocks, 0), half_column(blocks, 2)),
    "Q8_0": lambda blocks: _groups(blocks[:, 2:].view(np.int8), 0, half_column(blocks, 0)),
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def weight_parts(format_name: str, rows: Bytes) -> WeightParts:
    """uint8[rows, row_bytes] as in the file -> its parts with the leading axes [rows, groups]. A KeyError for a format whose parts are not described."""
    parts = _PARTS[format_name](np.ascontiguousarray(rows).reshape(-1, format_by_name(format_name).block_bytes))

    def by_row(array: NDArray[np.generic] | None) -> NDArray[np.generic] | None:
        return None if array is None else array.reshape(len(rows), -1, *array.shape[1:])

    return WeightParts(*(by_row(array) for array in (parts.codes, parts.scale, parts.minimum, parts.sub_scales)))  # type: ignore[arg-type]


def linear(format_name: str, rows: Bytes, x: Floats, bias: Floats | None = None, residual: Floats | None = None) -> Floats:
    """Weights as in the file uint8[rows, row_bytes], x float32[tokens, columns] (quantized here) -> float32[tokens, rows].

    Per group: fma(dot, scale * activation scale, total), then fma(minimum, activation scale * sum of activation codes, total).
    """
    weight = weight_parts(format_name, rows)
    codes, scales = quantize_values(x)
    wide = codes.astype(np.int64)
    total = np.zeros((len(x), len(rows)), F32)
    with np.errstate(all="ignore"):
        for group in range(scales.shape[1]):
            products = wide[:, None, group] * weight.codes[None, :, group]
            dot = products.sum(axis=2)
            if weight.sub_scales is not None:
                dot = (products.reshape(*products.shape[:2], 2, 16).sum(axis=3) * weight.sub_scales[None, :, group]).sum(axis=2)
            assert np.abs(dot).max() < 1 << 31
            total = fma(dot.astype(F32), weight.scale[None, :, group] * scales[:, None, group], total)
            if weight.minimum is not None:
                scaled_sum = scales[:, group] * wide[:, group].sum(axis=1).astype(F32)
                total = fma(weight.minimum[None, :, group], scaled_sum[:, None], total)
    return _finish(total, bias, residual)


def linear_float(format_name: str, rows: Bytes, x: Floats, bias: Floats | None = None, residual: Floats | None = None) -> Floats:
    """The same for a float format and float32 activations: one chain of fma over ascending columns."""
    weight = format_by_name(format_name).decode_rows(rows)
    total = np.zeros((len(x), len(rows)), F32)
    for column in range(weight.shape[1]):
        total = fma(weight[None, :, column], x[:, None, column], total)
    return _finish(total, bias, residual)


def _finish(total: Floats, bias: Floats | None, residual: Floats | None) -> Floats:
    total = total + (F32(0) if bias is None else bias)
    return total if residual is None else total + residual


def embedding(format_name: str, rows: Bytes, token_ids: NDArray[np.int32], factor: float) -> Floats:
    """float32[tokens, columns]: rows of the table as the format decodes them, times `factor` rounded to float32."""
    return format_by_name(format_name).decode_rows(rows[token_ids]) * F32(factor)


def bounds(rows: Bytes, x: Floats) -> Floats:
    """Of Q8_0 weights as in the file uint8[rows, row_bytes]: what the upper five bits of their codes (value + 128) say that the logits can be at most.

    Per group: fma(8 * sum(upper * code) + 7 * sum(positive codes) - 128 * sum(codes), weight scale * activation scale, total); NaN from 2^64 on for the latter.
    """
    weight = weight_parts("Q8_0", rows)
    codes, scales = quantize_values(x)
    wide = codes.astype(np.int64)
    upper = (weight.codes.astype(np.int64) + 128) >> 3
    total = np.zeros((len(x), len(rows)), F32)
    with np.errstate(all="ignore"):
        scales = np.where(scales < F32(2.0**64), scales, F32(np.nan))
        for group in range(scales.shape[1]):
            code = wide[:, group]
            excess = 7 * np.maximum(code, 0).sum(axis=1) - 128 * code.sum(axis=1)
            dot = 8 * (code @ upper[:, group].T) + excess[:, None]
            total = fma(dot.astype(F32), weight.scale[None, :, group] * scales[:, None, group], total)
    return _finish(total, None, None)

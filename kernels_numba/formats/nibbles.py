"""The bit packing and the rounding that the formats with blocks of 32 share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def split_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8[n, m] -> uint8[n, 2 m]: all low nibbles first, then all high nibbles, which is the element order of a block."""
    return np.concatenate([packed & np.uint8(0x0F), packed >> np.uint8(4)], axis=1)


def join_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `split_nibbles`; bits above the fourth are dropped."""
    half = codes.shape[1] // 2
    return (codes[:, :half] & np.uint8(0x0F)) | (codes[:, half:] << np.uint8(4))


def split_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8[n, m] -> uint8[n, 8 m] of zeros and ones, the lowest bit of a byte first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def join_bits(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `split_bits`."""
    return np.packbits(bits, axis=1, bitorder="little")


def half_column(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """The float16 at byte `at` of every block, as float32[n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def half_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """float32[n, 1] -> the bytes of its float16, uint8[n, 2]."""
    return values.astype(np.float16).view(np.uint8)


def reciprocal(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale, and 0 where the scale is 0 (a block of zeros)."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def signed_scale(values: NDArray[np.float32], highest_magnitude: int) -> NDArray[np.float32]:
    """float32[n, k] -> float32[n, 1]: the scale that maps the value of largest magnitude, with its sign, to -highest_magnitude."""
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    return largest / np.float32(-highest_magnitude)


def truncated_codes(scaled: NDArray[np.float32], offset: float, highest_code: int) -> NDArray[np.uint8]:
    """floor(scaled + offset) for the non-negative sums that quantizing yields, limited to 0 ... highest_code (GGML rounds its codes this way)."""
    return np.trunc(scaled + np.float32(offset)).astype(np.uint8).clip(0, highest_code)

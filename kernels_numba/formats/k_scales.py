"""What Q4_K and Q5_K share: a float16 scale and minimum a block of 256, and eight 6-bit scales and minima packed into twelve bytes.

Bytes 0-3 hold the low six bits of scales 0-3, bytes 4-7 those of minima 0-3; their two upper bits are the upper bits of scales and minima 4-7, whose
lower four bits share bytes 8-11 (scale in the low nibble). See `get_scale_min_k4` in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats.nibbles import half_bytes, half_column, reciprocal

SUB_BLOCKS = 8
SUB_BLOCK_ELEMENTS = 32


def unpack_scales(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """uint8[n, 12] -> (scales uint8[n, 8], minima uint8[n, 8]), each value in 0 ... 63."""
    scales, minima, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    return (
        np.concatenate([scales & 0x3F, (rest & 0x0F) | ((scales >> 2) & 0x30)], axis=1),
        np.concatenate([minima & 0x3F, (rest >> 4) | ((minima >> 2) & 0x30)], axis=1),
    )


def pack_scales(scales: NDArray[np.uint8], minima: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `unpack_scales`."""
    return np.concatenate(
        [
            scales[:, :4] | ((scales[:, 4:] & 0x30) << 2),
            minima[:, :4] | ((minima[:, 4:] & 0x30) << 2),
            (scales[:, 4:] & 0x0F) | ((minima[:, 4:] & 0x0F) << 4),
        ],
        axis=1,
    )


def sub_block_scales(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The first 16 bytes of each block -> (scale float32[n, 8, 1], minimum float32[n, 8, 1]); an element is scale * code - minimum."""
    scales, minima = unpack_scales(blocks[:, 4:16])
    scale = half_column(blocks, 0) * scales.astype(np.float32)
    minimum = half_column(blocks, 2) * minima.astype(np.float32)
    return scale[:, :, np.newaxis], minimum[:, :, np.newaxis]


def encode_sub_blocks(values: NDArray[np.float32], highest_code: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """float32[n, 256] -> (the first 16 bytes uint8[n, 16], codes uint8[n, 8, 32]).

    Each sub-block spans from its minimum (or 0, if that is lower: the stored minima cannot be positive) to its maximum; the codes are chosen for the
    scales as they are after their own rounding.
    """
    grouped = values.reshape(-1, SUB_BLOCKS, SUB_BLOCK_ELEMENTS)
    lowest = np.minimum(grouped.min(axis=2), np.float32(0))
    scale = (grouped.max(axis=2).clip(0) - lowest) / np.float32(highest_code)
    block_scale = (scale.max(axis=1, keepdims=True) / np.float32(63)).astype(np.float16).astype(np.float32)
    block_minimum = (-lowest.min(axis=1, keepdims=True) / np.float32(63)).astype(np.float16).astype(np.float32)
    scales = np.rint(scale * reciprocal(block_scale)).clip(0, 63).astype(np.uint8)
    minima = np.rint(-lowest * reciprocal(block_minimum)).clip(0, 63).astype(np.uint8)
    head = np.concatenate([half_bytes(block_scale), half_bytes(block_minimum), pack_scales(scales, minima)], axis=1)
    stored_scale, stored_minimum = sub_block_scales(head)
    codes = np.rint((grouped + stored_minimum) * reciprocal(stored_scale)).clip(0, highest_code).astype(np.uint8)
    return head, codes

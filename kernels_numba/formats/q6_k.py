"""Q6_K: 256 elements in 210 bytes, in sixteen sub-blocks of 16. 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, float16 scale;
block scale * sub-block scale * (code - 32).

The block is two halves of 128 elements. In a half, the 64 low bytes hold elements 0-63 in their low and 64-127 in their high nibbles, and bits 2g, 2g+1
of upper byte e belong to element 32 g + e.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import half_bytes, half_column, reciprocal, signed_scale

_NIBBLE_SHIFT = np.array([0, 4], dtype=np.uint8).reshape(1, 1, 2, 1)
_PAIR_SHIFT = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    low = (blocks[:, :128].reshape(-1, 2, 1, 64) >> _NIBBLE_SHIFT) & np.uint8(0x0F)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIR_SHIFT) & np.uint8(0x03)
    codes = low.reshape(-1, 16, 16) | (high.reshape(-1, 16, 16) << np.uint8(4))
    scale = half_column(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[:, :, np.newaxis] * (codes.view(np.int8) - np.int8(32)).astype(np.float32)).reshape(-1, 256)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    grouped = values.reshape(-1, 16, 16)
    wanted = signed_scale(values.reshape(-1, 16), 32).reshape(-1, 16)
    block_scale = (np.abs(wanted).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    scales = np.rint(wanted * reciprocal(block_scale)).clip(-128, 127).astype(np.int8)
    stored = block_scale * scales.astype(np.float32)
    codes = (np.rint(grouped * reciprocal(stored)[:, :, np.newaxis]).clip(-32, 31) + 32).astype(np.uint8)
    halves = codes.reshape(-1, 2, 2, 64) & np.uint8(0x0F)
    low = halves[:, :, 0] | (halves[:, :, 1] << np.uint8(4))
    high = np.bitwise_or.reduce((codes.reshape(-1, 2, 4, 32) >> np.uint8(4)) << _PAIR_SHIFT, axis=2)
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), scales.view(np.uint8), half_bytes(block_scale)], axis=1)


FORMAT = Format(
    name="Q6_K", ggml_type=14, block_elements=256, block_bytes=210, quantized=True, has_minimum=False, elements_per_scale=16,
    lowest_code=-32, highest_code=31, decode=decode, encode=encode,
)  # fmt: skip

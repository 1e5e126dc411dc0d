"""Q6_K: 256 elements in 210 bytes, in sixteen sub-blocks of 16. 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, float16 scale;
block scale * sub-block scale * (code - 32).

The block is two halves of 128 elements. In a half, the 64 low bytes hold elements 0-63 in their low and 64-127 in their high nibbles, and bits 2g, 2g+1
of upper byte e belong to element 32 g + e.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import half_bytes, half_column, reciprocal, signed_scale
from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.nibbles import pack_half, unpack_nibbles
from kernels_numba.simd.function import Constant, kernel_function

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


# Packed header: float16 scale[16], 32 bytes unused, then for each group int8 scale[16] of its columns 0-15 and of its columns 16-31.
# Packed codes of a group: two vectors of upper bit pairs (vector h, pair v: columns 16 h + 4 v ...), then 256 bytes of nibbles.


@kernel_function
def upper_pair(simd: Any, pairs: Any, pair: int) -> Any:
    """Bit pair `pair` of every byte, moved to bits 4 and 5."""
    words = simd.as_i32x16(pairs)
    mask = simd.splat_i8(48)
    if pair < 2:
        return simd.as_i8x64(words << (4 - 2 * pair)) & mask
    return simd.as_i8x64(words >> (2 * pair - 4)) & mask


@kernel_function
def unpack(simd: Any, data: int, width: Constant) -> Any:
    low = simd.load_i8x64(data)
    high = simd.load_i8x64(data + 64)
    a, b, c, d, e, f, g, h = unpack_nibbles(simd, data + 128, width)
    return (
        a | upper_pair(simd, low, 0), b | upper_pair(simd, low, 1), c | upper_pair(simd, low, 2), d | upper_pair(simd, low, 3),
        e | upper_pair(simd, high, 0), f | upper_pair(simd, high, 1), g | upper_pair(simd, high, 2), h | upper_pair(simd, high, 3),
    )  # fmt: skip


@kernel_function
def block_scale(simd: Any, header: int, slot: int) -> Any:
    return simd.load_f16x16(header)


@kernel_function
def low_scale(simd: Any, header: int, slot: int) -> Any:
    return simd.sign_extend_i8(simd.load_i8x16(header + 64 + 32 * slot))


@kernel_function
def high_scale(simd: Any, header: int, slot: int) -> Any:
    return simd.sign_extend_i8(simd.load_i8x16(header + 80 + 32 * slot))


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, lane: int) -> None:
    pack_half(simd, block + 208, record + 2 * lane)
    for group in range(8):
        simd.store_u8(record + 64 + 32 * group + lane, simd.load_u8(block + 192 + 2 * group))
        simd.store_u8(record + 80 + 32 * group + lane, simd.load_u8(block + 193 + 2 * group))
        half = group // 4
        part = group % 4
        nibbles = block + 64 * half + 32 * (part % 2)
        pairs = block + 128 + 32 * half
        shift = 4 * (part // 2)
        data = record + 320 + 384 * group
        for side in range(2):
            word = 0
            for vector in range(4):
                word |= ((simd.load_u32(pairs + 16 * side + 4 * vector) >> (2 * part)) & 0x03030303) << (2 * vector)
            simd.store_i32(data + 64 * side + 4 * lane, word)
        for vector in range(4):
            low = (simd.load_u32(nibbles + 4 * vector) >> shift) & 0x0F0F0F0F
            high = (simd.load_u32(nibbles + 16 + 4 * vector) >> shift) & 0x0F0F0F0F
            simd.store_i32(data + 128 + 64 * vector + 4 * lane, low | (high << 4))


PACKED = PackedLayout(
    groups_per_record=8, header_bytes=320, data_bytes=384, zero_shift=5, unpack=unpack, scale=block_scale, low_scale=low_scale, high_scale=high_scale,
    pack=pack,
)  # fmt: skip

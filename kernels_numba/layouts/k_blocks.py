"""Kernel functions that Q4_K and Q5_K share: the packed header of a block of 256 columns. Called by their files in `formats`.

Header: float16 scale[16], float16 minimum scale[16], then for each of the 8 groups uint8 scale[16], uint8 minimum[16].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.simd.function import kernel_function


@kernel_function
def k_scale(simd: Any, header: int, slot: int) -> Any:
    return simd.load_f16x16(header) * simd.f32_from_i32(simd.zero_extend_i8(simd.load_i8x16(header + 64 + 32 * slot)))


@kernel_function
def k_minimum(simd: Any, header: int, slot: int) -> Any:
    """Minus the product, because an element is scale * code - minimum; -0.0 - x negates a zero too."""
    product = simd.load_f16x16(header + 32) * simd.f32_from_i32(simd.zero_extend_i8(simd.load_i8x16(header + 80 + 32 * slot)))
    return simd.splat_f32(np.float32(-0.0)) - product


@kernel_function
def pack_k_header(simd: Any, block: int, header: int, lane: int) -> None:
    """The 16 bytes at a block's start: two half floats and 12 bytes of 6-bit scales and minima."""
    simd.store_u16(header + 2 * lane, simd.load_u16(block))
    simd.store_u16(header + 32 + 2 * lane, simd.load_u16(block + 2))
    for group in range(8):
        if group < 4:
            scale = simd.load_u8(block + 4 + group) & 63
            minimum = simd.load_u8(block + 8 + group) & 63
        else:
            tail = simd.load_u8(block + 8 + group)
            scale = (tail & 15) | ((simd.load_u8(block + group) >> 6) << 4)
            minimum = (tail >> 4) | ((simd.load_u8(block + 4 + group) >> 6) << 4)
        simd.store_u8(header + 64 + 32 * group + lane, scale)
        simd.store_u8(header + 80 + 32 * group + lane, minimum)


@kernel_function
def pack_k_nibbles(simd: Any, codes: int, destination: int, group: int, lane: int) -> None:
    """Of 128 bytes in which 32 bytes hold an even group in their low and the next group in their high nibbles: one group."""
    source = codes + 32 * (group // 2)
    shift = 4 * (group % 2)
    for vector in range(4):
        low = (simd.load_u32(source + 4 * vector) >> shift) & 0x0F0F0F0F
        high = (simd.load_u32(source + 16 + 4 * vector) >> shift) & 0x0F0F0F0F
        simd.store_i32(destination + 64 * vector + 4 * lane, low | (high << 4))

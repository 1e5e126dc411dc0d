"""Q8_0 in two planes: the upper five bits of all codes, then the lower three. A pass over the upper plane bounds what whole codes would give (`ops.screen`);
whole codes have the bits of the plain form, and take the same memory.

A code is value + 128 = 8 * upper + lower. The upper plane has the records of Q5_0. Of a group the lower plane has 3 vectors of 64 bytes, in byte 4 * row + i of
which the bits of columns 4 * v + i lie for the code vectors v: vector k has vector 2k in bits 0 to 2, vector 2k + 1 in bits 3 to 5, and in bits 6 and 7 bit k
of the vectors 6 and 7.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.nibbles import half_scale, pack_half, unpack_five_bits
from kernels_numba.simd.function import kernel_function


@kernel_function
def bits_at(simd: Any, words: Any, shift: int, mask: int) -> Any:
    """The bits of `mask` in every byte, after all were moved down by `shift`."""
    return simd.as_i8x64(words >> shift) & simd.splat_i8(mask)


@kernel_function
def raised(simd: Any, codes: Any) -> Any:
    """8 * code, of codes below 32: nothing crosses from a byte to the next."""
    return simd.as_i8x64(simd.as_i32x16(codes) << 3)


@kernel_function
def join(simd: Any, codes: Any, low: int) -> Any:
    """8 vectors of upper codes and the 192 bytes of lower ones -> 8 vectors of whole codes."""
    a = simd.as_i32x16(simd.load_i8x64(low))
    b = simd.as_i32x16(simd.load_i8x64(low + 64))
    c = simd.as_i32x16(simd.load_i8x64(low + 128))
    return (
        raised(simd, codes[0]) | bits_at(simd, a, 0, 7), raised(simd, codes[1]) | bits_at(simd, a, 3, 7),
        raised(simd, codes[2]) | bits_at(simd, b, 0, 7), raised(simd, codes[3]) | bits_at(simd, b, 3, 7),
        raised(simd, codes[4]) | bits_at(simd, c, 0, 7), raised(simd, codes[5]) | bits_at(simd, c, 3, 7),
        raised(simd, codes[6]) | bits_at(simd, a, 6, 1) | bits_at(simd, b, 5, 2) | bits_at(simd, c, 4, 4),
        raised(simd, codes[7]) | bits_at(simd, a, 7, 1) | bits_at(simd, b, 6, 2) | bits_at(simd, c, 5, 4),
    )  # fmt: skip


@kernel_function
def code_word(simd: Any, block: int, vector: int) -> int:
    """The codes of columns 4 * vector to 4 * vector + 3 of a block of the file."""
    return simd.load_u32(block + 2 + 4 * vector) ^ 0x80808080


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, low: int, lane: int) -> None:
    pack_half(simd, block, record + 32 * slot + 2 * lane)
    data = record + 64 + 320 * slot + 4 * lane
    bits = 0
    for vector in range(8):
        bits |= ((code_word(simd, block, vector) >> 7) & 0x01010101) << vector
    simd.store_i32(data, bits)
    for vector in range(4):
        nibbles = (code_word(simd, block, vector) >> 3) & 0x0F0F0F0F
        nibbles |= ((code_word(simd, block, vector + 4) >> 3) & 0x0F0F0F0F) << 4
        simd.store_i32(data + 64 + 64 * vector, nibbles)
    for plane in range(3):
        lower = code_word(simd, block, 2 * plane) & 0x07070707
        lower |= (code_word(simd, block, 2 * plane + 1) & 0x07070707) << 3
        lower |= ((code_word(simd, block, 6) >> plane) & 0x01010101) << 6
        lower |= ((code_word(simd, block, 7) >> plane) & 0x01010101) << 7
        simd.store_i32(low + 64 * plane + 4 * lane, lower)


Q8_0_PLANES = PackedLayout(
    groups_per_record=2, header_bytes=64, data_bytes=320, zero_shift=7, unpack=unpack_five_bits, scale=half_scale, pack=pack, low_bytes=192, join=join
)
Q8_0_UPPER = PackedLayout(groups_per_record=2, header_bytes=64, data_bytes=320, zero_shift=0, unpack=unpack_five_bits, scale=half_scale, pack=pack)
"""The upper plane as a matrix of its own, for bounds."""

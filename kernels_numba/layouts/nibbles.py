"""Kernel functions that the packed forms of several formats share: nibbles, upper bits, half-float headers. Called by `formats/NAME.py`."""

from __future__ import annotations

from typing import Any

from kernels_numba.simd.function import Constant, kernel_function


@kernel_function
def upper_nibbles(simd: Any, codes: Any, width: Constant) -> Any:
    """The upper four bits of every byte.

    Where LLVM has vgf2p8affineqb, a shift of bytes with its mask is one instruction, but takes the place of a multiplication: right for one token, for
    which unpacking is most of the work, and wrong for a tile of many.
    """
    if width == 1:
        return (codes >> 4) & simd.splat_i8(15)
    return simd.as_i8x64(simd.as_i32x16(codes) >> 4) & simd.splat_i8(15)


@kernel_function
def unpack_nibbles(simd: Any, data: int, width: Constant) -> Any:
    """256 bytes -> 8 code vectors of 0..15."""
    mask = simd.splat_i8(15)
    a = simd.load_i8x64(data)
    b = simd.load_i8x64(data + 64)
    c = simd.load_i8x64(data + 128)
    d = simd.load_i8x64(data + 192)
    return (
        a & mask, b & mask, c & mask, d & mask,
        upper_nibbles(simd, a, width), upper_nibbles(simd, b, width), upper_nibbles(simd, c, width), upper_nibbles(simd, d, width),
    )  # fmt: skip


@kernel_function
def upper_bit(simd: Any, bits: Any, shift: int) -> Any:
    """Bit `shift` of every byte, moved to bit 4."""
    words = simd.as_i32x16(bits)
    mask = simd.splat_i8(16)
    if shift < 4:
        return simd.as_i8x64(words << (4 - shift)) & mask
    return simd.as_i8x64(words >> (shift - 4)) & mask


@kernel_function
def unpack_five_bits(simd: Any, data: int, width: Constant) -> Any:
    """64 bytes of upper bits (bit v of byte 4 * row + i: column 4 * v + i), then 256 bytes of nibbles -> 8 code vectors of 0..31."""
    bits = simd.load_i8x64(data)
    a, b, c, d, e, f, g, h = unpack_nibbles(simd, data + 64, width)
    return (
        a | upper_bit(simd, bits, 0), b | upper_bit(simd, bits, 1), c | upper_bit(simd, bits, 2), d | upper_bit(simd, bits, 3),
        e | upper_bit(simd, bits, 4), f | upper_bit(simd, bits, 5), g | upper_bit(simd, bits, 6), h | upper_bit(simd, bits, 7),
    )  # fmt: skip


@kernel_function
def half_scale(simd: Any, header: int, slot: int) -> Any:
    """16 half floats of the slot."""
    return simd.load_f16x16(header + 32 * slot)


@kernel_function
def second_half(simd: Any, header: int, slot: int) -> Any:
    """16 half floats after the first 16."""
    return simd.load_f16x16(header + 32)


@kernel_function
def pack_half(simd: Any, source: int, destination: int) -> None:
    simd.store_u16(destination, simd.load_u16(source))


@kernel_function
def pack_words(simd: Any, source: int, destination: int, lane: int, count: int, flip: int) -> None:
    """`count` words of 4 columns to their vectors, with the bits of `flip` inverted."""
    for vector in range(count):
        simd.store_i32(destination + 64 * vector + 4 * lane, simd.load_u32(source + 4 * vector) ^ flip)


@kernel_function
def pack_bit_columns(simd: Any, bits: int, destination: int, lane: int) -> None:
    """32 bits in column order -> the word whose byte i holds, at bit v, the bit of column 4 * v + i."""
    word = 0
    for i in range(4):
        # bits 4v + i, gathered: 0x11111111 -> pairs -> nibbles -> a byte
        x = (bits >> i) & 0x11111111
        x = (x | (x >> 3)) & 0x03030303
        x = (x | (x >> 6)) & 0x000F000F
        x = (x | (x >> 12)) & 0xFF
        word |= x << (8 * i)
    simd.store_i32(destination + 4 * lane, word)

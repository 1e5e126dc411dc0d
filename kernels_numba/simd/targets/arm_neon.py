"""64-bit ARM: fused multiply-add and half-float conversion in the base instruction set, the spin hint, the floating-point control word (FPCR)."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.parts import I16X8, I32X4, by_parts, part
from kernels_numba.simd.targets.portable import I8X64, I16X16, I32, I32X16, I64, VOID, constant
from kernels_numba.simd.targets.x86_avx2 import f16_to_f32, f32_to_f16, fma, fma_f32  # the same LLVM intrinsics
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "portable"


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u7i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """Products of signed bytes in 16 bits, added in pairs to 32 bits, and those in pairs again."""

    def quarter(total: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
        pairs = []
        for half in (0, 1):
            products = e.llvm("llvm.aarch64.neon.smull.v8i16", I16X8, part(e, first, half, 2), part(e, second, half, 2))
            pairs.append(e.llvm("llvm.aarch64.neon.saddlp.v4i32.v8i16", I32X4, products))
        return e.builder.add(total, e.llvm("llvm.aarch64.neon.addp.v4i32", I32X4, *pairs))

    return by_parts(e, 4, quarter, total, unsigned, signed)


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u8i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """u is its low 7 bits minus its high bit as a signed byte (0 or -128)."""
    b = e.builder
    low = dot_u7i8(e, total, b.and_(unsigned, constant(I8X64, 0x7F)), signed)
    return b.sub(low, dot_u7i8(e, constant(I32X16, 0), b.and_(unsigned, constant(I8X64, 0x80)), signed))


@idiom("i32x16(i32x16, i32x16, i32x16)")
def dot_i16(e: Emission, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Low and high halves apart: the long multiplication wants 16-bit lanes side by side, and what is the same for several rows is moved once."""
    b = e.builder

    def quarter(total: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
        return b.add(total, e.llvm("llvm.aarch64.neon.smull.v4i32", I32X4, first, second))

    for shift in (0, 16):
        total = by_parts(e, 4, quarter, total, *(b.trunc(b.lshr(value, constant(I32X16, shift)), I16X16) for value in (x, y)))
    return total


@idiom("void()")
def pause(e: Emission) -> None:
    e.llvm("llvm.aarch64.hint", VOID, I32(1))  # yield


@idiom("i64()")
def floating_point_mode(e: Emission) -> ir.Value:
    return e.llvm("llvm.aarch64.get.fpcr", I64)


@idiom("void(i64)")
def set_floating_point_mode(e: Emission, mode: ir.Value) -> None:
    e.llvm("llvm.aarch64.set.fpcr", VOID, mode)


__all__ = ["dot_i16", "dot_u7i8", "dot_u8i8", "f16_to_f32", "f32_to_f16", "floating_point_mode", "fma", "fma_f32", "pause", "set_floating_point_mode"]

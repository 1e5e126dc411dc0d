"""x86-64 with AVX2, FMA and F16C (x86-64-v3, Haswell): fused multiply-add and half-float conversion in hardware; byte dot products by
way of 16-bit sums of two, which saturate and are therefore fed with 7 bits at a time."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.parts import I32X8, by_parts
from kernels_numba.simd.targets.portable import F32X16, I8X64, I16X16, constant
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "x86_portable"
HALFX16 = ir.VectorType(ir.HalfType(), 16)


@idiom("f32x16(f32x16, f32x16, f32x16)")
def fma(e: Emission, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    return e.llvm("llvm.fma.v16f32", F32X16, x, y, z)


@idiom("f32(f32, f32, f32)")
def fma_f32(e: Emission, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    return e.llvm("llvm.fma.f32", ir.FloatType(), x, y, z)


@idiom("f32x16(i16x16)")
def f16_to_f32(e: Emission, half: ir.Value) -> ir.Value:
    return e.builder.fpext(e.builder.bitcast(half, HALFX16), F32X16)


@idiom("i16x16(f32x16)")
def f32_to_f16(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.bitcast(e.builder.fptrunc(value, HALFX16), I16X16)


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u7i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """127 * -128 * 2 = -32512: the sum of two products fits 16 bits."""

    def half(total: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
        pairs = e.llvm("llvm.x86.avx2.pmadd.ub.sw", I16X16, first, second)
        return e.builder.add(total, e.llvm("llvm.x86.avx2.pmadd.wd", I32X8, pairs, constant(I16X16, 1)))

    return by_parts(e, 2, half, total, unsigned, signed)


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u8i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """The low 7 bits, then the high bit: 128 * -128 * 2 = -32768 fits 16 bits as well."""
    b = e.builder
    low = dot_u7i8(e, total, b.and_(unsigned, constant(I8X64, 0x7F)), signed)
    return dot_u7i8(e, low, b.and_(unsigned, constant(I8X64, 0x80)), signed)


@idiom("i32x16(i32x16, i32x16, i32x16)")
def dot_i16(e: Emission, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    def half(total: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
        pairs = (e.builder.bitcast(value, I16X16) for value in (first, second))
        return e.builder.add(total, e.llvm("llvm.x86.avx2.pmadd.wd", I32X8, *pairs))

    return by_parts(e, 2, half, total, x, y)

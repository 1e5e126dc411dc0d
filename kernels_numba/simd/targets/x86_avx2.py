"""x86-64 with AVX2, FMA and F16C (x86-64-v3, Haswell): fused multiply-add and half-float conversion in hardware."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.portable import F32X16, I16X16
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

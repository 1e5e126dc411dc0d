"""x86-64 with AVX2 and AVX-VNNI (Intel from Alder Lake on, where there is no AVX-512): the byte dot product in one instruction of eight lanes."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.parts import I32X8, by_parts
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "x86_avx2"


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u8i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    # the intrinsic has the name of the AVX-512 form; what the level may use decides the encoding
    return by_parts(e, 2, lambda *halves: e.llvm("llvm.x86.avx512.vpdpbusd.256", I32X8, *halves), total, unsigned, signed)


dot_u7i8 = dot_u8i8


@idiom("i32x16(i32x16, i32x16, i32x16)")
def dot_i16(e: Emission, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    return by_parts(e, 2, lambda *halves: e.llvm("llvm.x86.avx512.vpdpwssd.256", I32X8, *halves), total, x, y)

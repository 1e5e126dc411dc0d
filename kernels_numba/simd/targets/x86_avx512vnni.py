"""x86-64 with AVX-512 and VNNI: the byte dot product in one instruction, 16 lanes in one register."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.portable import I8X64, I32X16
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "x86_avx2"
TILE_TOKENS = 16


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u8i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    # LLVM 20 and older declare the byte operands as i32 vectors, newer ones as i8 vectors (llvm-project #97271); llvmlite 0.46 and newer have the latter
    return e.llvm("llvm.x86.avx512.vpdpbusd.512", I32X16, total, unsigned, signed)


dot_u7i8 = dot_u8i8


@idiom("i32x16(i32x16, i32x16, i32x16)")
def dot_i16(e: Emission, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    return e.llvm("llvm.x86.avx512.vpdpwssd.512", I32X16, total, x, y)


@idiom("i8x64(i8x64)")
def keep_in_register(e: Emission, value: ir.Value) -> ir.Value:
    hide = ir.InlineAsm(ir.FunctionType(I8X64, [I8X64]), "", "=v,0", side_effect=False)
    return e.builder.call(hide, [value])


@idiom("f32x16(f32x16, f32x16)")
def after(e: Emission, value: ir.Value, other: ir.Value) -> ir.Value:
    # nothing is computed; LLVM keeps such places, and loads, in their order
    here = ir.InlineAsm(ir.FunctionType(value.type, [value.type, other.type]), "", "=v,0,v", side_effect=True)
    return e.builder.call(here, [value, other])

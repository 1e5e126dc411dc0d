"""Any x86-64: the portable arithmetic, with the dot product of 16-bit pairs that every one has, this family's spin hint and its floating-point control
word (MXCSR)."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from kernels_numba.simd.targets.parts import I16X8, I32X4, by_parts
from kernels_numba.simd.targets.portable import I32, I64, VOID
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "portable"


@idiom("i32x16(i32x16, i32x16, i32x16)")
def dot_i16(e: Emission, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    def quarter(total: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
        pairs = (e.builder.bitcast(value, I16X8) for value in (first, second))
        return e.builder.add(total, e.llvm("llvm.x86.sse2.pmadd.wd", I32X4, *pairs))

    return by_parts(e, 4, quarter, total, x, y)


@idiom("void()")
def pause(e: Emission) -> None:
    e.llvm("llvm.x86.sse2.pause", VOID)


@idiom("i64()")
def floating_point_mode(e: Emission) -> ir.Value:
    slot = cgutils.alloca_once(e.builder, I32)
    e.llvm("llvm.x86.sse.stmxcsr", VOID, slot)
    return e.builder.zext(e.builder.load(slot), I64)


@idiom("void(i64)")
def set_floating_point_mode(e: Emission, mode: ir.Value) -> None:
    slot = cgutils.alloca_once(e.builder, I32)
    e.builder.store(e.builder.trunc(mode, I32), slot)
    e.llvm("llvm.x86.sse.ldmxcsr", VOID, slot)


@idiom("i64()")
def plain_floating_point_mode(e: Emission) -> ir.Value:
    return I64(0x1F80)

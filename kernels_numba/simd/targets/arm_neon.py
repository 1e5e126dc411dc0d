"""64-bit ARM: fused multiply-add and half-float conversion in the base instruction set, the spin hint, the floating-point control word (FPCR)."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.portable import I32, I64, VOID
from kernels_numba.simd.targets.x86_avx2 import f16_to_f32, f32_to_f16, fma, fma_f32  # the same LLVM intrinsics
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "portable"


@idiom("void()")
def pause(e: Emission) -> None:
    e.llvm("llvm.aarch64.hint", VOID, I32(1))  # yield


@idiom("i64()")
def floating_point_mode(e: Emission) -> ir.Value:
    return e.llvm("llvm.aarch64.get.fpcr", I64)


@idiom("void(i64)")
def set_floating_point_mode(e: Emission, mode: ir.Value) -> None:
    e.llvm("llvm.aarch64.set.fpcr", VOID, mode)


__all__ = ["f16_to_f32", "f32_to_f16", "floating_point_mode", "fma", "fma_f32", "pause", "set_floating_point_mode"]

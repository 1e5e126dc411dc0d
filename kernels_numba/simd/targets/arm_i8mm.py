"""64-bit ARM with the int8 matrix extension (Armv8.6: Neoverse V1, Cortex-A510 and newer): the mixed byte dot product in one instruction."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.parts import I32X4, by_parts
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "arm_dotprod"


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u8i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    return by_parts(e, 4, lambda *quarters: e.llvm("llvm.aarch64.neon.usdot.v4i32.v16i8", I32X4, *quarters), total, unsigned, signed)

"""64-bit ARM with the dot product extension (Cortex-A76, Neoverse N1 and newer): the signed byte dot product in one instruction of four lanes."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.parts import I32X4, by_parts
from kernels_numba.simd.targets.portable import I8X64, I32X16, constant
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "arm_neon"


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u7i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    return by_parts(e, 4, lambda *quarters: e.llvm("llvm.aarch64.neon.sdot.v4i32.v16i8", I32X4, *quarters), total, unsigned, signed)


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u8i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """There is no mixed product: u = (u ^ 128 as a signed byte) + 128. The correction depends on the second operand alone, and LLVM computes it once
    where that is the same in all quarters, as broadcast activations are."""
    b = e.builder
    shifted = dot_u7i8(e, total, b.xor(unsigned, constant(I8X64, 0x80)), signed)
    return b.sub(shifted, dot_u7i8(e, constant(I32X16, 0), signed, constant(I8X64, -128)))

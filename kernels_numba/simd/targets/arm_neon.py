"""64-bit ARM: fused multiply-add and half-float conversion are part of the base instruction set."""

from __future__ import annotations

from kernels_numba.simd.targets.x86_avx2 import f16_to_f32, f32_to_f16, fma, fma_f32  # the same LLVM intrinsics

BASE = "portable"
__all__ = ["f16_to_f32", "f32_to_f16", "fma", "fma_f32"]

"""x86-64 with AMX: products of small matrices of bytes in registers of 16 rows of 64 bytes. Everything else is that of AVX-512.

The shapes of the registers are a thread's own state, loaded before products and put back after them: so the operating system has nothing to save of a thread
of ours that does anything else, and a caller that multiplies matrices itself finds the shapes that it has set.
"""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.matrices import PRODUCT_BYTES
from kernels_numba.simd.targets.portable import I8, I64, VOID
from kernels_numba.simd.vocabulary import Emission, idiom

BASE = "x86_avx512vnni"
MATRIX_TILES = True

_SUMS, _ACTIVATIONS, _CODES, _SUMS_OF_HALF, _ACTIVATIONS_OF_HALF, _CODES_OF_HALF = range(6)
_SHAPES = {_SUMS: (16, 64), _ACTIVATIONS: (16, 32), _CODES: (8, 64), _SUMS_OF_HALF: (16, 64), _ACTIVATIONS_OF_HALF: (16, 16), _CODES_OF_HALF: (4, 64)}
"""By register: rows, and bytes of a row."""


def _configuration() -> bytes:
    """What LDTILECFG reads: palette 1, then bytes of a row (uint16[16] from byte 16) and rows (uint8[16] from byte 48) of each register."""
    words = bytearray(64)
    words[0] = 1
    for register, (rows, row_bytes) in _SHAPES.items():
        words[16 + 2 * register] = row_bytes
        words[48 + register] = rows
    return bytes(words)


@idiom("void(i64)")
def begin_products(e: Emission, saved: ir.Value) -> None:
    e.llvm("llvm.x86.sttilecfg", VOID, e.pointer(saved, I8))
    module = e.builder.module
    constant = ir.Constant(ir.ArrayType(I8, 64), bytearray(_configuration()))
    shapes = ir.GlobalVariable(module, constant.type, module.get_unique_name("shapes_of_registers"))
    shapes.initializer, shapes.global_constant, shapes.linkage, shapes.align = constant, True, "internal", 64
    e.llvm("llvm.x86.ldtilecfg", VOID, e.builder.bitcast(shapes, ir.PointerType(I8)))


@idiom("void(i64)")
def end_products(e: Emission, saved: ir.Value) -> None:
    e.llvm("llvm.x86.ldtilecfg", VOID, e.pointer(saved, I8))  # no shapes at all, where there were none


def _product(e: Emission, sums: int, activations: int, codes: int, code_address: ir.Value, block: ir.Value, output: ir.Value) -> None:
    e.llvm("llvm.x86.tileloadd64", VOID, I8(activations), e.pointer(block, I8), I64(32))
    e.llvm("llvm.x86.tileloadd64", VOID, I8(codes), e.pointer(code_address, I8), I64(64))
    e.llvm("llvm.x86.tilezero", VOID, I8(sums))
    e.llvm("llvm.x86.tdpbssd", VOID, I8(sums), I8(activations), I8(codes))
    e.llvm("llvm.x86.tilestored64", VOID, I8(sums), e.pointer(output, I8), I64(64))


@idiom("void(i64, i64, i64)")
def product(e: Emission, codes: ir.Value, block: ir.Value, output: ir.Value) -> None:
    _product(e, _SUMS, _ACTIVATIONS, _CODES, codes, block, output)


@idiom("void(i64, i64, i64)")
def product_of_halves(e: Emission, codes: ir.Value, block: ir.Value, output: ir.Value) -> None:
    b = e.builder
    for half in (0, 1):
        places = b.add(codes, I64(256 * half)), b.add(block, I64(16 * half)), b.add(output, I64(PRODUCT_BYTES * half))
        _product(e, _SUMS_OF_HALF, _ACTIVATIONS_OF_HALF, _CODES_OF_HALF, *places)

"""Idioms that load, store and prefetch, for scalars and vectors. Part of the portable target. No address needs an alignment."""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.targets.portable import F32, F32X16, F64, F64X16, I8, I8X64, I16, I16X16, I32, I32X16, I64, VOID, constant
from kernels_numba.simd.vectors import VECTORS, splat
from kernels_numba.simd.vocabulary import Emission, idiom


def _load(e: Emission, address: ir.Value, kind: ir.Type) -> ir.Value:
    return e.builder.load(e.pointer(address, kind), align=1)


def _store(e: Emission, address: ir.Value, value: ir.Value) -> None:
    e.builder.store(value, e.pointer(address, value.type), align=1)


@idiom("i64(i64)")
def load_i64(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, I64)


@idiom("i64(i64)")
def load_i32(e: Emission, address: ir.Value) -> ir.Value:
    """A signed 32-bit integer, widened."""
    return e.builder.sext(_load(e, address, I32), I64)


@idiom("i64(i64)")
def load_u32(e: Emission, address: ir.Value) -> ir.Value:
    return e.builder.zext(_load(e, address, I32), I64)


@idiom("i64(i64)")
def load_u16(e: Emission, address: ir.Value) -> ir.Value:
    return e.builder.zext(_load(e, address, I16), I64)


@idiom("i64(i64)")
def load_u8(e: Emission, address: ir.Value) -> ir.Value:
    return e.builder.zext(_load(e, address, I8), I64)


@idiom("i64(i64)")
def load_i8(e: Emission, address: ir.Value) -> ir.Value:
    return e.builder.sext(_load(e, address, I8), I64)


@idiom("f32(i64)")
def load_f32(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, F32)


@idiom("f64(i64)")
def load_f64(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, F64)


@idiom("void(i64, i64)")
def store_i64(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("void(i64, i64)")
def store_i32(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The low 32 bits."""
    _store(e, address, e.builder.trunc(value, I32))


@idiom("void(i64, i64)")
def store_u16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The low 16 bits."""
    _store(e, address, e.builder.trunc(value, I16))


@idiom("void(i64, i64)")
def store_u8(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The low 8 bits."""
    _store(e, address, e.builder.trunc(value, I8))


@idiom("void(i64, f64)")
def store_f64(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("void(i64, f64x16)")
def store_f64x16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("void(i64, f32)")
def store_f32(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("i8x64(i64)")
def load_i8x64(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, I8X64)


@idiom("i8x16(i64)")
def load_i8x16(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, VECTORS["i8x16"].llvm)


@idiom("i32x16(i64)")
def load_i32x16(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, I32X16)


@idiom("f32x16(i64)")
def load_f32x16(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, F32X16)


@idiom("f64x16(i64)")
def load_f64x16(e: Emission, address: ir.Value) -> ir.Value:
    return _load(e, address, F64X16)


@idiom("f32x16(i64)")
def load_f16x16(e: Emission, address: ir.Value) -> ir.Value:
    """16 IEEE half floats, widened exactly."""
    return e.call("f16_to_f32", _load(e, address, I16X16))


@idiom("f32x16(i64)")
def load_bf16x16(e: Emission, address: ir.Value) -> ir.Value:
    """16 bfloat16, widened exactly."""
    bits = e.builder.zext(_load(e, address, I16X16), I32X16)
    return e.builder.bitcast(e.builder.shl(bits, constant(I32X16, 16)), F32X16)


@idiom("void(i64, f32x16)")
def store_f16x16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """16 values rounded by `f32_to_f16`."""
    _store(e, address, e.call("f32_to_f16", value))


@idiom("void(i64, i8x64)")
def store_i8x64(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("void(i64, i8x16)")
def store_i8x16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("void(i64, i32x16)")
def store_i16x16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The low 16 bits of each lane, one after the other."""
    _store(e, address, e.builder.trunc(value, I16X16))


@idiom("void(i64, i32x16)")
def store_i32x16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("void(i64, f32x16)")
def store_f32x16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    _store(e, address, value)


@idiom("void(i64, i64)")
def prefetch(e: Emission, address: ir.Value, lines: ir.Value) -> None:
    """A hint that `lines` (a constant) cache lines of 64 bytes from `address` will be read. Any address is allowed."""
    for line in range(lines.constant):
        pointer = e.pointer(address, I8, 64 * line)
        e.llvm("llvm.prefetch.p0", VOID, pointer, I32(0), I32(3), I32(1))


@idiom("i8x64(i64)")
def splat_4xi8(e: Emission, address: ir.Value) -> ir.Value:
    """The 4 bytes at the address, repeated 16 times."""
    return e.builder.bitcast(splat(e.builder, _load(e, address, I32), I32X16), I8X64)


@idiom("f32x16(i64)")
def splat_f16(e: Emission, address: ir.Value) -> ir.Value:
    """The half float at the address, widened exactly, in every lane."""
    return e.call("f16_to_f32", splat(e.builder, _load(e, address, I16), I16X16))


@idiom("void(i64, f32)")
def store_f16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The value rounded by `f32_to_f16`."""
    rounded = e.call("f32_to_f16", splat(e.builder, value, F32X16))
    _store(e, address, e.builder.extract_element(rounded, I32(0)))

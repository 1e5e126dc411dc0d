"""Half of the portable target: idioms that move or choose lanes, touch part of a vector in memory, or hold a tile of rows. A part of `portable`.

As in `portable`, everything is plain LLVM IR, and the docstrings are the exact meaning.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from kernels_numba.simd.vectors import ELEMENTS, VECTORS, splat
from kernels_numba.simd.vocabulary import Emission, idiom, typed_idiom

I1, I32, I64, F32 = ir.IntType(1), ELEMENTS["i32"], ELEMENTS["i64"], ELEMENTS["f32"]
F32X16, F64X16, I32X16 = (VECTORS[name].llvm for name in ("f32x16", "f64x16", "i32x16"))
MASK = ir.VectorType(I1, 16)


def _shuffle(e: Emission, x: ir.Value, y: ir.Value, chosen: list[int]) -> ir.Value:
    return e.builder.shuffle_vector(x, y, ir.Constant(I32X16, chosen))


def _first_lanes(e: Emission, count: ir.Value) -> ir.Value:
    b = e.builder
    return b.icmp_signed("<", ir.Constant(I32X16, list(range(16))), splat(b, b.trunc(count, I32), I32X16))


def _load_lanes(e: Emission, address: ir.Value, count: ir.Value, kind: ir.VectorType, name: str) -> ir.Value:
    pointer = e.pointer(address, kind)
    zero = ir.Constant(kind, [0.0] * 16)
    return e.llvm(f"llvm.masked.load.{name}.p0", kind, pointer, I32(1), _first_lanes(e, count), zero)


# -- part of a vector in memory


@idiom("f32x16(i64, i64)")
def load_lanes_f32(e: Emission, address: ir.Value, count: ir.Value) -> ir.Value:
    """The first `count` lanes from memory, zero in the others, whose memory is not touched. count >= 16: all; <= 0: none."""
    return _load_lanes(e, address, count, F32X16, "v16f32")


@idiom("f64x16(i64, i64)")
def load_lanes_f64(e: Emission, address: ir.Value, count: ir.Value) -> ir.Value:
    """`load_lanes_f32` for float64."""
    return _load_lanes(e, address, count, F64X16, "v16f64")


@idiom("void(i64, f32x16, i64)")
def store_lanes_f32(e: Emission, address: ir.Value, value: ir.Value, count: ir.Value) -> None:
    """Writes the first `count` lanes and touches no other memory. count >= 16: all; <= 0: none."""
    e.llvm("llvm.masked.store.v16f32.p0", ir.VoidType(), value, e.pointer(address, F32X16), I32(1), _first_lanes(e, count))


@idiom("void(i64, f32x16)")
def store_column_f32(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """Lane i at address + 64 * i: a column of a matrix with rows of 16 float32."""
    _store_column(e, address, value, 64)


@idiom("void(i64, f32x16)")
def store_column_f16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """Lane i, rounded by `f32_to_f16`, at address + 32 * i: a column of a matrix with rows of 16 half floats."""
    _store_column(e, address, e.call("f32_to_f16", value), 32)


@idiom("void(i64, i32x16)")
def store_column_i8(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The low 8 bits of lane i at address + 16 * i: a column of a matrix with rows of 16 bytes."""
    _store_column(e, address, e.builder.trunc(value, VECTORS["i8x16"].llvm), 16)


@idiom("void(i64, i32x16)")
def store_column_2xi16(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The low 16 bits of lanes 2i and 2i + 1 at address + 64 * i: a column of a matrix with rows of 16 pairs."""
    halves = e.builder.trunc(value, VECTORS["i16x16"].llvm)
    _store_column(e, address, e.builder.bitcast(halves, VECTORS["i32x8"].llvm), 64)


@idiom("void(i64, i32x16)")
def store_i16_apart(e: Emission, address: ir.Value, value: ir.Value) -> None:
    """The low 16 bits of lane i at address + 4 * i; the bytes between are not touched, which another worker may be writing."""
    _store_column(e, address, e.builder.trunc(value, VECTORS["i16x16"].llvm), 4)


def _store_column(e: Emission, address: ir.Value, value: ir.Value, stride: int) -> None:
    for lane in range(value.type.count):
        element = e.builder.extract_element(value, I32(lane))
        e.builder.store(element, e.pointer(address, element.type, stride * lane), align=1)


# -- moving and choosing lanes


@idiom("f32x16(f32x16, f32x16)")
def even_lanes(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """x[0], x[2] .. x[14], y[0] .. y[14]."""
    return _shuffle(e, x, y, list(range(0, 32, 2)))


@idiom("f32x16(f32x16, f32x16)")
def odd_lanes(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """x[1], x[3] .. x[15], y[1] .. y[15]."""
    return _shuffle(e, x, y, list(range(1, 32, 2)))


@idiom("f32x16(f32x16, f32x16)")
def interleave_low(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """x[0], y[0], x[1], y[1] .. x[7], y[7]."""
    return _shuffle(e, x, y, [lane // 2 + 16 * (lane % 2) for lane in range(16)])


@idiom("f32x16(f32x16, f32x16)")
def interleave_high(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """x[8], y[8] .. x[15], y[15]."""
    return _shuffle(e, x, y, [8 + lane // 2 + 16 * (lane % 2) for lane in range(16)])


@idiom("f32x16(f32x16, f32x16, f32x16, f32x16)")
def select_less(e: Emission, x: ir.Value, y: ir.Value, chosen: ir.Value, other: ir.Value) -> ir.Value:
    """`chosen` where x < y, else (also for a NaN) `other`."""
    return e.builder.select(e.builder.fcmp_ordered("<", x, y), chosen, other)


@idiom("f32x16(f32x16)")
def negate(e: Emission, value: ir.Value) -> ir.Value:
    """The sign flipped, of zeros too."""
    return e.builder.fneg(value)


@idiom("f32x16(f32x16, f32x16)")
def copy_sign(e: Emission, magnitude: ir.Value, sign: ir.Value) -> ir.Value:
    """The magnitude of the first with the sign of the second."""
    b = e.builder
    kept = b.and_(b.bitcast(magnitude, I32X16), ir.Constant(I32X16, [0x7FFFFFFF] * 16))
    return b.bitcast(b.or_(kept, b.and_(b.bitcast(sign, I32X16), ir.Constant(I32X16, [0x80000000] * 16))), F32X16)


@idiom("i32x16(i32x16, i32x16)")
def maximum_i32(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger as signed numbers."""
    return e.builder.select(e.builder.icmp_signed(">", x, y), x, y)


@idiom("i64(i32x16)")
def maximum_lanes_i32(e: Emission, value: ir.Value) -> ir.Value:
    """The largest lane as a signed number."""
    return e.builder.sext(e.llvm("llvm.vector.reduce.smax.v16i32", I32, value), I64)


# -- a tile of rows (its other operations are in `tiles`)


def _tile_address_stride(arguments: tuple[types.Type, ...]) -> types.Type | None:
    fits = len(arguments) == 3 and isinstance(arguments[0], types.UniTuple) and arguments[0].dtype == VECTORS["f32x16"]
    return types.void if fits and all(types.unliteral(argument) == types.int64 for argument in arguments[1:]) else None


@typed_idiom(_tile_address_stride)
def tile_store_rows(e: Emission, kinds: tuple[types.Type, ...], tile: ir.Value, address: ir.Value, stride: ir.Value) -> None:
    """tile[i] to the 16 float32 at address + i * stride."""
    b = e.builder
    for row in range(kinds[0].count):
        b.store(b.extract_value(tile, row), e.pointer(address, F32X16), align=1)
        address = b.add(address, stride)


def _tile_vector(arguments: tuple[types.Type, ...]) -> types.Type | None:
    fits = len(arguments) == 2 and isinstance(arguments[0], types.UniTuple) and arguments[0].dtype == arguments[1] == VECTORS["f32x16"]
    return arguments[0] if fits else None


@typed_idiom(_tile_vector)
def tile_add(e: Emission, kinds: tuple[types.Type, ...], tile: ir.Value, vector: ir.Value) -> ir.Value:
    """tile[i] + vector for each i."""
    for row in range(kinds[0].count):
        tile = e.builder.insert_value(tile, e.builder.fadd(e.builder.extract_value(tile, row), vector), row)
    return tile

"""The portable target: every idiom in plain LLVM IR, right on any CPU. Its docstrings are the exact meaning that every other target must keep bit for bit.

`address` is an int64. Loads and stores need no alignment. "16 lanes" is the width of the arithmetic everywhere; LLVM splits it into what the CPU has.
"""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.vectors import ELEMENTS, VECTORS, splat
from kernels_numba.simd.vocabulary import Emission, idiom

PARTS = ("memory", "lanes", "synchronisation", "tiles", "matrices")
"""Modules beside this one that belong to the portable target."""
TILE_TOKENS = 4
MATRIX_TILES = False

I8, I16, I32, I64 = (ELEMENTS[name] for name in ("i8", "i16", "i32", "i64"))
F32, F64 = ELEMENTS["f32"], ELEMENTS["f64"]
F32X16, F64X16, I32X16, I8X64 = (VECTORS[name].llvm for name in ("f32x16", "f64x16", "i32x16", "i8x64"))
I16X16 = VECTORS["i16x16"].llvm
VOID = ir.VoidType()


def constant(vector: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def shuffle(e: Emission, vector: ir.Value, lanes: list[int]) -> ir.Value:
    mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
    return e.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


@idiom("f32(i64)")
def f32_from_i64(e: Emission, value: ir.Value) -> ir.Value:
    """The nearest float32 (ties to even)."""
    return e.builder.sitofp(value, F32)


@idiom("f64(i64)")
def f64_from_i64(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.sitofp(value, F64)


@idiom("f32(i64)")
def f32_from_bits(e: Emission, bits: ir.Value) -> ir.Value:
    """The float32 whose pattern is the low 32 bits."""
    return e.builder.bitcast(e.builder.trunc(bits, I32), F32)


@idiom("i64(f32)")
def bits_from_f32(e: Emission, value: ir.Value) -> ir.Value:
    """The pattern of a float32, zero-extended."""
    return e.builder.zext(e.builder.bitcast(value, I32), I64)


@idiom("f32(f32)")
def sqrt_f32(e: Emission, value: ir.Value) -> ir.Value:
    """IEEE square root."""
    return e.llvm("llvm.sqrt.f32", F32, value)


@idiom("f32x16(i16x16)")
def f16_to_f32(e: Emission, half: ir.Value) -> ir.Value:
    """Exact widening of IEEE half floats, subnormals, infinities and NaN (payload kept) included. No half-float instruction or library is needed:
    the exponent is moved by a multiplication with 2^112, which is exact."""
    b = e.builder
    bits = b.zext(half, I32X16)
    magnitude = b.shl(b.and_(bits, constant(I32X16, 0x7FFF)), constant(I32X16, 13))
    scaled = b.fmul(b.bitcast(magnitude, F32X16), constant(F32X16, 2.0**112))
    special = b.icmp_unsigned(">=", magnitude, constant(I32X16, 0x7C00 << 13))
    infinite = b.or_(magnitude, constant(I32X16, 0x7F800000))
    value = b.select(special, infinite, b.bitcast(scaled, I32X16))
    sign = b.shl(b.and_(bits, constant(I32X16, 0x8000)), constant(I32X16, 16))
    return b.bitcast(b.or_(value, sign), F32X16)


@idiom("i16x16(f32x16)")
def f32_to_f16(e: Emission, value: ir.Value) -> ir.Value:
    """Rounding to IEEE half floats, nearest with ties to even; overflow gives infinity, NaN gives 0x7E00 with the sign."""
    b = e.builder
    bits = b.bitcast(value, I32X16)
    sign = b.and_(b.lshr(bits, constant(I32X16, 16)), constant(I32X16, 0x8000))
    magnitude = b.and_(bits, constant(I32X16, 0x7FFFFFFF))
    # normal results: add half of the last kept bit minus one, plus that bit itself, then cut
    odd = b.and_(b.lshr(magnitude, constant(I32X16, 13)), constant(I32X16, 1))
    rebiased = b.sub(magnitude, constant(I32X16, 112 << 23))
    normal = b.lshr(b.add(b.add(rebiased, constant(I32X16, 0xFFF)), odd), constant(I32X16, 13))
    # subnormal results: adding 0.5 aligns the binary point so that the hardware's rounding is the one wanted
    aligned = b.fadd(b.bitcast(magnitude, F32X16), constant(F32X16, 0.5))
    subnormal = b.sub(b.bitcast(aligned, I32X16), constant(I32X16, 0x3F000000))
    small = b.icmp_unsigned("<", magnitude, constant(I32X16, 113 << 23))
    large = b.icmp_unsigned(">=", magnitude, constant(I32X16, 0x477FF000))
    is_nan = b.icmp_unsigned(">", magnitude, constant(I32X16, 0x7F800000))
    result = b.select(small, subnormal, normal)
    result = b.select(large, constant(I32X16, 0x7C00), result)
    result = b.select(is_nan, constant(I32X16, 0x7E00), result)
    return b.trunc(b.or_(result, sign), I16X16)


@idiom("i32x16(i64)")
def splat_i32(e: Emission, value: ir.Value) -> ir.Value:
    return splat(e.builder, e.builder.trunc(value, I32), I32X16)


@idiom("i8x64(i64)")
def splat_i8(e: Emission, value: ir.Value) -> ir.Value:
    return splat(e.builder, e.builder.trunc(value, I8), I8X64)


@idiom("f32x16(f32)")
def splat_f32(e: Emission, value: ir.Value) -> ir.Value:
    return splat(e.builder, value, F32X16)


@idiom("f64x16(f64)")
def splat_f64(e: Emission, value: ir.Value) -> ir.Value:
    return splat(e.builder, value, F64X16)


@idiom("i32x16(i8x64)")
def as_i32x16(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.bitcast(value, I32X16)


@idiom("i8x64(i32x16)")
def as_i8x64(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.bitcast(value, I8X64)


@idiom("i32x16(f32x16)")
def bits_from_f32x16(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.bitcast(value, I32X16)


@idiom("f32x16(i32x16)")
def f32x16_from_bits(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.bitcast(value, F32X16)


@idiom("f32x16(i32x16)")
def f32_from_i32(e: Emission, value: ir.Value) -> ir.Value:
    """The nearest float32 (ties to even) of each signed integer."""
    return e.builder.sitofp(value, F32X16)


@idiom("f32x16(f64x16)")
def f32_from_f64(e: Emission, value: ir.Value) -> ir.Value:
    """The nearest float32 (ties to even)."""
    return e.builder.fptrunc(value, F32X16)


@idiom("f64x16(f32x16)")
def f64_from_f32(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.fpext(value, F64X16)


@idiom("f32x16(f32x16)")
def round_f32(e: Emission, value: ir.Value) -> ir.Value:
    """The nearest whole number, ties to even; |value| <= 2^22. By adding and subtracting 1.5 * 2^23, so that no rounding instruction is needed."""
    magic = constant(F32X16, 12582912.0)
    return e.builder.fsub(e.builder.fadd(value, magic), magic)


@idiom("f64x16(f64x16)")
def round_f64(e: Emission, value: ir.Value) -> ir.Value:
    """The nearest whole number, ties to even; |value| <= 2^51."""
    magic = constant(F64X16, 6755399441055744.0)
    return e.builder.fsub(e.builder.fadd(value, magic), magic)


@idiom("i32x16(f32x16)")
def round_i32(e: Emission, value: ir.Value) -> ir.Value:
    """The nearest integer, ties to even; |value| <= 2^22."""
    magic = constant(F32X16, 12582912.0)
    bits = e.builder.bitcast(e.builder.fadd(value, magic), I32X16)
    return e.builder.sub(bits, constant(I32X16, 0x4B400000))


@idiom("i32x16(f64x16)")
def round_i32_from_f64(e: Emission, value: ir.Value) -> ir.Value:
    """The low 32 bits of the nearest integer, ties to even; |value| <= 2^51."""
    magic = constant(F64X16, 6755399441055744.0)
    bits = e.builder.bitcast(e.builder.fadd(value, magic), VECTORS["i64x16"].llvm)
    return e.builder.trunc(bits, I32X16)


@idiom("i32x16(i8x16)")
def zero_extend_i8(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.zext(value, I32X16)


@idiom("i32x16(i8x16)")
def sign_extend_i8(e: Emission, value: ir.Value) -> ir.Value:
    return e.builder.sext(value, I32X16)


@idiom("i8x16(i32x16)")
def truncate_i8(e: Emission, value: ir.Value) -> ir.Value:
    """The low 8 bits of each."""
    return e.builder.trunc(value, VECTORS["i8x16"].llvm)


# -- arithmetic


@idiom("f32x16(f32x16, f32x16, f32x16)")
def fma(e: Emission, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z with one rounding. Without an fma unit: the product is exact in float64; the sum is rounded to odd there, so that the last rounding to
    float32 is the only one that counts (Boldo and Melquiond, 2008)."""
    b = e.builder
    i64x16 = VECTORS["i64x16"].llvm
    product = b.fmul(b.fpext(x, F64X16), b.fpext(y, F64X16))
    addend = b.fpext(z, F64X16)
    total = b.fadd(product, addend)
    # TwoSum (Knuth): the exact error of the sum
    virtual = b.fsub(total, product)
    error = b.fadd(b.fsub(product, b.fsub(total, virtual)), b.fsub(addend, virtual))
    bits = b.bitcast(total, i64x16)
    inexact = b.fcmp_ordered("!=", error, constant(F64X16, 0.0))
    even = b.icmp_unsigned("==", b.and_(bits, constant(i64x16, 1)), constant(i64x16, 0))
    opposite = b.icmp_signed("<", b.xor(b.bitcast(error, i64x16), bits), constant(i64x16, 0))
    moved = b.add(bits, b.select(opposite, constant(i64x16, -1), constant(i64x16, 1)))
    odd = b.select(b.and_(inexact, even), moved, bits)
    return b.fptrunc(b.bitcast(odd, F64X16), F32X16)


@idiom("f32(f32, f32, f32)")
def fma_f32(e: Emission, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """`fma` of scalars."""
    b = e.builder
    return b.extract_element(e.call("fma", *(splat(b, value, F32X16) for value in (x, y, z))), I32(0))


@idiom("f32x16(f32x16)")
def absolute(e: Emission, value: ir.Value) -> ir.Value:
    return e.llvm("llvm.fabs.v16f32", F32X16, value)


@idiom("f32x16(f32x16, f32x16)")
def maximum(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """x where x > y, else y (so a NaN in x is dropped, one in y is kept)."""
    return e.builder.select(e.builder.fcmp_ordered(">", x, y), x, y)


@idiom("f32x16(f32x16, f32x16)")
def minimum(e: Emission, x: ir.Value, y: ir.Value) -> ir.Value:
    """x where x < y, else y."""
    return e.builder.select(e.builder.fcmp_ordered("<", x, y), x, y)


@idiom("f32x16(f32x16, i64, i64, f32x16)")
def keep_lanes(e: Emission, value: ir.Value, first: ir.Value, end: ir.Value, other: ir.Value) -> ir.Value:
    """Lane i is value[i] where first <= i < end, else other[i]."""
    b = e.builder
    lanes = ir.Constant(I32X16, list(range(16)))
    from_first = b.icmp_signed(">=", lanes, splat(b, b.trunc(first, I32), I32X16))
    below_end = b.icmp_signed("<", lanes, splat(b, b.trunc(end, I32), I32X16))
    return b.select(b.and_(from_first, below_end), value, other)


@idiom("f32(f32x16)")
def sum_lanes(e: Emission, value: ir.Value) -> ir.Value:
    """A fixed tree: lanes i and i+8, then +4, +2, +1."""
    for half in (8, 4, 2, 1):
        value = e.builder.fadd(value, shuffle(e, value, [(lane + half) % 16 for lane in range(16)]))
    return e.builder.extract_element(value, I32(0))


@idiom("f64(f64x16)")
def sum_lanes_f64(e: Emission, value: ir.Value) -> ir.Value:
    """The same tree for float64."""
    for half in (8, 4, 2, 1):
        value = e.builder.fadd(value, shuffle(e, value, [(lane + half) % 16 for lane in range(16)]))
    return e.builder.extract_element(value, I32(0))


@idiom("f32(f32x16)")
def maximum_lanes(e: Emission, value: ir.Value) -> ir.Value:
    """The tree of `sum_lanes` with `maximum`."""
    for half in (8, 4, 2, 1):
        value = e.call("maximum", value, shuffle(e, value, [(lane + half) % 16 for lane in range(16)]))
    return e.builder.extract_element(value, I32(0))


@idiom("i64(i32x16)")
def sum_lanes_i32(e: Emission, value: ir.Value) -> ir.Value:
    """The sum modulo 2^32, as a signed number."""
    return e.builder.sext(e.llvm("llvm.vector.reduce.add.v16i32", I32, value), I64)


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u8i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """total[i] + sum over j < 4 of unsigned[4i+j] * signed[4i+j], exact modulo 2^32; the first operand's bytes are 0..255, the second's -128..127."""
    b = e.builder
    wide = ir.VectorType(I16, 64)
    # the products fit 16 bits signed except 255 * -128 (-32640), which fits too
    products = b.mul(b.zext(unsigned, wide), b.sext(signed, wide))
    for offset in range(4):
        part = shuffle(e, products, [4 * lane + offset for lane in range(16)])
        total = b.add(total, b.sext(part, I32X16))
    return total


@idiom("i32x16(i32x16, i8x64, i8x64)")
def dot_u7i8(e: Emission, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """`dot_u8i8` where the first operand's bytes are 0..127: signed multiplications do as well, and sums of two products fit 16 bits."""
    return e.call("dot_u8i8", total, unsigned, signed)


@idiom("i32x16(i32x16, i32x16, i32x16)")
def dot_i16(e: Emission, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """total[i] + the dot product of the two signed 16-bit halves of x[i] and y[i], modulo 2^32. No half is -32768."""
    b = e.builder
    sixteen = constant(I32X16, 16)
    low = b.mul(b.ashr(b.shl(x, sixteen), sixteen), b.ashr(b.shl(y, sixteen), sixteen))
    return b.add(total, b.add(low, b.mul(b.ashr(x, sixteen), b.ashr(y, sixteen))))


@idiom("i8x64(i8x64)")
def keep_in_register(e: Emission, value: ir.Value) -> ir.Value:
    """The value itself. A target may hide where it came from, so that LLVM does not compute it again for each use."""
    return value


@idiom("f32x16(f32x16, f32x16)")
def after(e: Emission, value: ir.Value, other: ir.Value) -> ir.Value:
    """The first value itself. A target may make sure that nothing that uses the result, and no later load, comes before the second value is there."""
    return value

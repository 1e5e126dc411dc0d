"""Idioms of linear operations of many rows where the CPU multiplies small matrices of bytes (`ops.matrices`): products of a group of 32 columns for 16 rows of
weights by 16 tokens, kept in memory, and the accumulators that take them. Part of the portable target, which states what they mean: drivers use them
where a target's `MATRIX_TILES` says that it has such instructions.

Codes are 8 vectors one after the other (`layouts`), with their zero subtracted: signed bytes. A block of activations is one of 16 tokens (`ops.common`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels_numba.simd.targets.portable import F32X16, I8X64, I32X16, I64, constant
from kernels_numba.simd.targets.tiles import Kinds, activations_of_sixteen, finish, is_tile
from kernels_numba.simd.vectors import VECTORS, splat
from kernels_numba.simd.vocabulary import Emission, idiom, typed_idiom

TOKENS = 16
PRODUCT_BYTES = 4 * 16 * TOKENS


@typed_idiom(lambda arguments: arguments[1 if arguments[0].literal_value else 2])
def chosen(e: Emission, kinds: Kinds, condition: Any, function: ir.Value, other: ir.Value) -> ir.Value:
    """The first kernel function if the constant is not 0, else the other. Only that one is compiled."""
    return function if kinds[0].literal_value else other


@idiom("i64(i64)")
def scratch(e: Emission, size: ir.Value) -> ir.Value:
    """The address of `size` (a constant) bytes, aligned to 64, that are the kernel's until it returns."""
    with e.builder.goto_entry_block():
        memory = e.builder.alloca(ir.ArrayType(ir.IntType(8), size.constant))
    memory.align = 64
    return e.builder.ptrtoint(memory, I64)


@idiom("void(i64)")
def begin_products(e: Emission, saved: ir.Value) -> None:
    """Before the first product. What this changes of the thread's state, `end_products` restores from the 64 bytes at `saved`."""


@idiom("void(i64)")
def end_products(e: Emission, saved: ir.Value) -> None:
    """After the last product. No memory need be written when it returns but what products have as output."""


def _products(e: Emission, codes: ir.Value, block: ir.Value, vectors: range, output: ir.Value) -> None:
    """For each token the sums over the columns of these vectors, by products that fit 16 bits."""
    b = e.builder
    wide = ir.VectorType(ir.IntType(16), 64)
    with cgutils.for_range(b, I64(TOKENS)) as loop:
        total = constant(I32X16, 0)
        for vector in vectors:
            weights = b.load(e.pointer(codes, I8X64, 64 * vector), align=1)
            word = b.load(e.pointer(b.add(block, b.mul(loop.index, I64(32))), ir.IntType(32), 4 * vector), align=1)
            values = b.bitcast(splat(b, word, I32X16), I8X64)
            products = b.mul(b.sext(weights, wide), b.sext(values, wide))  # 16 bits: at most 128 * 127
            for offset in range(4):
                lanes = ir.Constant(ir.VectorType(ir.IntType(32), 16), [4 * lane + offset for lane in range(16)])
                part = b.shuffle_vector(products, ir.Constant(wide, ir.Undefined), lanes)
                total = b.add(total, b.sext(part, I32X16))
        b.store(total, e.pointer(b.add(output, b.mul(loop.index, I64(64))), I32X16), align=1)


@idiom("void(i64, i64, i64)")
def product(e: Emission, codes: ir.Value, block: ir.Value, output: ir.Value) -> None:
    """int32[16 tokens][16 rows] at `output`, exact: for each the sum over the group's 32 columns of code * activation code."""
    _products(e, codes, block, range(8), output)


@idiom("void(i64, i64, i64)")
def product_of_halves(e: Emission, codes: ir.Value, block: ir.Value, output: ir.Value) -> None:
    """Two such matrices, one after the other: of columns 0-15 and of columns 16-31."""
    _products(e, codes, block, range(4), output)
    _products(e, codes, block, range(4, 8), e.builder.add(output, I64(PRODUCT_BYTES)))


def _signed_type(arguments: Kinds) -> types.Type | None:
    fits = isinstance(arguments[0], types.UniTuple) and arguments[0].dtype == VECTORS["i8x64"] and isinstance(arguments[1], types.IntegerLiteral)
    return types.void if fits else None


@typed_idiom(_signed_type)
def tile_store_signed(e: Emission, kinds: Kinds, codes: ir.Value, zero: Any, address: ir.Value) -> None:
    """The vectors of a tuple, one after the other, `zero` (a constant) subtracted from every byte."""
    b = e.builder
    middle = constant(I8X64, kinds[1].literal_value)
    for vector in range(kinds[0].count):
        value = b.extract_value(codes, vector)
        b.store(b.sub(value, middle), e.pointer(address, I8X64, 64 * vector), align=1)


@typed_idiom(lambda arguments: types.UniTuple(VECTORS["f32x16"], TOKENS) if len(arguments) == 1 else None)
def tile_load(e: Emission, kinds: Kinds, address: ir.Value) -> ir.Value:
    """The accumulators of 16 tokens that `tile_keep` has written."""
    tile = ir.Constant(ir.ArrayType(F32X16, TOKENS), ir.Undefined)
    return finish(e, tile, [e.builder.load(e.pointer(address, F32X16, 64 * token), align=1) for token in range(TOKENS)])


@typed_idiom(lambda arguments: types.void if is_tile(arguments[0]) else None)
def tile_keep(e: Emission, kinds: Kinds, tile: ir.Value, address: ir.Value) -> None:
    """The accumulators, one vector after the other."""
    for token in range(kinds[0].count):
        e.builder.store(e.builder.extract_value(tile, token), e.pointer(address, F32X16, 64 * token), align=1)


def _add_type(arguments: Kinds) -> types.Type | None:
    return arguments[0] if is_tile(arguments[0]) and arguments[0].count == TOKENS else None


@typed_idiom(_add_type)
def tile_add_product(e: Emission, kinds: Kinds, tile: ir.Value, output: ir.Value, block: ir.Value, scale: ir.Value) -> ir.Value:
    """For each token: tile += float32(its 16 sums at `output`) * (scale * activation scale), the product of the scales rounded first."""
    b = e.builder
    activations = activations_of_sixteen(e, block)
    totals = []
    for token in range(TOKENS):
        value = b.sitofp(b.load(e.pointer(output, I32X16, 64 * token), align=1), F32X16)
        totals.append(e.call("fma", value, b.fmul(scale, activations.scale(token)), b.extract_value(tile, token)))
    return finish(e, tile, totals)


@typed_idiom(_add_type)
def tile_add_product_of_halves(
    e: Emission, kinds: Kinds, tile: ir.Value, output: ir.Value, block: ir.Value, scale: ir.Value, low: ir.Value, high: ir.Value
) -> ir.Value:
    """The same with low * sum of the first half + high * sum of the second. `low` and `high` are whole numbers from -128 to 127 in float32, which holds the
    products and their sum exactly: 2 * 128 * (16 * 32 * 127) < 2^24. Beginning with + 0, which no zero with a sign survives, it is what an integer gives."""
    b = e.builder
    activations = activations_of_sixteen(e, block)
    totals = []
    for token in range(TOKENS):
        first, second = (b.sitofp(b.load(e.pointer(output, I32X16, PRODUCT_BYTES * half + 64 * token), align=1), F32X16) for half in (0, 1))
        value = e.call("fma", first, low, e.call("fma", second, high, constant(F32X16, 0.0)))
        totals.append(e.call("fma", value, b.fmul(scale, activations.scale(token)), b.extract_value(tile, token)))
    return finish(e, tile, totals)

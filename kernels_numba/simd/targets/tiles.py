"""Idioms of the linear kernels: accumulators of a tile of 16 rows by `count` tokens, as a tuple of vectors, unrolled while emitting.

Part of the portable target. The dot products go through the target's `dot_u8i8` and `dot_u7i8`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from kernels_numba.simd.vectors import VECTORS, splat
from kernels_numba.simd.vocabulary import Emission, typed_idiom

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
F32X16, I32X16, I8X64 = (VECTORS[name].llvm for name in ("f32x16", "i32x16", "i8x64"))
Kinds = tuple[Any, ...]
"""Numba's types of an idiom's arguments; which ones they are is known once the typing rule has accepted them."""

INTERLEAVED_TOKENS = 4
"""Tokens whose dot products are interleaved: enough to hide the latency, few enough not to spill."""


def is_tile(kind: types.Type) -> bool:
    return isinstance(kind, types.UniTuple) and kind.dtype == VECTORS["f32x16"]


def _zero_type(arguments: Kinds, vector: str) -> types.Type | None:
    if len(arguments) == 1 and isinstance(arguments[0], types.IntegerLiteral):
        return types.UniTuple(VECTORS[vector], arguments[0].literal_value)
    return None


@typed_idiom(lambda arguments: _zero_type(arguments, "f32x16"))
def tile_zero(e: Emission, kinds: Kinds, count: ir.Value) -> ir.Value:
    """Accumulators of zero for `count` (a constant) tokens."""
    tokens = kinds[0].literal_value
    return ir.Constant(ir.ArrayType(F32X16, tokens), [ir.Constant(F32X16, [0.0] * 16)] * tokens)


@typed_idiom(lambda arguments: _zero_type(arguments, "i32x16"))
def tile_zero_i32(e: Emission, kinds: Kinds, count: ir.Value) -> ir.Value:
    """Integer accumulators of zero for `count` (a constant) rows."""
    rows = kinds[0].literal_value
    return ir.Constant(ir.ArrayType(I32X16, rows), [ir.Constant(I32X16, [0] * 16)] * rows)


def _broadcast(e: Emission, address: ir.Value, offset: int, vector: ir.VectorType) -> ir.Value:
    element = vector.element
    return splat(e.builder, e.builder.load(e.pointer(address, element, offset), align=4), vector)


class _Block:
    """The activations of a group for `count` tokens (`ops.common` has the layout): from `first` on in a tile of `width` tokens, or, where there are more
    tokens than its width (then `first` is 0), those of this tile and of the next, whose block lies `stride` bytes behind."""

    def __init__(self, e: Emission, address: ir.Value, width: int, first: ir.Value, stride: ir.Value, count: int) -> None:
        b = e.builder
        self.e, self.width = e, width
        tiles = [b.add(address, b.mul(stride, I64(tile))) if tile else address for tile in range(-(-count // width))]
        self.of_codes = [b.add(tile, b.mul(first, I64(32))) if count < width else tile for tile in tiles]
        self.of_numbers = [b.add(tile, b.mul(first, I64(4))) if count < width else tile for tile in tiles]

    def codes(self, token: int, vector: int) -> ir.Value:
        tile, token = divmod(token, self.width)
        return self.e.builder.bitcast(_broadcast(self.e, self.of_codes[tile], 32 * token + 4 * vector, I32X16), I8X64)

    def _number(self, token: int, offset: int) -> tuple[ir.Value, int]:
        """Address and offset of one of the numbers that a block has of each token; `offset` is that of the first token, over the width."""
        tile, token = divmod(token, self.width)
        return self.of_numbers[tile], offset * self.width + 4 * token

    def scale(self, token: int) -> ir.Value:
        return _broadcast(self.e, *self._number(token, 32), F32X16)

    def scaled_sum(self, token: int) -> ir.Value:
        return _broadcast(self.e, *self._number(token, 36), F32X16)

    def excess(self, token: int) -> ir.Value:
        return _broadcast(self.e, *self._number(token, 40), I32X16)

    def minus_zero_times_sum(self, token: int, half: int | None, zero_shift: int) -> ir.Value:
        """The first value of an integer accumulator: -(2 ** zero_shift) * sum of the codes (of one half of the group)."""
        b = self.e.builder
        if zero_shift == 0:
            return ir.Constant(I32X16, [0] * 16)
        places = [self._number(token, 40 + 4 * side) for side in (0, 1) if half in (None, side)]
        parts = [b.load(self.e.pointer(address, I32, offset), align=4) for address, offset in places]
        total = parts[0] if half is not None else b.add(parts[0], parts[1])
        return splat(b, b.mul(total, I32(-(1 << zero_shift))), I32X16)


def activations_of_sixteen(e: Emission, address: ir.Value) -> _Block:
    """A group's activations of a tile of 16 tokens."""
    return _Block(e, address, 16, I64(0), I64(0), 16)


def _after(e: Emission, scale: ir.Value, other: ir.Value, kinds: Kinds, ordered: bool) -> ir.Value:
    """The scale, for use when the other value is there. Where something else than 0 starts the sums (`ordered`), LLVM would start those of all tokens at once,
    and spill; where they start from 0 its own order is as good."""
    many = kinds[0].count > INTERLEAVED_TOKENS
    return e.call("after", scale, other) if many and ordered else scale


def _token_groups(tokens: int, width: int) -> list[range]:
    return [range(first, min(first + width, tokens)) for first in range(0, tokens, width)]


def finish(e: Emission, tile: ir.Value, parts: list[ir.Value]) -> ir.Value:
    for token, value in enumerate(parts):
        tile = e.builder.insert_value(tile, value, token)
    return tile


def _dot(zero_shift: int) -> str:
    """The dot product that fits the codes: those of 8 bits have their zero at 128, all others stay below 128."""
    return "dot_u8i8" if zero_shift == 7 else "dot_u7i8"


def _accumulate_type(arguments: Kinds) -> types.Type | None:
    return arguments[0] if is_tile(arguments[0]) and all(isinstance(arguments[index], types.IntegerLiteral) for index in (3, 6)) else None


def _accumulate(
    e: Emission, kinds: Kinds, tile: ir.Value, weights: list[ir.Value], activations: _Block, start: Callable[[int], ir.Value], dot: str, scale: ir.Value,
    ordered: bool, multiply: Callable[[ir.Value], ir.Value] | None = None,
) -> ir.Value:  # fmt: skip
    """For each token: tile += float32(start + sum of code * activation code) * (scale * activation scale). `ordered`: see `_after`; `multiply` is applied to
    the sum, of a single token alone."""
    b = e.builder
    weights = [e.call("keep_in_register", weight) for weight in weights]
    totals = [b.extract_value(tile, token) for token in range(kinds[0].count)]
    for tokens in _token_groups(kinds[0].count, INTERLEAVED_TOKENS):
        dots = {token: start(token) for token in tokens}
        if kinds[0].count == 1:  # two chains: one of eight dot products is longer than the rest of a group's work
            zero = ir.Constant(I32X16, [0] * 16)
            chains = [zero if multiply else dots[0], zero]
            for vector in range(8):
                chains[vector % 2] = e.call(dot, chains[vector % 2], weights[vector], activations.codes(0, vector))
            total = b.add(*chains)
            dots[0] = b.add(multiply(total), dots[0]) if multiply else total
        else:
            for vector in range(8):
                for token in tokens:
                    dots[token] = e.call(dot, dots[token], weights[vector], activations.codes(token, vector))
        for token in tokens:
            scale = _after(e, scale, dots[token], kinds, ordered)
            factor = b.fmul(scale, activations.scale(token))
            totals[token] = e.call("fma", b.sitofp(dots[token], F32X16), factor, totals[token])
            scale = _after(e, scale, totals[token], kinds, ordered)
    return finish(e, tile, totals)


@typed_idiom(_accumulate_type)
def tile_accumulate(
    e: Emission, kinds: Kinds, tile: ir.Value, codes: Any, block: ir.Value, width: Any, first: ir.Value, stride: ir.Value, shift: Any,
    scale: ir.Value,
) -> ir.Value:  # fmt: skip
    """For each token: tile += float32(sum of (code - zero) * activation code) * (scale * activation scale), the product of the scales rounded first."""
    activations = _Block(e, block, kinds[3].literal_value, first, stride, kinds[0].count)
    weights = [e.builder.extract_value(codes, vector) for vector in range(8)]
    zero_shift = kinds[6].literal_value

    def start(token: int) -> ir.Value:
        return activations.minus_zero_times_sum(token, None, zero_shift)

    return _accumulate(e, kinds, tile, weights, activations, start, _dot(zero_shift), scale, bool(zero_shift))


@typed_idiom(_accumulate_type)
def tile_accumulate_sub_scales(
    e: Emission, kinds: Kinds, tile: ir.Value, codes: Any, block: ir.Value, width: Any, first: ir.Value, stride: ir.Value, shift: Any,
    scale: ir.Value, low: ir.Value, high: ir.Value,
) -> ir.Value:  # fmt: skip
    """The same where columns 0-15 and 16-31 have integer scales of their own: the integer sum is low * dot of the first half + high * dot of the second."""
    b = e.builder
    activations = _Block(e, block, kinds[3].literal_value, first, stride, kinds[0].count)
    weights = [e.call("keep_in_register", b.extract_value(codes, vector)) for vector in range(8)]
    dot = _dot(kinds[6].literal_value)
    totals = [b.extract_value(tile, token) for token in range(kinds[0].count)]
    for tokens in _token_groups(kinds[0].count, INTERLEAVED_TOKENS // 2):
        halves = {(token, half): activations.minus_zero_times_sum(token, half, kinds[6].literal_value) for token in tokens for half in (0, 1)}
        for vector in range(4):
            for token in tokens:
                for half in (0, 1):
                    part = 4 * half + vector
                    halves[token, half] = e.call(dot, halves[token, half], weights[part], activations.codes(token, part))
        for token in tokens:
            total = b.add(b.mul(halves[token, 0], low), b.mul(halves[token, 1], high))
            scale = _after(e, scale, total, kinds, bool(kinds[6].literal_value))
            factor = b.fmul(scale, activations.scale(token))
            totals[token] = e.call("fma", b.sitofp(total, F32X16), factor, totals[token])
            scale = _after(e, scale, totals[token], kinds, bool(kinds[6].literal_value))
    return finish(e, tile, totals)


def _bound_type(arguments: Kinds) -> types.Type | None:
    return arguments[0] if is_tile(arguments[0]) and isinstance(arguments[3], types.IntegerLiteral) else None


@typed_idiom(_bound_type)
def tile_accumulate_bound(
    e: Emission, kinds: Kinds, tile: ir.Value, codes: Any, block: ir.Value, width: Any, first: ir.Value, stride: ir.Value, scale: ir.Value
) -> ir.Value:
    """For each token: tile += float32(excess + sum of 8 * code * activation code) * (scale * activation scale), the product of the scales rounded first.
    Codes are 0..31; `excess` is the first integer of a block's two (`ops.screen`)."""
    b = e.builder
    activations = _Block(e, block, kinds[3].literal_value, first, stride, kinds[0].count)
    three = ir.Constant(I32X16, [3] * 16)  # nothing crosses from a byte to the next
    weights = [b.extract_value(codes, vector) for vector in range(8)]
    if kinds[0].count == 1:  # the sum is multiplied instead, for the sake of CPUs whose dot product of 8 bits takes twice as long as that of 7
        return _accumulate(e, kinds, tile, weights, activations, activations.excess, "dot_u7i8", scale, True, lambda total: b.shl(total, three))
    weights = [b.bitcast(b.shl(b.bitcast(weight, I32X16), three), I8X64) for weight in weights]
    return _accumulate(e, kinds, tile, weights, activations, activations.excess, "dot_u8i8", scale, True)


def _first_tile(arguments: Kinds) -> types.Type | None:
    return arguments[0] if is_tile(arguments[0]) else None


@typed_idiom(_first_tile)
def tile_add_minimum(e: Emission, kinds: Kinds, tile: ir.Value, block: ir.Value, width: Any, first: ir.Value, stride: ir.Value, minimum: ir.Value) -> ir.Value:
    """For each token: tile += minimum * (activation scale * sum of the activation codes), fused."""
    activations = _Block(e, block, kinds[2].literal_value, first, stride, kinds[0].count)
    parts = [e.call("fma", minimum, activations.scaled_sum(token), e.builder.extract_value(tile, token)) for token in range(kinds[0].count)]
    return finish(e, tile, parts)


@typed_idiom(_first_tile)
def tile_fma(e: Emission, kinds: Kinds, tile: ir.Value, vector: ir.Value, address: ir.Value, stride: ir.Value) -> ir.Value:
    """For each token t: tile[t] = fma(vector, float32 at address + t * stride, tile[t])."""
    parts = []
    for token in range(kinds[0].count):
        parts.append(e.call("fma", vector, _broadcast(e, address, 0, F32X16), e.builder.extract_value(tile, token)))
        address = e.builder.add(address, stride)
    return finish(e, tile, parts)


def _is_integer_tile(kind: types.Type) -> bool:
    return isinstance(kind, types.UniTuple) and kind.dtype == VECTORS["i32x16"]


def _integer_tile(arguments: Kinds) -> types.Type | None:
    return arguments[0] if _is_integer_tile(arguments[0]) else None


@typed_idiom(_integer_tile)
def tile_dot_i16(e: Emission, kinds: Kinds, tile: ir.Value, vector: ir.Value, address: ir.Value, stride: ir.Value) -> ir.Value:
    """For each row r: tile[r] = dot_i16(tile[r], vector, the two int16 at address + r * stride)."""
    parts = []
    for row in range(kinds[0].count):
        parts.append(e.call("dot_i16", e.builder.extract_value(tile, row), vector, _broadcast(e, address, 0, I32X16)))
        address = e.builder.add(address, stride)
    return finish(e, tile, parts)


def _scaled_type(arguments: Kinds) -> types.Type | None:
    return types.UniTuple(VECTORS["f32x16"], arguments[0].count) if _is_integer_tile(arguments[0]) else None


@typed_idiom(_scaled_type)
def tile_scaled(e: Emission, kinds: Kinds, tile: ir.Value, vector: ir.Value, address: ir.Value, stride: ir.Value) -> ir.Value:
    """A tile of float32: float32(tile[r]) * vector * float32 at address + r * stride, rounded each time."""
    b = e.builder
    rows = kinds[0].count
    result = ir.Constant(ir.ArrayType(F32X16, rows), ir.Undefined)
    for row in range(rows):
        value = b.fmul(b.sitofp(b.extract_value(tile, row), F32X16), vector)
        result = b.insert_value(result, b.fmul(value, _broadcast(e, address, 0, F32X16)), row)
        address = b.add(address, stride)
    return result


def _store_type(arguments: Kinds) -> types.Type | None:
    return types.void if is_tile(arguments[0]) else None


@typed_idiom(_store_type)
def tile_store(
    e: Emission, kinds: Kinds, tile: ir.Value, count: ir.Value, bias: ir.Value, output: ir.Value, stride: ir.Value,
    residual: ir.Value, residual_stride: ir.Value,
) -> None:  # fmt: skip
    """For each token t < count: 16 floats at output + t * stride = tile[t] + bias, and + those at residual + t * residual_stride if residual is not 0."""
    b = e.builder
    tokens = kinds[0].count

    def store(token: int) -> None:
        value = b.fadd(b.extract_value(tile, token), bias)
        address = b.add(output, b.mul(stride, I64(token)))
        with b.if_else(b.icmp_signed("==", residual, I64(0))) as (without, with_residual):
            with without:
                b.store(value, e.pointer(address, F32X16), align=4)
            with with_residual:
                other = b.load(e.pointer(b.add(residual, b.mul(residual_stride, I64(token))), F32X16), align=4)
                b.store(b.fadd(value, other), e.pointer(address, F32X16), align=4)

    with b.if_else(b.icmp_signed(">=", count, I64(tokens))) as (full, part):
        with full:  # without a test for each token
            for token in range(tokens):
                store(token)
        with part:
            for token in range(tokens - 1):
                with b.if_then(b.icmp_signed(">", count, I64(token))):
                    store(token)


def _codes_type(arguments: Kinds) -> types.Type | None:
    return types.void if isinstance(arguments[0], types.UniTuple) and arguments[0].dtype == VECTORS["i8x64"] else None


@typed_idiom(_codes_type)
def tile_store_codes(e: Emission, kinds: Kinds, codes: ir.Value, address: ir.Value) -> None:
    """The vectors of a tuple, one after the other."""
    for vector in range(kinds[0].count):
        e.builder.store(e.builder.extract_value(codes, vector), e.pointer(address, I8X64, 64 * vector), align=1)

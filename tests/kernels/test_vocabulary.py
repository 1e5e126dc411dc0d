"""Every idiom of the vocabulary against NumPy (or exact fractions), on every level of this machine."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.ops import reference
from kernels_numba.simd.function import KernelFunction, kernel_function
from kernels_numba.simd.levels import level_by_name
from tests.kernels.support import Memory, every_level
from tests.support.kernels import compile_kernels

F32 = np.float32
COUNT = 256

ELSEWHERE = {
    "dot_u8i8", "dot_u7i8", "dot_i16", "keep_in_register", "after",  # tests/simd/test_dot_products.py, and every linear kernel
    "tile_zero", "tile_accumulate", "tile_accumulate_sub_scales", "tile_add_minimum", "tile_fma", "tile_store", "tile_store_codes",  # linear kernels
    "tile_accumulate_bound",  # test_screen.py
    "chosen", "scratch", "begin_products", "end_products", "product", "product_of_halves", "tile_store_signed", "tile_load", "tile_keep", "tile_add_product",
    "tile_add_product_of_halves",  # test_matrices.py
    "tile_add", "tile_zero_i32", "tile_dot_i16", "tile_scaled",  # attention
    "atomic_add", "atomic_load", "atomic_store", "pause", "call_kernel", "call_system", "call_clock",  # the executor
    "floating_point_mode", "set_floating_point_mode", "plain_floating_point_mode",
}  # fmt: skip


# -- kernels: each loads vector number i of its inputs and stores the result of idiom k at output + 64 * (k * count + i)


@kernel_function
def float_idioms(simd, operands, step, worker, workers):
    """Operands: count, x, y, z (float32[count, 16]), output."""
    count = simd.load_i64(operands)
    for i in range(count):
        x = simd.load_f32x16(simd.load_i64(operands + 8) + 64 * i)
        y = simd.load_f32x16(simd.load_i64(operands + 16) + 64 * i)
        z = simd.load_f32x16(simd.load_i64(operands + 24) + 64 * i)
        output = simd.load_i64(operands + 32) + 64 * i
        size = 64 * count
        simd.store_f32x16(output, simd.fma(x, y, z))
        simd.store_f32x16(output + size, simd.absolute(x))
        simd.store_f32x16(output + 2 * size, simd.maximum(x, y))
        simd.store_f32x16(output + 3 * size, simd.minimum(x, y))
        simd.store_f32x16(output + 4 * size, simd.negate(x))
        simd.store_f32x16(output + 5 * size, simd.copy_sign(x, y))
        simd.store_f32x16(output + 6 * size, simd.select_less(x, y, z, x))
        simd.store_f32x16(output + 7 * size, simd.even_lanes(x, y))
        simd.store_f32x16(output + 8 * size, simd.odd_lanes(x, y))
        simd.store_f32x16(output + 9 * size, simd.interleave_low(x, y))
        simd.store_f32x16(output + 10 * size, simd.interleave_high(x, y))
        simd.store_f32x16(output + 11 * size, simd.splat_f32(simd.sum_lanes(x)))
        simd.store_f32x16(output + 12 * size, simd.splat_f32(simd.maximum_lanes(x)))
        simd.store_f32x16(output + 13 * size, simd.keep_lanes(x, i % 19 - 1, i % 23 - 2, y))
        simd.store_f32x16(output + 14 * size, x + y)
        simd.store_f32x16(output + 15 * size, x - y)
        simd.store_f32x16(output + 16 * size, x * y)
        simd.store_f32x16(output + 17 * size, x / y)
        simd.store_f32x16(output + 18 * size, simd.f32x16_from_bits(simd.bits_from_f32x16(x) ^ simd.bits_from_f32x16(y)))
        simd.store_f32x16(output + 19 * size, simd.f32_from_f64(simd.f64_from_f32(x) * simd.f64_from_f32(y) + simd.f64_from_f32(z)))
        scalar = simd.load_f32(simd.load_i64(operands + 8) + 64 * i)
        other = simd.load_f32(simd.load_i64(operands + 16) + 64 * i)
        third = simd.load_f32(simd.load_i64(operands + 24) + 64 * i)
        simd.store_f32(output + 20 * size, simd.fma_f32(scalar, other, third))
        simd.store_f32(output + 20 * size + 4, simd.sqrt_f32(simd.f32_from_bits(simd.bits_from_f32(scalar) & 0x7FFFFFFF)))


def float_oracle(x: NDArray[F32], y: NDArray[F32], z: NDArray[F32]) -> list[NDArray[F32]]:
    index = np.arange(COUNT)[:, None]
    lanes = np.arange(16)
    kept = (lanes >= index % 19 - 1) & (lanes < index % 23 - 2)
    tree = x
    largest = x
    for half in (8, 4, 2, 1):
        tree = tree[:, :half] + tree[:, half:]
        largest = np.maximum(largest[:, :half], largest[:, half:])
    both = np.concatenate([x, y], axis=1)
    pairs = np.stack([x, y], axis=2).reshape(COUNT, 32)
    scalars = np.zeros((COUNT, 16), F32)
    scalars[:, 0] = reference.fma(x, y, z)[:, 0]
    scalars[:, 1] = np.sqrt(np.abs(x[:, 0]))
    wide = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    return [
        reference.fma(x, y, z), np.abs(x), np.where(x > y, x, y), np.where(x < y, x, y), -x, np.copysign(x, y), np.where(x < y, z, x),
        both[:, ::2], both[:, 1::2], pairs[:, :16], pairs[:, 16:],
        np.broadcast_to(tree, x.shape), np.broadcast_to(largest, x.shape), np.where(kept, x, y),
        x + y, x - y, x * y, x / y, (x.view(np.int32) ^ y.view(np.int32)).view(F32), wide.astype(F32), scalars,
    ]  # fmt: skip


@kernel_function
def integer_idioms(simd, operands, step, worker, workers):
    """Operands: count, x, y (int32[count, 16]), output."""
    count = simd.load_i64(operands)
    for i in range(count):
        address = simd.load_i64(operands + 8) + 64 * i
        x = simd.load_i32x16(address)
        y = simd.load_i32x16(simd.load_i64(operands + 16) + 64 * i)
        output = simd.load_i64(operands + 24) + 64 * i
        size = 64 * count
        simd.store_i32x16(output, x + y)
        simd.store_i32x16(output + size, x - y)
        simd.store_i32x16(output + 2 * size, x * y)
        simd.store_i32x16(output + 3 * size, (x & y) | (x ^ simd.splat_i32(0x55AA55AA)))
        simd.store_i32x16(output + 4 * size, x << 5)
        simd.store_i32x16(output + 5 * size, x >> 7)
        simd.store_i32x16(output + 6 * size, simd.maximum_i32(x, y))
        simd.store_i32x16(output + 7 * size, simd.splat_i32(simd.maximum_lanes_i32(x)))
        simd.store_i32x16(output + 8 * size, simd.splat_i32(simd.sum_lanes_i32(x)))
        simd.store_f32x16(output + 9 * size, simd.f32_from_i32(x))
        simd.store_i32x16(output + 10 * size, simd.sign_extend_i8(simd.truncate_i8(x)))
        simd.store_i32x16(output + 11 * size, simd.zero_extend_i8(simd.load_i8x16(address)))
        simd.store_i8x16(output + 12 * size, simd.truncate_i8(y))
        simd.store_i8x64(output + 13 * size, simd.as_i8x64(x) + simd.load_i8x64(address))
        simd.store_i32x16(output + 14 * size, simd.as_i32x16(simd.splat_4xi8(address)))
        simd.store_i8x64(output + 15 * size, simd.splat_i8(simd.load_i8(address)))
        words = output + 16 * size
        simd.store_i64(words, simd.load_i64(address))
        simd.store_i64(words + 8, simd.load_i32(address))
        simd.store_i64(words + 16, simd.load_u32(address))
        simd.store_i64(words + 24, simd.load_u16(address))
        simd.store_i64(words + 32, simd.load_u8(address))
        simd.store_i64(words + 40, simd.load_i8(address))
        simd.store_i32(words + 48, simd.load_i64(address))
        simd.store_u16(words + 52, simd.load_i64(address))
        simd.store_u8(words + 54, simd.load_i64(address))
        simd.store_f32(words + 56, simd.f32_from_i64(simd.load_i64(address)))
        simd.prefetch(address, 2)


def integer_oracle(x: NDArray[np.int32], y: NDArray[np.int32]) -> list[NDArray]:
    unsigned = x.view(np.uint32)
    scalars = np.zeros((COUNT, 64), np.uint8)
    wide = x.view(np.int64)[:, :1]
    for offset, value in (
        (0, wide), (8, x[:, :1].astype(np.int64)), (16, unsigned[:, :1].astype(np.int64)), (24, (unsigned[:, :1] & 0xFFFF).astype(np.int64)),
        (32, (unsigned[:, :1] & 0xFF).astype(np.int64)), (40, x.view(np.int8)[:, :1].astype(np.int64)), (48, x[:, :1]),
        (52, x.view(np.uint16)[:, :1]), (54, x.view(np.uint8)[:, :1]), (56, wide.astype(F32)),
    ):  # fmt: skip
        part = np.ascontiguousarray(value).view(np.uint8)
        scalars[:, offset : offset + part.shape[1]] = part
    stored = np.zeros((COUNT, 64), np.uint8)
    stored[:, :16] = y.astype(np.int8).view(np.uint8)
    return [
        x + y, x - y, x * y, (x & y) | (x ^ np.int32(0x55AA55AA)), x << 5, (unsigned >> 7).view(np.int32), np.maximum(x, y),
        np.broadcast_to(x.max(axis=1, keepdims=True), x.shape), np.broadcast_to(x.sum(axis=1, keepdims=True).astype(np.int32), x.shape),
        x.astype(F32), x.astype(np.int8).astype(np.int32), x.view(np.uint8)[:, :16].astype(np.int32), stored,
        x.view(np.int8) + x.view(np.int8), np.broadcast_to(x[:, :1], x.shape), np.broadcast_to(x.view(np.int8)[:, :1], (COUNT, 64)), scalars,
    ]  # fmt: skip


@kernel_function
def rounding_idioms(simd, operands, step, worker, workers):
    """Operands: count, x (float32[count, 16], |x| <= 2^22), w (float64[count, 16], |w| < 2^51), output."""
    count = simd.load_i64(operands)
    for i in range(count):
        x = simd.load_f32x16(simd.load_i64(operands + 8) + 64 * i)
        address = simd.load_i64(operands + 16) + 128 * i
        w = simd.load_f64x16(address)
        output = simd.load_i64(operands + 24) + 64 * i
        size = 64 * count
        simd.store_f32x16(output, simd.round_f32(x))
        simd.store_i32x16(output + size, simd.round_i32(x))
        simd.store_i32x16(output + 2 * size, simd.round_i32_from_f64(w))
        simd.store_f32x16(output + 3 * size, simd.f32_from_f64(simd.round_f64(w) - w))
        simd.store_f32x16(output + 4 * size, simd.f32_from_f64(simd.splat_f64(simd.load_f64(address)) + simd.splat_f64(simd.f64_from_i64(i)) * w))
        simd.store_f64x16(output + 5 * size + 64 * i, w - simd.round_f64(w))  # as long as two results
        simd.store_f64(output + 7 * size, simd.sum_lanes_f64(w))


@kernel_function
def half_idioms(simd, operands, step, worker, workers):
    """Operands: count, halves (int16[count, 16]), floats (float32[count, 16]), output."""
    count = simd.load_i64(operands)
    for i in range(count):
        halves = simd.load_i64(operands + 8) + 32 * i
        output = simd.load_i64(operands + 24) + 64 * i
        size = 64 * count
        widened = simd.load_f16x16(halves)
        simd.store_f32x16(output, widened)
        simd.store_f32x16(output + size, simd.load_bf16x16(halves))
        simd.store_f16x16(output + 2 * size, simd.load_f32x16(simd.load_i64(operands + 16) + 64 * i))
        simd.store_f16x16(output + 2 * size + 32, simd.f16_to_f32(simd.f32_to_f16(widened)))
        simd.store_f32x16(output + 3 * size, simd.splat_f16(halves))
        simd.store_f16(output + 4 * size, simd.load_f32(simd.load_i64(operands + 16) + 64 * i))


@kernel_function
def partial_idioms(simd, operands, step, worker, workers):
    """Operands: lanes, address of lanes float32 and of lanes float64, output (three stores of `lanes` float32), columns."""
    lanes = simd.load_i64(operands)
    x = simd.load_lanes_f32(simd.load_i64(operands + 8), lanes)
    w = simd.load_lanes_f64(simd.load_i64(operands + 16), lanes)
    output = simd.load_i64(operands + 24)
    simd.store_lanes_f32(output, x, lanes)
    simd.store_f32x16(step, x + simd.f32_from_f64(w))
    columns = simd.load_i64(operands + 32)
    simd.store_column_f32(columns, x)
    simd.store_column_f16(columns + 1024, x)
    simd.store_column_i8(columns + 1536, simd.round_i32(x))
    simd.store_column_2xi16(columns + 1792, simd.round_i32(x))
    simd.store_i16_apart(columns + 2304, simd.round_i32(x))
    simd.store_i16x16(columns + 2368, simd.round_i32(x))


@kernel_function
def tile_idioms(simd, operands, step, worker, workers):
    """Operands: count, factors float32[8, 16], vectors float32[count, 16], output float32[8, 16]."""
    tile = simd.tile_zero(8)
    for i in range(simd.load_i64(operands)):
        tile = simd.tile_fma(tile, simd.load_f32x16(simd.load_i64(operands + 16) + 64 * i), simd.load_i64(operands + 8) + 4 * i, 64)
    simd.tile_store_rows(tile, simd.load_i64(operands + 24), 64)


KERNELS = (float_idioms, integer_idioms, rounding_idioms, half_idioms, partial_idioms, tile_idioms)


@cache
def addresses(level: str) -> dict[KernelFunction, int]:
    return dict(zip(KERNELS, compile_kernels(level_by_name(level), KERNELS), strict=True))


def call(level: str, kernel: KernelFunction, operands: list[int], step: int = 0) -> None:
    words = np.array(operands, np.int64)
    ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(addresses(level)[kernel])(words.ctypes.data, step, 0, 1)


def run_vectors(level: str, kernel: KernelFunction, inputs: list[NDArray], results: int) -> NDArray[np.uint8]:
    """uint8[results, count, 64]: what the kernel stored per idiom."""
    memory = Memory()
    copies = [memory.copy(array) for array in inputs]
    count = len(inputs[0])
    output = memory.allocate(results * count * 64)
    call(level, kernel, [count, *[array.ctypes.data for array in copies], output.ctypes.data])
    memory.check()
    return output.reshape(results, count, 64)


def agree(actual: NDArray[np.uint8], expected: list[NDArray]) -> None:
    for number, oracle in enumerate(expected):
        oracle = np.ascontiguousarray(oracle)
        bits = oracle.view(np.uint8).reshape(len(oracle), -1)
        if oracle.dtype == F32:  # any NaN is as good as another
            stored = actual[number].view(F32)
            assert (np.isnan(stored) == np.isnan(oracle)).all(), number
            keep = ~np.isnan(oracle)
            np.testing.assert_array_equal(stored[keep].view(np.uint32), oracle[keep].view(np.uint32), err_msg=f"result {number}")
        else:
            np.testing.assert_array_equal(actual[number], bits, err_msg=f"result {number}")


def test_every_idiom_is_tested() -> None:
    from kernels_numba.simd.vocabulary import load_target

    used = {name for kernel in KERNELS for name in kernel.python.__code__.co_names}
    assert set(load_target("portable")) - used - ELSEWHERE == set()


def float_inputs(special: bool) -> list[NDArray[F32]]:
    generator = np.random.default_rng(int(special))
    exponents = generator.integers(-60 if special else -3, 60 if special else 3, (3, COUNT, 16))
    inputs = (generator.standard_normal((3, COUNT, 16)) * 2.0**exponents).astype(F32)
    if special:
        edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-38, 3.4e38, 1.0, -1.0], F32)
        chosen = generator.random(inputs.shape) < 0.3
        inputs[chosen] = generator.choice(edges, chosen.sum())
        inputs[0, :, :] = np.where(np.isnan(inputs[0]), F32(2), inputs[0])  # the lane trees are defined for numbers
    return list(inputs)


@every_level
@pytest.mark.parametrize("special", [False, True])
def test_float_idioms(level: str, special: bool) -> None:
    inputs = float_inputs(special)
    with np.errstate(all="ignore"):
        expected = float_oracle(*inputs)
    agree(run_vectors(level, float_idioms, inputs, len(expected)), expected)


@every_level
def test_integer_idioms(level: str) -> None:
    generator = np.random.default_rng(3)
    x, y = generator.integers(-(2**31), 2**31, (2, COUNT, 16)).astype(np.int32)
    x[0], y[0] = -(2**31), 2**31 - 1
    with np.errstate(all="ignore"):
        expected = integer_oracle(x, y)
    agree(run_vectors(level, integer_idioms, [x, y], len(expected)), expected)


@every_level
def test_rounding_idioms(level: str) -> None:
    generator = np.random.default_rng(4)
    x = generator.uniform(-(2**22), 2**22, (COUNT, 16)).astype(F32)
    x[:40] = generator.integers(-300, 300, (40, 16)) / F32(2)  # ties
    x[40:80] = generator.uniform(-2, 2, (40, 16))
    w = generator.uniform(-(2.0**40), 2.0**40, (COUNT, 16))
    w[:40] = generator.integers(-300, 300, (40, 16)) / 2
    rounded = np.rint(w)
    steps = np.arange(COUNT)[:, None].astype(np.float64)
    tree = w
    for half in (8, 4, 2, 1):
        tree = tree[:, :half] + tree[:, half:]
    sums = np.zeros((COUNT, 8))
    sums[:, :1] = tree
    expected = [
        np.rint(x) + F32(0), np.rint(x).astype(np.int32), rounded.astype(np.int64).astype(np.int32), (rounded - w).astype(F32),
        (w[:, :1] + steps * w).astype(F32), *(w - rounded).reshape(2, COUNT, 8), sums,
    ]  # fmt: skip
    agree(run_vectors(level, rounding_idioms, [x, w], len(expected)), expected)


def half_edges() -> NDArray[F32]:
    """float32 values around every place where the rounding to half floats turns."""
    halves = np.arange(0, 0x7C00, 37, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves + np.append(halves[1:], 65536.0)) / 2
    points = np.concatenate([halves, middles, [65504.0, 65519.99, 65520.0, 2.0**-24, 2.0**-25, 2.0**-26, 6e-8, 0.0, np.inf, 3.4e38]]).astype(F32)
    neighbours = np.concatenate([points, np.nextafter(points, F32(np.inf)), np.nextafter(points, F32(0))])
    return np.concatenate([neighbours, -neighbours])


@every_level
def test_half_floats_exhaustively(level: str) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    floats = np.concatenate([half_edges(), np.random.default_rng(5).integers(0, 2**32, 65536, dtype=np.uint32).view(F32)])[:65536]
    stored = run_vectors(level, half_idioms, [patterns.reshape(-1, 16), floats.reshape(-1, 16)], 5)
    halves = patterns.view(np.float16)
    bfloats = (patterns.astype(np.uint32) << 16).view(F32)
    agree(stored[:2], [halves.astype(F32).reshape(-1, 16), bfloats.reshape(-1, 16)])
    rounded = stored[2].view(np.uint16)
    numbers = ~np.isnan(floats).reshape(-1, 16)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = floats.astype(np.float16).view(np.uint16).reshape(-1, 16)
    np.testing.assert_array_equal(rounded[:, :16][numbers], expected[numbers])
    assert np.isnan(rounded[:, :16].view(np.float16)[~numbers]).all()
    agree(stored[3:4], [np.repeat(halves[::16].astype(F32), 16).reshape(-1, 16)])
    single, first = stored[4].view(np.uint16)[:, 0], numbers[:, 0]
    np.testing.assert_array_equal(single[first], expected[first, 0])
    assert np.isnan(single.view(np.float16)[~first]).all()
    back = rounded[:, 16:].reshape(-1)
    numbers = ~np.isnan(halves)
    np.testing.assert_array_equal(back[numbers], patterns[numbers])
    assert np.isnan(back.view(np.float16)[~numbers]).all()


@every_level
@pytest.mark.parametrize("lanes", [-3, 0, 1, 7, 15, 16, 40])
def test_partial_vectors_touch_nothing_else(level: str, lanes: int) -> None:
    kept = min(max(lanes, 0), 16)
    memory = Memory()
    x = memory.copy(np.arange(1, kept + 1, dtype=F32))
    w = memory.copy(np.arange(1, kept + 1, dtype=np.float64) / 4)
    output, step, columns = memory.allocate(4 * kept), memory.allocate(64), memory.allocate(1024 + 512 + 256 + 512 + 64 + 32)
    call(level, partial_idioms, [lanes, x.ctypes.data, w.ctypes.data, output.ctypes.data, columns.ctypes.data], step.ctypes.data)
    memory.check()
    padded = np.zeros(16, F32)
    padded[:kept] = x
    np.testing.assert_array_equal(output.view(F32), x)
    np.testing.assert_array_equal(step.view(F32), padded * F32(1.25))
    whole = np.zeros((16, 16), F32)
    whole[:, 0] = padded
    np.testing.assert_array_equal(columns[:1024].view(F32).reshape(16, 16), whole)
    np.testing.assert_array_equal(columns[1024:1536].view(np.float16).reshape(16, 16), whole)
    np.testing.assert_array_equal(columns[1536:1792].view(np.int8).reshape(16, 16), whole)
    codes = padded.astype(np.int16)
    pairs = columns[1792:2304].view(np.int16).reshape(8, 32)
    np.testing.assert_array_equal(pairs[:, :2].reshape(-1), codes)
    apart = columns[2304:2368].view(np.int16).reshape(16, 2)
    np.testing.assert_array_equal(apart[:, 0], codes)
    np.testing.assert_array_equal(columns[2368:].view(np.int16), codes)
    assert not pairs[:, 2:].any() and not apart[:, 1].any()


@every_level
def test_tile_of_rows(level: str) -> None:
    generator = np.random.default_rng(6)
    factors, vectors = generator.standard_normal((8, 16)).astype(F32), generator.standard_normal((16, 16)).astype(F32)
    memory = Memory()
    inputs = [memory.copy(factors), memory.copy(vectors)]
    output = memory.allocate(8 * 64)
    call(level, tile_idioms, [16, *[array.ctypes.data for array in inputs], output.ctypes.data])
    memory.check()
    expected = np.zeros((8, 16), F32)
    for i in range(16):
        expected = reference.fma(np.broadcast_to(vectors[i], (8, 16)), factors[:, i : i + 1], expected)
    np.testing.assert_array_equal(output.view(np.uint32).reshape(8, 16), expected.view(np.uint32))


def nearest_float(value: Fraction) -> np.float32:
    """The float32 nearest to an exact number, ties to even."""
    guess = np.float32(float(value))
    candidates = [guess, np.nextafter(guess, F32(np.inf)), np.nextafter(guess, F32(-np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1))


@every_level
def test_fma_against_fractions(level: str) -> None:
    """Sums that lie close to the middle of two float32 numbers, where a second rounding would show."""
    generator = np.random.default_rng(7)
    x, y = (1 + generator.integers(0, 2**23, (2, COUNT, 16)) / 2.0**23).astype(F32)
    z = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        product = Fraction(float(x[index])) * Fraction(float(y[index]))
        rounded = float(np.float32(float(product)))
        tie = 2.0**-24 if index[1] % 2 else 2.0**-23
        z[index] = np.float32(rounded * 2.0 ** int(generator.integers(-30, 30)) + tie)
        if index[0] % 2:
            z[index] = np.float32(float(Fraction(rounded) - product) + 3 * tie)
    actual = run_vectors(level, float_idioms, [x, y, z], 21)[0].view(F32)
    for index in np.ndindex(x.shape):
        exact = Fraction(float(x[index])) * Fraction(float(y[index])) + Fraction(float(z[index]))
        assert actual[index] == nearest_float(exact)
    assert (reference.fma(x, y, z) == actual).all()

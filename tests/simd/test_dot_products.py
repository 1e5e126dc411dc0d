"""The dot products of bytes and of pairs of 16 bits: exact on every level that this machine runs, and made of the instructions that a level is there for."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.simd.function import kernel_function
from kernels_numba.simd.levels import LEVELS, Level
from tests.support.kernels import compile_kernels, runnable_levels

COUNT = 64


@kernel_function
def dot_of_bytes(simd, operands, step, worker, workers):
    """Operands: count, totals int32[count, 16], unsigned and signed bytes [count, 64], results int32[count, 16]."""
    for i in range(simd.load_i64(operands)):
        total = simd.load_i32x16(simd.load_i64(operands + 8) + 64 * i)
        unsigned = simd.load_i8x64(simd.load_i64(operands + 16) + 64 * i)
        signed = simd.load_i8x64(simd.load_i64(operands + 24) + 64 * i)
        simd.store_i32x16(simd.load_i64(operands + 32) + 64 * i, simd.dot_u8i8(total, unsigned, signed))
    return 0


@kernel_function
def dot_of_seven_bits(simd, operands, step, worker, workers):
    """The same with `dot_u7i8`."""
    for i in range(simd.load_i64(operands)):
        total = simd.load_i32x16(simd.load_i64(operands + 8) + 64 * i)
        unsigned = simd.load_i8x64(simd.load_i64(operands + 16) + 64 * i)
        signed = simd.load_i8x64(simd.load_i64(operands + 24) + 64 * i)
        simd.store_i32x16(simd.load_i64(operands + 32) + 64 * i, simd.dot_u7i8(total, unsigned, signed))
    return 0


@kernel_function
def dot_of_pairs(simd, operands, step, worker, workers):
    """Operands: count, totals int32[count, 16], x and y int16[count, 32], results int32[count, 16]."""
    for i in range(simd.load_i64(operands)):
        x = simd.load_i32x16(simd.load_i64(operands + 16) + 64 * i)
        y = simd.load_i32x16(simd.load_i64(operands + 24) + 64 * i)
        total = simd.load_i32x16(simd.load_i64(operands + 8) + 64 * i)
        simd.store_i32x16(simd.load_i64(operands + 32) + 64 * i, simd.dot_i16(total, x, y))
    return 0


@kernel_function
def dot_of_broadcast(simd, operands, step, worker, workers):
    """One vector of weights by the activations of 4 tokens, each 4 bytes for all rows."""
    weights = simd.load_i8x64(operands)
    for token in range(4):
        total = simd.load_i32x16(step + 64 * token)
        simd.store_i32x16(step + 64 * token, simd.dot_u8i8(total, weights, simd.splat_4xi8(worker + 4 * token)))
    return 0


@pytest.mark.parametrize("level", runnable_levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("function, largest", [(dot_of_bytes, 255), (dot_of_seven_bits, 127)])
def test_dot_products_are_exact(level: Level, function, largest: int) -> None:
    random = np.random.default_rng(5)
    unsigned = aligned_zeros((COUNT, 64), np.uint8)
    signed = aligned_zeros((COUNT, 64), np.int8)
    totals = aligned_zeros((COUNT, 16), np.int32)
    results = aligned_zeros((COUNT, 16), np.int32)
    unsigned[:] = random.integers(0, largest + 1, unsigned.shape)
    signed[:] = random.integers(-128, 128, signed.shape)
    totals[:] = random.integers(-(1 << 31), 1 << 31, totals.shape)
    unsigned[:6] = np.array([largest, largest, 0, 1, largest // 2 + 1, 127])[:, None]
    signed[:6] = np.array([-128, 127, -128, -1, -128, -128])[:, None]
    operands = np.array([COUNT, *(address_of(array) for array in (totals, unsigned, signed, results))], np.int64)
    [address] = compile_kernels(level, [function])
    ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(address)(address_of(operands), 0, 0, 1)
    products = unsigned.astype(np.int64) * signed
    expected = totals + products.reshape(COUNT, 16, 4).sum(2)
    assert np.array_equal(results, expected.astype(np.int32))


@pytest.mark.parametrize("level", runnable_levels(), ids=lambda level: level.name)
def test_dot_products_of_pairs_are_exact(level: Level) -> None:
    random = np.random.default_rng(6)
    x, y = aligned_zeros((COUNT, 32), np.int16), aligned_zeros((COUNT, 32), np.int16)
    totals, results = aligned_zeros((COUNT, 16), np.int32), aligned_zeros((COUNT, 16), np.int32)
    x[:], y[:] = random.integers(-32767, 32768, (2, COUNT, 32))
    x[:4] = np.array([32767, -32767, 32767, 1])[:, None]
    y[:4] = np.array([32767, -32767, -32767, -1])[:, None]
    totals[4:] = random.integers(-(1 << 31), 1 << 31, (COUNT - 4, 16))
    operands = np.array([COUNT, *(address_of(array) for array in (totals, x, y, results))], np.int64)
    [address] = compile_kernels(level, [dot_of_pairs])
    ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(address)(address_of(operands), 0, 0, 1)
    expected = totals + (x.astype(np.int64) * y).reshape(COUNT, 16, 2).sum(2)
    assert np.array_equal(results, expected.astype(np.int32))


PAIRS = {
    "x86_amx": "vpdpwssd", "x86_avx512vnni": "vpdpwssd", "x86_cascadelake": "vpdpwssd", "x86_avxvnni": "vpdpwssd", "x86_avx2": "vpmaddwd",
    "x86_portable": "pmaddwd",
    "arm_i8mm": "smlal", "arm_dotprod": "smlal", "arm_neon": "smlal",
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_pairs_are_multiplied_by_the_instruction_of_the_level(level: Level) -> None:
    from kernels_numba.executor.compile import assembly

    assert PAIRS[level.name] in assembly(level, "dot_of_pairs", dot_of_pairs).split()


INSTRUCTIONS = {
    "x86_amx": ("vpdpbusd", "vpdpbusd"),
    "x86_avx512vnni": ("vpdpbusd", "vpdpbusd"),
    "x86_cascadelake": ("vpdpbusd", "vpdpbusd"),
    "x86_avxvnni": ("{vex}", "{vex}"),
    "x86_avx2": ("vpmaddubsw", "vpmaddubsw"),
    "arm_i8mm": ("usdot", "sdot"),
    "arm_dotprod": ("sdot", "sdot"),
    "arm_neon": ("smull", "smull"),
}
"""Per level: what `dot_u8i8` and `dot_u7i8` are made of."""


@pytest.mark.parametrize("level", [level for level in LEVELS if level.name in INSTRUCTIONS], ids=lambda level: level.name)
def test_dot_products_use_the_instructions_of_the_level(level: Level) -> None:
    from kernels_numba.executor.compile import assembly

    for function, instruction in zip((dot_of_bytes, dot_of_seven_bits), INSTRUCTIONS[level.name]):
        words = assembly(level, function.name, function).split()
        if instruction == "{vex}":  # how the assembler is told that it is the form of AVX-VNNI
            following = [words[index + 1] for index, word in enumerate(words) if word == instruction]
            assert len(following) >= 2 and set(following) == {"vpdpbusd"}, words
            assert not any(word.strip(",()").startswith(("%zmm", "%ymm16", "%k")) for word in words)
            continue
        vectors_per_register = {"vpdpbusd": 1, "vpmaddubsw": 2}.get(instruction, 4)
        parts = 2 if instruction == "vpmaddubsw" and function is dot_of_bytes else 1
        found = [word for word in words if word in (instruction, instruction + "2")]
        assert len(found) >= vectors_per_register * parts, (function.name, words)


def test_every_level_has_a_dot_product_of_its_own_or_is_portable() -> None:
    assert {level.name for level in LEVELS} - set(INSTRUCTIONS) == {"x86_portable"}


def test_the_correction_for_mixed_signs_is_computed_once_for_broadcast_activations() -> None:
    from kernels_numba.executor.compile import assembly
    from kernels_numba.simd.levels import level_by_name

    lines = assembly(level_by_name("arm_dotprod"), "dot_of_broadcast", dot_of_broadcast).split()
    assert lines.count("sdot") <= 4 * (4 + 1)  # per token four products and one correction, not four

"""Products of small matrices: exact on every level, and the driver that is built on them, also where the CPU has no instructions for matrices and `linear`
therefore goes another way."""

from __future__ import annotations

import ctypes
import mmap
import re
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.executor.compile import assembly, front_end
from kernels_numba.ops import matrices, reference, reference_linear
from kernels_numba.ops.common import row_count, word
from kernels_numba.ops.linear import LINEAR_OPERANDS
from kernels_numba.ops.linear import linear as linear_kernel
from kernels_numba.ops.matrices import linear_matrices
from kernels_numba.ops.tags import resolve_tag
from kernels_numba.simd.function import kernel_function
from kernels_numba.simd.levels import level_by_name
from tests.kernels.support import Memory, StepWords, every_level
from tests.kernels.weights import extreme_rows, pack, random_rows
from tests.support.kernels import compile_kernels, load_objects, lowest_level, runnable_levels

Kernel = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
COUNT = 40


@kernel_function
def products(simd, operands, step, worker, workers):
    """Operands: count, codes int8[count, 8, 64], blocks of 16 tokens, sums int32[count, 16, 16], sums of halves int32[count, 2, 16, 16]."""
    saved = simd.scratch(128)
    for nested in range(2):
        simd.begin_products(saved + 64 * nested)
    simd.end_products(saved + 64)  # the shapes of the first
    for i in range(simd.load_i64(operands)):
        codes = simd.load_i64(operands + 8) + 512 * i
        block = simd.load_i64(operands + 16) + 768 * i
        simd.product(codes, block, simd.load_i64(operands + 24) + 1024 * i)
        simd.product_of_halves(codes, block, simd.load_i64(operands + 32) + 2048 * i)
    simd.end_products(saved)


@kernel_function
def accumulators(simd, operands, step, worker, workers):
    """Operands: sums of halves int32[2, 16, 16], a block, scale, low and high float32[3, 16], totals float32[16, 16] (read and written), signed codes."""
    products = simd.load_i64(operands)
    block = simd.load_i64(operands + 8)
    scales = simd.load_i64(operands + 16)
    totals = simd.load_i64(operands + 24)
    memory = simd.scratch(1024)
    tile = simd.tile_add_product(simd.tile_load(totals), products, block, simd.load_f32x16(scales))
    simd.tile_keep(tile, memory)
    scale, low, high = simd.load_f32x16(scales), simd.load_f32x16(scales + 64), simd.load_f32x16(scales + 128)
    simd.tile_keep(simd.tile_add_product_of_halves(simd.tile_load(memory), products, block, scale, low, high), totals)
    simd.tile_store_signed((simd.load_i8x64(scales), simd.load_i8x64(scales + 64)), 128, simd.load_i64(operands + 32))


@kernel_function
def all_rows(simd, format, operands, step, worker, workers):
    """`linear` of the only worker, by products of matrices for any number of rows."""
    rows = row_count(simd, step, 0)
    linear_matrices(simd, format, operands, word(simd, operands, 3), rows, 0, rows, 0, word(simd, operands, 1))


@cache
def idioms(level: str) -> list[int]:
    return compile_kernels(level_by_name(level), [products, accumulators])


def blocks_of(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[np.uint8]:
    """uint8[n, 768] of codes int8[n, 16, 32] and scales float32[n, 16]; the sums, which products do not look at, are rubbish."""
    rest = np.full((len(codes), 192), 0xA5, np.uint8)
    return np.concatenate([codes.reshape(-1, 512).view(np.uint8), scales.view(np.uint8).reshape(-1, 64), rest], axis=1)


@every_level
def test_products_are_exact(level: str) -> None:
    random = np.random.default_rng(3)
    codes = random.integers(-128, 128, (COUNT, 8, 16, 4), dtype=np.int8)  # vector, row, column in the vector
    tokens = random.integers(-127, 128, (COUNT, 16, 32), dtype=np.int8)
    codes[:4], tokens[:4] = np.array([-128, -128, 127, 127]).reshape(4, 1, 1, 1), np.array([-127, 127, -127, 127]).reshape(4, 1, 1)
    memory = Memory()
    copied, blocks = memory.copy(codes), memory.copy(blocks_of(tokens, np.zeros((COUNT, 16), np.float32)))
    sums, halves = memory.allocate(1024 * COUNT, 0xFF), memory.allocate(2048 * COUNT, 0xFF)
    operands = np.array([COUNT, *(array.ctypes.data for array in (copied, blocks, sums, halves))], np.int64)
    Kernel(idioms(level)[0])(operands.ctypes.data, 0, 0, 1)
    memory.check()
    weights = codes.transpose(0, 2, 1, 3).reshape(COUNT, 16, 32).astype(np.int64)
    for part, result in ((slice(0, 32), sums), (slice(0, 16), halves[:]), (slice(16, 32), halves[:])):
        expected = np.einsum("ntc,nrc->ntr", tokens[:, :, part].astype(np.int64), weights[:, :, part])
        found = result.view(np.int32).reshape(COUNT, -1, 16, 16)[:, 1 if part.start else 0]
        np.testing.assert_array_equal(found, expected)


@every_level
def test_accumulators_take_products_as_specified(level: str) -> None:
    """float32 holds what integers would give: at the ends of what products and sub-scales can be, and a zero has no sign."""
    random = np.random.default_rng(4)
    sums = random.integers(-16 * 32 * 127, 16 * 32 * 127 + 1, (2, 16, 16)).astype(np.int32)
    low, high = random.integers(-128, 128, (2, 16))
    sums[:, 0], low[:2], high[:2] = 16 * 32 * 127, -128, -128
    sums[:, 1], low[2:4], high[2:4] = 0, [-5, 5], [-3, 3]
    sums[0, 2], sums[1, 2] = 1000, -1000
    low[4:6], high[4:6] = 7, 7
    activation, scale = (random.standard_normal(16).astype(np.float32) for _ in range(2))
    totals = random.standard_normal((16, 16)).astype(np.float32)
    totals[1:3] = -0.0  # to which only + 0 adds a zero without a sign
    expected = totals.copy()
    factor = scale * activation[:, None]
    for dots in (sums[0].astype(np.int64), sums[0].astype(np.int64) * low + sums[1].astype(np.int64) * high):
        expected = reference.fma(dots.astype(np.float32), factor, expected)
    memory = Memory()
    parts = memory.copy(np.stack([scale, low.astype(np.float32), high.astype(np.float32)]))
    copied, block = memory.copy(sums), memory.copy(blocks_of(np.zeros((1, 16, 32), np.int8), activation[None]))
    result, signed = memory.copy(totals), memory.allocate(128)
    operands = np.array([array.ctypes.data for array in (copied, block, parts, result, signed)], np.int64)
    Kernel(idioms(level)[1])(operands.ctypes.data, 0, 0, 1)
    memory.check()
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(signed, parts.reshape(-1)[:32].view(np.uint8) ^ 0x80)


@pytest.mark.parametrize("format_name", ["Q4_0", "Q4_1", "Q5_K", "Q6_K", "Q8_0"])
def test_the_driver_equals_the_twin_without_instructions_for_matrices(format_name: str) -> None:
    """Tiles of tokens that are not full, chunks and records that are not full, more of all than pass at once."""
    level = lowest_level()
    symbol = f"all_rows_{format_name}"
    [address] = load_objects({symbol: front_end(level).compile(symbol, all_rows, (resolve_tag(format_name),), 4)})
    for rows, tokens, columns in ((16, 9, 256), (50, 33, 768), (300, 150, 256)):
        for stored in (random_rows(format_name, rows, columns), extreme_rows(format_name, rows, columns)):
            packed, kept = pack(level.name, format_name, stored, columns)
            memory = Memory()
            x = np.random.default_rng(tokens).standard_normal((tokens, columns)).astype(np.float32)
            output, step = memory.matrix((tokens, rows)), StepWords(tokens)
            values = {"weights": packed.ctypes.data, "row_tiles": -(-rows // 16), "columns": columns, "input": memory.copy(reference.quantize(x)).ctypes.data}
            values |= {"output": output.address, "output_stride": output.stride}
            words = np.array([values.get(name, 0) for name in LINEAR_OPERANDS], np.int64)
            Kernel(address)(words.ctypes.data, step.address, 0, 1)
            memory.check()
            kept.check()
            expected = reference_linear.linear(format_name, stored, x)
            np.testing.assert_array_equal(output.values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("format_name", ["Q4_1", "Q6_K"])
def test_products_and_additions_keep_apart_and_in_registers(format_name: str) -> None:
    """No stretch of code has instructions for matrices and for float vectors, which slow each other down; accumulators stay in registers within a chunk."""
    text = assembly(level_by_name("x86_amx"), "kernel", linear_kernel, (resolve_tag(format_name),))
    stretches = re.split(r"\n\.LBB\w+:|\n\tj\w+", text)
    products = [stretch for stretch in stretches if "tdpbssd" in stretch]
    additions = [stretch for stretch in stretches if len(re.findall(r"vcvtdq2ps\s+-?\d*\(%r\w+\), %zmm", stretch)) >= 16]
    assert products and additions
    assert not any("vfmadd" in stretch for stretch in products)
    assert not any(re.search(r"zmm\d+, -?\d*\(|\(%rsp\), %zmm", stretch) for stretch in additions)
    assert text.count("sttilecfg") == 1 and text.count("ldtilecfg") == 2


@pytest.mark.skipif(all(level.name != "x86_amx" for level in runnable_levels()), reason="this machine has no registers for matrices, or does not give them")
def test_a_thread_is_left_without_shapes_of_registers() -> None:
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("c4e2794907 c3"))  # sttilecfg (%rdi); ret
    anchor = ctypes.c_char.from_buffer(code)
    store = ctypes.CFUNCTYPE(None, ctypes.c_int64)(ctypes.addressof(anchor))
    operands = np.zeros(5, np.int64)
    Kernel(idioms("x86_amx")[0])(operands.ctypes.data, 0, 0, 1)
    shapes = np.full(64, 0xFF, np.uint8)
    store(shapes.ctypes.data)
    assert not shapes.any()


def test_scratch_memory_holds_a_chunk() -> None:
    assert matrices.PRODUCTS_AT % 64 == 0 and matrices.SCRATCH_BYTES <= 48 << 10
    assert matrices.CHUNK_GROUPS % 8 == 0  # whole records of every format

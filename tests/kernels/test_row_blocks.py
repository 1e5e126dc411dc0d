"""Where workers share rows instead of columns, every row-wise kernel writes the same bytes, block by block and in any order of the blocks."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.numba.drafts import ROW_WISE
from kernels_numba.executor.store import KernelName
from kernels_numba.ops.linear import LINEAR_OPERANDS
from kernels_numba.ops.reference import quantize as quantized_rows
from tests.kernels.support import Memory, PagedStore, StepWords, every_level, float_bits, kernel_store
from tests.kernels.test_golden_bits import fixed_values, fixed_weights
from tests.kernels.weights import pack

ROWS = [16, 17, 37, 130]
WIDTH = 96
Runner = Callable[[str, str, tuple[str, ...], list[int], StepWords], None]


class Inputs:
    def __init__(self, level: str, rows: int) -> None:
        self.level, self.rows = level, rows
        self.memory = Memory()
        self.x, self.y = (self.memory.matrix(fixed_values(rows, WIDTH, seed)) for seed in (1, 2))
        self.output = self.memory.matrix((rows, WIDTH))
        self.blocks = self.memory.allocate(len(quantized_rows(fixed_values(rows, WIDTH, 1))), 0xFF)


def one_to_one(module: str, function: str, tags: tuple[str, ...], middle: Callable[[Inputs], list[int]], blocks: bool = False):
    def call(f: Inputs, run: Runner, step: StepWords) -> NDArray:
        end = [f.blocks.ctypes.data] if blocks else [f.output.address, f.output.stride]
        run(module, function, tags, [f.x.address, f.x.stride, *middle(f), *end], step)
        return f.blocks if blocks else f.output.full

    return call


def rms_norm_quantize(f: Inputs, run: Runner, step: StepWords) -> NDArray:
    operands = [f.x.address, f.x.stride, f.y.address, WIDTH, float_bits(1e-5), 0, f.output.address, f.output.stride, f.blocks.ctypes.data]
    run("ops.norm", "rms_norm_quantize", (), operands, step)
    return np.concatenate([f.output.full.view(np.uint8).reshape(-1), f.blocks])


def store_keys_values(f: Inputs, run: Runner, step: StepWords) -> NDArray:
    store = PagedStore(f.memory, "f16", -(-f.rows // 16), 2, 48, 48)
    place = [store.address, store.page_bytes, 0, 2, 48, 48]
    run("ops.pages", "store_keys_values", ("f16",), [f.x.address, f.x.stride, f.y.address, f.y.stride, *place], step)
    return store.bytes


@functools.cache
def packed(level: str, format_name: str) -> tuple[NDArray, Memory]:
    return pack(level, format_name, fixed_weights(format_name, 35, WIDTH), WIDTH)


def linear(format_name: str):
    def call(f: Inputs, run: Runner, step: StepWords) -> NDArray:
        x = fixed_values(f.rows, WIDTH, 1)
        weights, _ = packed(f.level, format_name)
        output, residual = f.memory.matrix((f.rows, 35)), f.memory.matrix(fixed_values(f.rows, 35, 4))
        given = {"weights": weights.ctypes.data, "row_tiles": 3, "columns": WIDTH, "output": output.address, "output_stride": output.stride}
        given |= {"residual": residual.address, "residual_stride": residual.stride}
        kernel = "linear_float" if format_name == "F32" else "linear"
        source = f.x.address if format_name == "F32" else f.memory.copy(quantized_rows(x)).ctypes.data
        given |= {"input": source, "input_stride": f.x.stride}
        run("ops.linear", kernel, (format_name,), [given.get(name, 0) for name in LINEAR_OPERANDS], step)
        return output.full

    return call


CALLS = {
    "quantize": one_to_one("ops.quantize", "quantize", (), lambda f: [WIDTH, 0], blocks=True),
    "rms_norm": one_to_one("ops.norm", "rms_norm", (), lambda f: [f.y.address, 48, 2, float_bits(1e-5), 0]),
    "rms_norm_quantize": rms_norm_quantize,
    "rope": one_to_one("ops.rope", "rope", ("halves",), lambda f: [f.y.address, f.y.stride, 2, 48, 20]),
    "activation": one_to_one("ops.activation", "activation", ("silu",), lambda f: [f.y.address, f.y.stride, WIDTH]),
    "activation_quantize": one_to_one("ops.activation", "activation_quantize", ("silu",), lambda f: [f.y.address, f.y.stride, WIDTH], blocks=True),
    "add": one_to_one("ops.elementwise", "add", (), lambda f: [f.y.address, f.y.stride, WIDTH, 0]),
    "scale": one_to_one("ops.elementwise", "scale", (), lambda f: [float_bits(0.3), WIDTH, 0]),
    "softcap": one_to_one("ops.elementwise", "softcap", (), lambda f: [float_bits(3.0), WIDTH, 0]),
    "store_keys_values": store_keys_values,
    "linear": linear("Q8_0"),
    "linear_float": linear("F32"),
}


def result(level: str, name: str, rows: int, row_blocks: int, shares: int) -> NDArray:
    """What the kernel writes in `shares` calls in a random order."""
    inputs = Inputs(level, rows)
    step = StepWords(rows, pages=[[list(range(-(-rows // 16)))]], row_blocks=row_blocks)
    order = random.Random(shares).sample(range(shares), shares)

    def run(module: str, function: str, tags: tuple[str, ...], operands: list[int], step: StepWords) -> None:
        kernel = kernel_store(level).function(KernelName(module, function, tags))
        words = np.array(operands, np.int64)
        for share in order:
            kernel(words.ctypes.data, step.address, share, shares)

    written = np.ascontiguousarray(CALLS[name](inputs, run, step)).view(np.uint8).copy()
    inputs.memory.check()
    step.memory.check()
    return written


@every_level
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CALLS)
def test_shares_of_rows_give_the_same_bytes(level: str, name: str, rows: int) -> None:
    expected = result(level, name, rows, 0, 1)
    for blocks in (1, 2, 3, 12):  # more of them than there are tiles as well
        np.testing.assert_array_equal(result(level, name, rows, blocks, blocks), expected)


@every_level
@pytest.mark.parametrize("name", CALLS)
def test_a_block_writes_its_own_rows_alone(level: str, name: str) -> None:
    """The first of three blocks of 37 rows is one tile of 16 rows: what is written for the others stays as it was."""
    inputs, words = Inputs(level, 37), StepWords(37, pages=[[[0, 1, 2]]], row_blocks=3)

    def run(module: str, function: str, tags: tuple[str, ...], operands: list[int], step: StepWords) -> None:
        kernel_store(level).function(KernelName(module, function, tags))(np.array(operands, np.int64).ctypes.data, step.address, 0, 3)

    written = CALLS[name](inputs, run, words).view(np.uint8).reshape(-1)
    complete = result(level, name, 37, 0, 1).reshape(-1)
    untouched = Inputs(level, 37)
    before = CALLS[name](untouched, lambda *arguments: None, words).view(np.uint8).reshape(-1)
    same, kept = written == complete, written == before
    assert (same | kept).all() and not same.all() and not kept.all()


def test_every_row_wise_kernel_is_tested() -> None:
    assert set(CALLS) == ROW_WISE

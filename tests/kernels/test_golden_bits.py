"""The bits of every kernel on fixed inputs, as committed hashes: a change of the arithmetic cannot go unnoticed, on any level.

If a change is meant, raise ARITHMETIC_VERSION, bring docs/arithmetic.md up to date, and renew the file with EDGEINFER_UPDATE_GOLDEN=1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.core import env
from kernels_numba import ARITHMETIC_VERSION
from kernels_numba.formats import format_by_name
from kernels_numba.ops.attention import attention_scratch_bytes
from kernels_numba.ops.linear import LINEAR_OPERANDS
from kernels_numba.ops.reference import quantize as quantized_rows
from kernels_numba.ops.reference import tile_width
from tests.kernels.support import Memory, PagedStore, StepWords, every_level, float_bits, run
from tests.kernels.test_screen import output, pack_planes
from tests.kernels.weights import FORMATS, half_positions, levels_and_formats, pack

GOLDEN = Path(__file__).parent / "golden_bits.json"
ROWS, WIDTH = 5, 96
POSITIONS = 280


def fixed_values(rows: int, width: int, seed: int) -> NDArray[np.float32]:
    """Multiples of 2^-12 in [-8, 8) from an integer hash: the same on every machine and with every version of NumPy."""
    x = np.arange(rows * width, dtype=np.uint64) + np.uint64(seed * 1_000_003 + 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(48)).astype(np.int64) - 32768).astype(np.float32).reshape(rows, width) / np.float32(4096)


class Fixture:
    """Guarded inputs of one kernel call; `result` is what is hashed."""

    def __init__(self, level: str) -> None:
        self.level = level
        self.memory = Memory()
        self.x, self.y = (self.memory.matrix(fixed_values(ROWS, WIDTH, seed)) for seed in (1, 2))
        self.output = self.memory.matrix((ROWS, WIDTH))
        self.blocks = self.memory.allocate(-(-ROWS // tile_width(ROWS)) * WIDTH // 32 * 48 * tile_width(ROWS))
        self.step = StepWords(ROWS, positions=[0, 1, 77, 4096, 1_000_000], output_rows=[4, 0, 2])

    def run(self, module: str, function: str, tags: tuple[str, ...], operands: list[int]) -> None:
        run(self.level, module, function, tags, operands, self.step, 2)
        self.memory.check()


def quantize(f: Fixture) -> NDArray:
    f.run("ops.quantize", "quantize", (), [f.x.address, f.x.stride, WIDTH, 0, f.blocks.ctypes.data])
    return f.blocks


def rms_norm(f: Fixture) -> NDArray:
    operands = [f.x.address, f.x.stride, f.y.address, 48, 2, float_bits(1e-5), 0, f.output.address, f.output.stride]
    f.run("ops.norm", "rms_norm", (), operands)
    return f.output.values


def rms_norm_quantize(f: Fixture) -> NDArray:
    operands = [f.x.address, f.x.stride, f.y.address, WIDTH, float_bits(1e-5), 0, 0, 0, f.blocks.ctypes.data]
    f.run("ops.norm", "rms_norm_quantize", (), operands)
    return f.blocks


def rope_table(f: Fixture) -> NDArray:
    frequencies = f.memory.copy(1.0 / np.arange(1, WIDTH // 2 + 1))
    f.run("ops.rope", "rope_table", (), [frequencies.ctypes.data, WIDTH // 2, f.output.address, f.output.stride])
    return f.output.values


def rope(pairing: str) -> Callable[[Fixture], NDArray]:
    def call(f: Fixture) -> NDArray:
        f.run("ops.rope", "rope", (pairing,), [f.x.address, f.x.stride, f.y.address, f.y.stride, 2, 48, 20, f.output.address, f.output.stride])
        return f.output.values

    return call


def activation(function: str, quantized: bool) -> Callable[[Fixture], NDArray]:
    def call(f: Fixture) -> NDArray:
        operands = [f.x.address, f.x.stride, f.y.address, f.y.stride, WIDTH]
        if quantized:
            f.run("ops.activation", "activation_quantize", (function,), [*operands, f.blocks.ctypes.data])
            return f.blocks
        f.run("ops.activation", "activation", (function,), [*operands, f.output.address, f.output.stride])
        return f.output.values

    return call


def elementwise(function: str) -> Callable[[Fixture], NDArray]:
    def call(f: Fixture) -> NDArray:
        middle = {"add": [f.y.address, f.y.stride], "scale": [float_bits(0.3)], "softcap": [float_bits(3.0)]}[function]
        f.run("ops.elementwise", function, (), [f.x.address, f.x.stride, *middle, WIDTH, 0, f.output.address, f.output.stride])
        return f.output.values

    return call


def select_outputs(f: Fixture) -> NDArray:
    f.run("ops.elementwise", "select_outputs", (), [f.x.address, f.x.stride, WIDTH, f.output.address, f.output.stride])
    return f.output.values[:3]


def attention(cache_type: str, window: int, cap: float) -> Callable[[Fixture], NDArray]:
    """280 positions at once: two spans, the shared path and, for the last row, the path of single rows."""

    def call(f: Fixture) -> NDArray:
        heads, kv_heads, size = 4, 2, 32
        pages = list(range(-(-POSITIONS // 16)))[::-1]
        store = PagedStore(f.memory, cache_type, len(pages), kv_heads, size, size)
        f.step = StepWords(POSITIONS + 1, slots=[*range(POSITIONS), POSITIONS - 1], pages=[[pages]])
        rows = [*range(POSITIONS), POSITIONS - 1]
        queries, keys, values = (f.memory.matrix(fixed_values(POSITIONS, n * size, s)[rows]) for n, s in ((heads, 3), (kv_heads, 4), (kv_heads, 5)))
        output = f.memory.matrix((len(rows), heads * size))
        place = [store.address, store.page_bytes, 0]
        append = [keys.address, keys.stride, values.address, values.stride, *place, kv_heads, size, size]
        f.run("ops.pages", "store_keys_values", (cache_type,), append)
        scratch_bytes = attention_scratch_bytes(size, size, POSITIONS)
        scratch = f.memory.allocate(2 * scratch_bytes)
        attend = [queries.address, queries.stride, *place, heads, kv_heads, size, size, float_bits(0.07), window, float_bits(cap)]
        f.run("ops.attention", "attention", (cache_type,), [*attend, scratch.ctypes.data, scratch_bytes, output.address, output.stride])
        np.testing.assert_array_equal(output.values[-1], output.values[-2])
        return np.concatenate([store.bytes, output.values.view(np.uint8).reshape(-1)])

    return call


FUNCTIONS = ("silu", "gelu_tanh", "gelu_erf", "relu_squared")
CALLS: dict[str, Callable[[Fixture], NDArray]] = {
    "quantize": quantize,
    "rms_norm": rms_norm,
    "rms_norm_quantize": rms_norm_quantize,
    "rope_table": rope_table,
    **{f"rope {pairing}": rope(pairing) for pairing in ("halves", "neighbours")},
    **{f"activation {function}": activation(function, False) for function in FUNCTIONS},
    **{f"activation_quantize {function}": activation(function, True) for function in FUNCTIONS},
    **{function: elementwise(function) for function in ("add", "scale", "softcap")},
    "select_outputs": select_outputs,
    "attention f16": attention("f16", 0, 0.0),
    "attention f32, window 50, cap 4": attention("f32", 50, 4.0),
    "attention q16_0": attention("q16_0", 0, 0.0),
    "attention q8_0": attention("q8_0", 0, 0.0),
}


def fixed_weights(format_name: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Blocks of hashed bytes whose half floats lie between 1/16 and 1/8; of a float format, hashed values."""
    entry = format_by_name(format_name)
    if not entry.quantized:
        return entry.encode_rows(fixed_values(rows, columns, 6))
    blocks = rows * columns // entry.block_elements
    hashed = (fixed_values(blocks, entry.block_bytes, 7) * 4096).astype(np.int64).astype(np.uint8)
    for place in half_positions(format_name):
        hashed[:, place + 1] = 0x2C | hashed[:, place + 1] & 3
    return hashed.reshape(rows, -1)


def linear(level: str, format_name: str) -> NDArray:
    """Matvec, small batch and GEMM (1, 5 and 17 tokens) by a matrix of 35 rows."""
    rows, columns = 35, 512
    packed, packed_memory = pack(level, format_name, fixed_weights(format_name, rows, columns), columns)
    results = []
    for tokens in (1, 5, 17):
        memory, x = Memory(), fixed_values(tokens, columns, 8)
        source, output = memory.matrix(x), memory.matrix((tokens, rows))
        given = {"weights": packed.ctypes.data, "row_tiles": 3, "columns": columns, "output": output.address, "output_stride": output.stride}
        kernel, entry = ("linear", quantized_rows(x)) if format_by_name(format_name).quantized else ("linear_float", x)
        given |= {"input": memory.copy(entry).ctypes.data if kernel == "linear" else source.address, "input_stride": source.stride}
        run(level, "ops.linear", kernel, (format_name,), [given.get(name, 0) for name in LINEAR_OPERANDS], StepWords(tokens), 2)
        memory.check()
        results.append(output.values.reshape(-1))
    packed_memory.check()
    return np.concatenate(results)


def bits(values: NDArray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def compare(name: str, actual: str) -> None:
    if env.value("EDGEINFER_UPDATE_GOLDEN") == "1":
        known = json.loads(GOLDEN.read_text()) if GOLDEN.is_file() else {}
        hashes = {**known.get("hashes", {}), name: actual}
        text = json.dumps({"arithmetic_version": ARITHMETIC_VERSION, "hashes": dict(sorted(hashes.items()))}, indent=1)
        GOLDEN.write_text(text + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert golden["arithmetic_version"] == ARITHMETIC_VERSION
    assert golden["hashes"][name] == actual, "the arithmetic changed: see the top of this file"


def bounds(level: str) -> NDArray:
    """Of the same matrix in two planes, what its upper plane says of 1, 4 and 5 tokens."""
    packed, memory = pack_planes(level, fixed_weights("Q8_0", 35, 512), 512, 2)
    results = [output(level, packed, 35, fixed_values(tokens, 512, 8), screened=True, workers=2).output.reshape(-1) for tokens in (1, 4, 5)]
    memory.check()
    return np.concatenate(results)


@every_level
@pytest.mark.parametrize("name", CALLS)
def test_golden_bits(level: str, name: str) -> None:
    compare(name, bits(CALLS[name](Fixture(level))))


@pytest.mark.parametrize(("level", "format_name"), levels_and_formats(FORMATS))
def test_golden_bits_of_linear(level: str, format_name: str) -> None:
    compare(f"linear {format_name}", bits(linear(level, format_name)))


@every_level
def test_golden_bits_of_bounds_and_of_logits_from_two_planes(level: str) -> None:
    compare("bounds Q8_0", bits(bounds(level)))
    packed, _ = pack_planes(level, fixed_weights("Q8_0", 35, 512), 512)
    logits = [output(level, packed, 35, fixed_values(tokens, 512, 8), screened=False, workers=2).output.reshape(-1) for tokens in (1, 5, 17)]
    compare("linear Q8_0", bits(np.concatenate(logits)))


def test_golden_file_has_nothing_else() -> None:
    assert set(json.loads(GOLDEN.read_text())["hashes"]) == {"bounds Q8_0", *CALLS, *(f"linear {name}" for name in FORMATS)}

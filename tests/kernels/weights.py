"""Matrices for the tests of kernels that read weights: random and extreme ones of every format, and the packed form as the kernels make it."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import all_formats, format_by_name
from kernels_numba.layouts import packed_bytes
from tests.kernels.support import Memory, StepWords, run
from tests.support.kernels import runnable_levels

Bytes = NDArray[np.uint8]
CAMPAIGN = float(os.environ.get("EDGEINFER_FUZZ_SCALE", "1")) > 1
FORMATS = tuple(all_formats())
QUANTIZED = tuple(name for name, entry in all_formats().items() if entry.quantized)
FLOATS = tuple(name for name, entry in all_formats().items() if not entry.quantized)

# The best level runs every format. Where fma is emulated one kernel takes seconds to compile, so a run that is no campaign takes one format of each kind
# of step there: codes of 8 bits, with a minimum, with integer sub-scales, float.
_ONE_OF_EACH_KIND = ("Q8_0", "Q4_K", "Q6_K", "F16")


def levels_and_formats(wanted: tuple[str, ...]) -> list[tuple[str, str]]:
    """Parameters (level, format name)."""
    return [
        (level.name, name)
        for index, level in enumerate(runnable_levels())
        for name in wanted
        if index == 0 or CAMPAIGN or name in _ONE_OF_EACH_KIND
    ]


def column_counts(format_name: str) -> list[int]:
    """Odd numbers of groups, where a record of the packed form has more than one, and widths of real models."""
    return {1: [50, 288], 32: [32, 288, 512], 256: [256, 768]}[format_by_name(format_name).block_elements]


@cache
def random_rows(format_name: str, rows: int, columns: int) -> Bytes:
    """An encoded matrix of normal values with rows of very different sizes, as the file holds it."""
    values = np.random.default_rng([rows, columns]).standard_normal((rows, columns)) * np.exp(np.arange(rows) % 7 - 3)[:, None]
    return format_by_name(format_name).encode_rows(values.astype(np.float32))


def extreme_rows(format_name: str, rows: int, columns: int, seed: int = 0) -> Bytes:
    """Random bytes whose half floats are extreme but finite: zero, negative, subnormal, largest; with blocks of all ones and all zeros among them."""
    entry = format_by_name(format_name)
    generator = np.random.default_rng([seed, rows, columns])
    blocks = generator.integers(0, 256, (rows * columns // entry.block_elements, entry.block_bytes), np.uint8)
    blocks[::5] = 0xFF
    blocks[1::5] = 0
    halves = np.array([0.0, -0.0, 6e-8, -6e-8, 6e-5, -1.0, 1.0, 65504, -65504, 0.013], np.float16)
    for at in half_positions(format_name):
        blocks[:, at : at + 2] = generator.choice(halves, (len(blocks), 1)).view(np.uint8)
    if not entry.quantized:
        values = generator.choice(np.array([0.0, -0.0, 6e-8, -1e-40, -1.0, 65504, 0.013], np.float32), (len(blocks), entry.block_elements))
        blocks = entry.encode(values)
    return blocks.reshape(rows, -1)


def half_positions(format_name: str) -> list[int]:
    """Where a block has half floats: found by asking the format which pairs of bytes make an element infinite or NaN."""
    entry = format_by_name(format_name)
    found = []
    for at in range(entry.block_bytes - 1):
        block = np.full((1, entry.block_bytes), 0x11, np.uint8)
        block[0, at : at + 2] = (0x00, 0x7E)
        with np.errstate(invalid="ignore"):
            if not np.isfinite(entry.decode(block)).all() and entry.quantized:
                found.append(at)
    return found


def pack(level: str, format_name: str, rows: Bytes, columns: int, workers: int = 1) -> tuple[Bytes, Memory]:
    """The packed matrix in guarded memory, which has to stay alive."""
    memory = Memory()
    source = memory.copy(rows)
    packed = memory.allocate(packed_bytes(format_name, len(rows), columns))
    function = "pack" if format_by_name(format_name).quantized else "pack_float"
    run(level, "ops.pack", function, (format_name,), [source.ctypes.data, len(rows), columns, packed.ctypes.data], StepWords(1), workers)
    memory.check()
    return packed, memory

"""How kernel tests run kernels: guarded 64-byte aligned memory, step words, every level of this machine, any number of workers (one after the
other)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.executor import step as step_words
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.ops import pages as pages_ops
from kernels_numba.ops import reference
from kernels_numba.ops.cache_types import head_bytes
from kernels_numba.simd.levels import level_by_name
from tests.support.kernels import runnable_levels

GUARD = 192
GUARD_BYTE = 0xA5
KERNEL_FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "test-kernels"


every_level = pytest.mark.parametrize("level", [level.name for level in runnable_levels()])


@cache
def kernel_store(level: str) -> KernelStore:
    return KernelStore(level_by_name(level), KERNEL_FOLDER)


class Memory:
    """64-byte aligned buffers between guard bytes; `check` fails if any guard was overwritten."""

    def __init__(self) -> None:
        self._buffers: list[tuple[NDArray[np.uint8], int, int]] = []

    def allocate(self, size: int, fill: int = 0) -> NDArray[np.uint8]:
        raw = np.full(size + 2 * GUARD + 64, GUARD_BYTE, np.uint8)
        start = GUARD + -(raw.ctypes.data + GUARD) % 64
        raw[start : start + size] = fill
        self._buffers.append((raw, start, size))
        return raw[start : start + size]

    def copy(self, array: NDArray) -> NDArray:
        """The array's bytes in guarded memory, with its dtype and shape."""
        buffer = self.allocate(array.nbytes)
        buffer[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer.view(array.dtype).reshape(array.shape)

    def matrix(self, values: NDArray[np.float32] | tuple[int, int]) -> Matrix:
        """A float32 matrix with rows padded to 16 columns (padding 0), from values or of a shape (filled with NaN)."""
        rows, width = values if isinstance(values, tuple) else values.shape
        columns = -(-width // 16) * 16
        full = self.allocate(4 * rows * columns).view(np.float32).reshape(rows, columns)
        full[:, :width] = np.nan if isinstance(values, tuple) else values
        return Matrix(full, width)

    def check(self) -> None:
        for raw, start, size in self._buffers:
            assert (raw[:start] == GUARD_BYTE).all(), "a kernel wrote before a buffer"
            assert (raw[start + size :] == GUARD_BYTE).all(), "a kernel wrote behind a buffer"


class Matrix:
    def __init__(self, full: NDArray[np.float32], width: int) -> None:
        self.full = full
        self.width = width
        self.address = full.ctypes.data
        self.stride = 4 * full.shape[1]

    @property
    def values(self) -> NDArray[np.float32]:
        return self.full[:, : self.width].copy()


class StepWords:
    """The words of a step. Rows belong to `sequences` (one index a row) at `slots`; page ids per sequence and cache group."""

    def __init__(
        self,
        rows: int,
        *,
        positions: Sequence[int] | None = None,
        slots: Sequence[int] | None = None,
        sequences: Sequence[int] | None = None,
        output_rows: Sequence[int] = (),
        pages: Sequence[Sequence[Sequence[int]]] = (),
        block_rows: int = step_words.QUERY_BLOCK_ROWS,
        row_blocks: int = 0,
    ) -> None:
        memory = self.memory = Memory()
        slots = list(range(rows)) if slots is None else list(slots)
        sequences = [0] * rows if sequences is None else list(sequences)
        positions = slots if positions is None else positions
        self.words = memory.allocate(8 * len(step_words.STEP_WORDS)).view(np.int64)
        self.address = self.words.ctypes.data
        blocks = query_blocks(slots, sequences, block_rows)
        tables = [[memory.copy(np.array(group, np.int32)) for group in sequence] for sequence in pages]
        self._kept = [memory.copy(np.array(values, np.int32)) for values in (positions, slots, sequences, list(output_rows), np.ravel(blocks))]
        addresses = memory.copy(np.array([[group.ctypes.data for group in sequence] for sequence in tables], np.int64))
        self._kept += [addresses]
        values = {
            "rows": rows,
            "rope_positions": self._kept[0].ctypes.data,
            "slots": self._kept[1].ctypes.data,
            "row_sequences": self._kept[2].ctypes.data,
            "outputs": len(output_rows),
            "output_rows": self._kept[3].ctypes.data,
            "query_blocks": self._kept[4].ctypes.data,
            "query_block_count": len(blocks),
            "page_tables": addresses.ctypes.data,
            "cache_groups": len(pages[0]) if pages else 0,
            "row_blocks": row_blocks,
        }
        for name, value in values.items():
            self.words[step_words.STEP_WORDS.index(name)] = value

    @property
    def status(self) -> int:
        return int(self.words[step_words.STEP_WORDS.index("status")])


def query_blocks(slots: Sequence[int], sequences: Sequence[int], block_rows: int) -> list[tuple[int, int, int, int]]:
    """(first row, rows, sequence, first slot): runs of rows of one sequence, cut into blocks."""
    blocks: list[tuple[int, int, int, int]] = []
    for row, (slot, sequence) in enumerate(zip(slots, sequences, strict=True)):
        if blocks and blocks[-1][2] == sequence and blocks[-1][1] < block_rows and slot == blocks[-1][3] + blocks[-1][1]:
            first, count, _, first_slot = blocks[-1]
            blocks[-1] = (first, count + 1, sequence, first_slot)
        else:
            blocks.append((row, 1, sequence, slot))
    return blocks


def float_bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def run(level: str, module: str, function: str, tags: tuple[str, ...], operands: Sequence[int], step: StepWords, workers: int = 1) -> None:
    """Runs every worker's share, the last worker first: no share may depend on another."""
    kernel = kernel_store(level).function(KernelName(module, function, tags))
    words = np.array(operands, np.int64)
    for worker in reversed(range(workers)):
        kernel(words.ctypes.data, step.address, worker, workers)
    step.memory.check()


class PagedStore:
    """A key and value store with pages in a scattered order, filled with NaN."""

    def __init__(self, memory: Memory, cache_type: str, pages: int, kv_heads: int, key_size: int, value_size: int) -> None:
        self.cache_type = cache_type
        self.kv_heads, self.key_size, self.value_size = kv_heads, key_size, value_size
        self.page_bytes = pages_ops.page_bytes(cache_type, kv_heads, key_size, value_size)
        self.bytes = memory.allocate(pages * self.page_bytes, 0xFF)  # of q8_0 and q16_0, scales of NaN
        if cache_type in ("f16", "f32"):
            self.bytes.view(np.float16 if cache_type == "f16" else np.float32)[:] = np.nan
        self.address = self.bytes.ctypes.data

    def read(self, pages: Sequence[int], positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Keys [positions, kv_heads, key_size] and values of the first positions of a sequence, widened."""
        content = self.bytes.reshape(-1, self.kv_heads, self.page_bytes // self.kv_heads)[list(pages)]
        values_at = head_bytes(self.cache_type, self.key_size)
        if self.cache_type == "q16_0":
            (keys, key_scales), (values, value_scales) = self.read_codes(pages, positions)
            return keys * key_scales[..., None], values * value_scales[..., None]
        keys, scales = self._elements(content[..., :values_at], self.key_size)
        keys = keys.reshape(-1, self.kv_heads, self.key_size, 16) * scales.reshape(-1, self.kv_heads, scales.shape[-1] // 16, 16).repeat(
            self._scaled, axis=2
        )[:, :, : self.key_size]
        values, scales = self._elements(content[..., values_at:], self.value_size)
        values = values.reshape(-1, self.kv_heads, 16, self.value_size) * scales.reshape(-1, self.kv_heads, 16, scales.shape[-1] // 16).repeat(
            self._scaled, axis=3
        )[..., : self.value_size]
        keys = keys.transpose(0, 3, 1, 2).reshape(-1, self.kv_heads, self.key_size)
        values = values.transpose(0, 2, 1, 3).reshape(-1, self.kv_heads, self.value_size)
        return keys[:positions], values[:positions]

    def read_codes(self, pages: Sequence[int], positions: int) -> tuple[reference.Codes, reference.Codes]:
        """Keys and values of q16_0, of [positions, kv_heads, size] each."""
        content = self.bytes.reshape(-1, self.kv_heads, self.page_bytes // self.kv_heads)[list(pages)]
        values_at = head_bytes(self.cache_type, self.key_size)
        keys, values = (np.ascontiguousarray(part) for part in (content[..., :values_at], content[..., values_at:]))
        key_codes = keys[..., :-64].view(np.int16).reshape(-1, self.kv_heads, self.key_size // 2, 16, 2).transpose(0, 3, 1, 2, 4)
        value_codes = values[..., :-64].view(np.int16).reshape(-1, self.kv_heads, 8, self.value_size, 2).transpose(0, 2, 4, 1, 3)
        scales = [part[..., -64:].view(np.float32).transpose(0, 2, 1).reshape(-1, self.kv_heads)[:positions] for part in (keys, values)]
        codes = [
            part.astype(np.int64).reshape(-1, self.kv_heads, size)[:positions] for part, size in ((key_codes, self.key_size), (value_codes, self.value_size))
        ]
        return (codes[0], scales[0]), (codes[1], scales[1])

    @property
    def _scaled(self) -> int:
        """Dimensions that share a scale."""
        return 32 if self.cache_type == "q8_0" else 1

    def _elements(self, part: NDArray[np.uint8], size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The elements of a head and their scales, one each where the type has none."""
        part = np.ascontiguousarray(part)
        if self.cache_type == "q8_0":
            return part[..., : 16 * size].view(np.int8).astype(np.float32), part[..., 16 * size :].copy().view(np.float16).astype(np.float32)
        elements = part.view({"f16": np.float16, "f32": np.float32}[self.cache_type]).astype(np.float32)
        return elements, np.ones_like(elements)

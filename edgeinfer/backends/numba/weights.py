"""Weights in memory: which tensors of a program are packed, kept as float32 rows or left mapped, and packing them with all workers.

A linear weight is packed; a table that is only looked up stays in the file's mapping; a table that is also the output matrix is packed once and gathered
from there. The pages of a packed tensor's file are given back as soon as it is packed, so that memory never holds two copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgeinfer.backends.numba.memory import Region
from edgeinfer.core.errors import ModelFileError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model.program import Program, Weight
from kernels_numba.executor.store import KernelName
from kernels_numba.executor.tape import TapeEntry
from kernels_numba.formats import format_by_name
from kernels_numba.layouts import TILE_ROWS, packed_bytes


@dataclass(frozen=True)
class WeightPlan:
    """What is kept of each tensor. The three groups are disjoint."""

    packed: tuple[Weight, ...]
    rows: tuple[Weight, ...]  # norms and biases, as float32
    mapped: tuple[Weight, ...]

    @property
    def resident_bytes(self) -> int:
        vectors = sum(-(-weight.shape[-1] // TILE_ROWS) * TILE_ROWS * 4 for weight in self.rows)
        return sum(packed_bytes(weight.format_name, *weight.shape) for weight in self.packed) + vectors

    @property
    def mapped_bytes(self) -> int:
        return sum(file_bytes(weight) for weight in self.mapped)

    @property
    def largest_source(self) -> int:
        """File bytes of the largest tensor that is packed: what packing needs beside the result."""
        return max((file_bytes(weight) for weight in self.packed), default=0)


def file_bytes(weight: Weight) -> int:
    return int(np.prod(weight.shape[:-1], dtype=np.int64)) * format_by_name(weight.format_name).row_bytes(weight.shape[-1])


def plan_weights(program: Program) -> WeightPlan:
    """Sorts the program's tensors by how they are used."""
    packed: dict[str, Weight] = {}
    rows: dict[str, Weight] = {}
    tables: dict[str, Weight] = {}
    for operation in program.operations:
        if operation.kind == "linear":
            packed[operation.weights[0].name] = operation.weights[0]
            rows.update((weight.name, weight) for weight in operation.weights[1:])
        elif operation.kind == "embedding":
            tables[operation.weights[0].name] = operation.weights[0]
        else:
            rows.update((weight.name, weight) for weight in operation.weights)
    mapped = tuple(weight for name, weight in tables.items() if name not in packed)
    return WeightPlan(tuple(packed.values()), tuple(rows.values()), mapped)


def pack_kernel(format_name: str) -> KernelName:
    return KernelName("ops.pack", "pack" if format_by_name(format_name).quantized else "pack_float", (format_name,))


def pack_kernels(plan: WeightPlan) -> list[KernelName]:
    return list(dict.fromkeys(pack_kernel(weight.format_name) for weight in plan.packed))


class Weights:
    """The tensors of a loaded program by name: `packed[name]`, `rows[name]` and `mapped[name]` are addresses."""

    def __init__(self) -> None:
        self.packed: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.mapped: dict[str, int] = {}
        self._regions: list[Region] = []
        self._vectors: list[np.ndarray] = []

    @classmethod
    def load(
        cls, file: GGUFFile, plan: WeightPlan, run: Callable[[TapeEntry], None], progress: Callable[[int, int], None] | None = None
    ) -> Weights:
        """Packs the tensors with `run`, which executes one tape entry on all workers. Raises ModelFileError for a norm or bias that is not finite."""
        weights = cls()
        try:
            weights._load(file, plan, run, progress)
        except BaseException:
            weights.close()
            raise
        return weights

    def _load(
        self, file: GGUFFile, plan: WeightPlan, run: Callable[[TapeEntry], None], progress: Callable[[int, int], None] | None
    ) -> None:
        for weight in plan.rows:
            self.rows[weight.name] = self._vector(file, weight)
        for weight in plan.mapped:
            self.mapped[weight.name] = int(file.tensor_bytes(weight.name).ctypes.data)
        sizes = [packed_bytes(weight.format_name, *weight.shape) for weight in plan.packed]
        region = Region(sum(-(-size // 4096) * 4096 for size in sizes) + PREFETCHED_BEYOND, "weights", dense=True)
        self._regions.append(region)
        address, total, done = region.address, sum(sizes), 0
        for weight, size in zip(plan.packed, sizes, strict=True):
            source = file.tensor_bytes(weight.name)
            rows, columns = weight.shape
            run(TapeEntry(pack_kernel(weight.format_name), (int(source.ctypes.data), rows, columns, address), True, f"pack {weight.name}"))
            del source
            file.release(weight.name)
            self.packed[weight.name] = address
            address += -(-size // 4096) * 4096
            done += size
            if progress is not None:
                progress(done, total)

    def _vector(self, file: GGUFFile, weight: Weight) -> int:
        """A one-dimensional tensor as float32, padded with zeros to whole vectors and 64-byte aligned."""
        values = format_by_name(weight.format_name).decode_rows(file.tensor_bytes(weight.name).reshape(1, -1))[0]
        if not np.isfinite(values).all():
            raise ModelFileError(f"tensor {weight.name} holds a value that is not finite; the file is damaged, fetch it again")
        padded = -(-len(values) // TILE_ROWS) * TILE_ROWS
        memory = np.zeros(padded * 4 + 64, np.uint8)
        start = -memory.ctypes.data % 64
        memory[start : start + padded * 4].view(np.float32)[: len(values)] = values
        self._vectors.append(memory)
        file.release(weight.name)
        return int(memory.ctypes.data) + start

    def close(self) -> None:
        for region in self._regions:
            region.close()
        self._regions.clear()
        self._vectors.clear()


PREFETCHED_BEYOND = 1 << 16
"""Bytes behind the last weight, so that a vector load never crosses into foreign memory."""



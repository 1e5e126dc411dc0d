"""Weights in memory: which tensors of a program are packed, kept as float32 rows or left mapped, and packing them with all workers.

A linear weight is packed; a table that is only looked up stays in the file's mapping; a table that is also the output matrix is packed once and gathered
from there. Packing goes through the file in pieces of a few megabytes and gives the pages of a piece back when it is packed, so that memory never holds
two copies. Packed weights and rows lie in one piece of memory, which can be kept on disk (`stored`) and is then mapped instead of packed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.numba.memory import Region
from edgeinfer.backends.numba.stored import HEADER_BYTES, StoredWeights
from edgeinfer.core.errors import ModelFileError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model.program import Program, Weight
from kernels_numba.executor.store import KernelName
from kernels_numba.executor.tape import TapeEntry
from kernels_numba.formats import format_by_name
from kernels_numba.layouts import PLANES, TILE_ROWS, packed_bytes, planes_layout


@dataclass(frozen=True)
class WeightPlan:
    """What is kept of each tensor. The three groups are disjoint."""

    packed: tuple[Weight, ...]
    rows: tuple[Weight, ...]  # norms and biases, as float32
    mapped: tuple[Weight, ...]
    planes: str | None = None  # the name of a packed one that lies in two planes (`kernels_numba.layouts.planes`)

    @cached_property
    def layout(self) -> WeightLayout:
        return _lay_out(self)

    @property
    def resident_bytes(self) -> int:
        return self.layout.size

    @property
    def mapped_bytes(self) -> int:
        return sum(file_bytes(weight) for weight in self.mapped)

    @property
    def packing_bytes(self) -> int:
        """File bytes that are in memory at once while packing, beside the result."""
        return min(PIECE_BYTES, sum(file_bytes(weight) for weight in self.packed))


@dataclass(frozen=True)
class WeightLayout:
    """Where packed tensors and float32 rows lie in the weights' memory: offsets by name. `size` counts all bytes, with those that may be read behind the
    last one."""

    packed: dict[str, int]
    rows: dict[str, int]
    size: int

    @property
    def offsets(self) -> list[tuple[str, int]]:
        """All names and offsets, in order."""
        return [*self.packed.items(), *self.rows.items()]


def _lay_out(plan: WeightPlan) -> WeightLayout:
    packed: dict[str, int] = {}
    rows: dict[str, int] = {}
    offset = 0
    for weight in plan.packed:
        packed[weight.name] = offset
        offset += -(-packed_bytes(weight.format_name, *weight.shape) // PAGE_BYTES) * PAGE_BYTES
    for weight in plan.rows:
        rows[weight.name] = offset
        offset += -(-weight.shape[-1] // TILE_ROWS) * TILE_ROWS * 4
    return WeightLayout(packed, rows, offset + READ_BEYOND)


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
    return WeightPlan(tuple(packed.values()), tuple(rows.values()), mapped, matrix_in_planes(program))


def matrix_in_planes(program: Program) -> str | None:
    """The output matrix, if it is to lie in two planes, so that greedy decoding reads less of it (`kernels_numba.ops.screen`): it is Q8_0, and its products are
    the logits, with nothing added or done to them."""
    for operation in program.operations:
        if operation.kind == "linear" and operation.outputs[0] == program.logits and operation.outputs[0].per_output:
            weight = operation.weights[0]
            uses = sum(other.kind == "linear" and other.weights[0].name == weight.name for other in program.operations)
            plain = operation.inputs == (program.hidden,) and not operation.attributes["has_bias"]
            return weight.name if weight.format_name == "Q8_0" and uses == 1 and plain else None
    return None


def pack_kernel(format_name: str, planes: bool = False) -> KernelName:
    if planes:
        return KernelName("ops.pack", "pack_planes", (PLANES,))
    return KernelName("ops.pack", "pack" if format_by_name(format_name).quantized else "pack_float", (format_name,))


def pack_kernels(plan: WeightPlan) -> list[KernelName]:
    return list(dict.fromkeys(pack_kernel(weight.format_name, weight.name == plan.planes) for weight in plan.packed))


class Weights:
    """The tensors of a loaded program by name: `packed[name]`, `rows[name]` and `mapped[name]` are addresses. `memory` is all of packed and rows."""

    def __init__(self, file: GGUFFile, plan: WeightPlan, base: int, memory: NDArray[np.uint8], owner: Region | mmap.mmap) -> None:
        self.packed = {name: base + offset for name, offset in plan.layout.packed.items()}
        self.rows = {name: base + offset for name, offset in plan.layout.rows.items()}
        self.mapped = {weight.name: int(file.tensor_bytes(weight.name).ctypes.data) for weight in plan.mapped}
        self.memory = memory
        self._layout = plan.layout
        self._owner = owner

    @classmethod
    def pack(
        cls, file: GGUFFile, plan: WeightPlan, run: Callable[[list[TapeEntry]], object], progress: Callable[[int, int], None] | None = None
    ) -> Weights:
        """Packs the tensors with `run`, which executes tape entries on all workers. Raises ModelFileError for a norm or bias that is not finite."""
        region = Region(plan.layout.size, "weights", dense=True)
        try:
            for weight in plan.rows:
                _store_row(file, weight, region.bytes[plan.layout.rows[weight.name] :])
            total = sum(file_bytes(weight) for weight in plan.packed)
            done = 0
            for batch in _batches(plan):
                run([piece.entry(file, region.address + plan.layout.packed[piece.weight.name]) for piece in batch])
                for piece in batch:
                    file.release(piece.weight.name, piece.start, piece.length)
                done += sum(piece.length for piece in batch)
                if progress is not None:
                    progress(done, total)
        except BaseException:
            region.close()
            raise
        return cls(file, plan, region.address, region.bytes, region)

    @classmethod
    def map(cls, file: GGUFFile, plan: WeightPlan, stored: StoredWeights) -> Weights:
        """Takes the weights from disk: nothing is packed or copied. Raises OSError."""
        mapping = stored.map()
        memory = np.frombuffer(mapping, np.uint8, plan.layout.size, HEADER_BYTES)
        return cls(file, plan, int(memory.ctypes.data), memory, mapping)

    def has_bounds(self, weight: Weight) -> bool:
        """Whether the upper plane of a matrix in two planes bounds its products: all scales are finite and none is negative. Reads them all, some 5 ms for
        170 MB."""
        layout = planes_layout()
        start = self._layout.packed[weight.name]
        upper = self.memory[start : start + -(-weight.shape[0] // TILE_ROWS) * layout.tile_bytes(weight.shape[1])]
        scales = upper.view(np.uint16).reshape(-1, layout.record_bytes // 2)[:, : TILE_ROWS * layout.groups_per_record]
        return int(scales.max()) < HALF_INFINITY

    def close(self) -> None:
        """Gives the memory back, unless a view of it is still alive (then it goes with the view)."""
        self.memory = np.empty(0, np.uint8)
        try:
            self._owner.close()
        except BufferError:
            pass


@dataclass(frozen=True)
class _Piece:
    """Rows of a tensor that are packed at once: bytes `start` to `start + length` of the tensor, from row `row` on."""

    weight: Weight
    row: int
    rows: int
    start: int
    length: int
    planes: bool

    def entry(self, file: GGUFFile, destination: int) -> TapeEntry:
        columns = self.weight.shape[1]
        source = int(file.tensor_bytes(self.weight.name).ctypes.data) + self.start
        label = f"pack {self.weight.name}"
        if self.planes:
            layout = planes_layout()
            tile, tiles = self.row // TILE_ROWS, -(-self.weight.shape[0] // TILE_ROWS)
            upper = destination + tile * layout.tile_bytes(columns)
            lower = destination + tiles * layout.tile_bytes(columns) + tile * layout.low_tile_bytes(columns)
            return TapeEntry(pack_kernel(self.weight.format_name, True), (source, self.rows, columns, upper, lower), False, label)
        at = destination + packed_bytes(self.weight.format_name, self.row, columns)
        return TapeEntry(pack_kernel(self.weight.format_name), (source, self.rows, columns, at), False, label)


def _batches(plan: WeightPlan) -> Iterator[list[_Piece]]:
    """The pieces of all tensors, together PIECE_BYTES at a time: few enough to keep memory small, enough to keep all workers busy."""
    batch: list[_Piece] = []
    size = 0
    for weight in plan.packed:
        rows, columns = weight.shape
        row_bytes = format_by_name(weight.format_name).row_bytes(columns)
        rows_at_once = max(1, PIECE_BYTES // (row_bytes * TILE_ROWS)) * TILE_ROWS
        for row in range(0, rows, rows_at_once):
            count = min(rows_at_once, rows - row)
            if batch and size + count * row_bytes > PIECE_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(_Piece(weight, row, count, row * row_bytes, count * row_bytes, weight.name == plan.planes))
            size += count * row_bytes
    if batch:
        yield batch


def _store_row(file: GGUFFile, weight: Weight, destination: NDArray[np.uint8]) -> None:
    """A one-dimensional tensor as float32; what pads it to whole vectors stays zero."""
    values = format_by_name(weight.format_name).decode_rows(file.tensor_bytes(weight.name).reshape(1, -1))[0]
    if not np.isfinite(values).all():
        raise ModelFileError(f"tensor {weight.name} holds a value that is not finite; the file is damaged, fetch it again")
    destination[: 4 * len(values)] = values.view(np.uint8)
    file.release(weight.name)


PAGE_BYTES = 4096

PIECE_BYTES = 16 << 20

HALF_INFINITY = 0x7C00
"""Bits of a half float; larger words are NaN or negative."""

READ_BEYOND = 1 << 16
"""Bytes behind the last weight, so that a vector load or a prefetch never crosses into foreign memory."""

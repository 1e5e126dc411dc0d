"""What a forward pass must compute and read, counted from the program: matrix multiply-adds, and the bytes of weights and cached keys and values.

The benchmark divides by these to say how far a speed is from the machine's limits, whichever engine ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends.numba.emit import page_bytes
from edgeinfer.backends.numba.weights import file_bytes, matrix_in_planes
from edgeinfer.core.cache_types import DEFAULT_CACHE_TYPES
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program, build_program, fuse
from edgeinfer.model.program import CacheStore
from kernels_numba.formats import format_by_name
from kernels_numba.layouts import TILE_ROWS, packed_bytes, planes_layout
from kernels_numba.ops.cache_types import PAGE_POSITIONS
from kernels_numba.ops.screen import SCREENED_ROWS


@dataclass(frozen=True)
class MatrixWork:
    """One weight matrix: multiply-adds for a row, its packed bytes, and whether it runs only for rows whose logits are asked for."""

    multiply_adds: int
    packed_bytes: int
    per_output: bool


@dataclass(frozen=True)
class ProgramWork:
    """Counts of one program. A multiply-add is one; attention's own products, in float32, are not among them, nor is the embedding, a look-up.

    `weight_bytes` are all that a step reads of the weights as they are packed (norms and biases as float32 included); `file_weight_bytes` the same as the
    file stores them. `embedding_row_bytes` is what a token reads of the table. `left_out_bytes` are those of `weight_bytes` that our greedy decoding need not
    read: the lower plane of an output matrix in two planes (`kernels_numba.ops.screen`).
    """

    multiply_adds_per_row: int
    multiply_adds_per_output: int  # of operations that run for rows whose logits are asked for: the head
    weight_bytes: int
    left_out_bytes: int
    file_weight_bytes: int
    embedding_row_bytes: int
    stores: tuple[CacheStore, ...]
    cache_type: str
    matrices: Mapping[str, MatrixWork]

    def multiply_adds(self, rows: int, outputs: int) -> int:
        return rows * self.multiply_adds_per_row + outputs * self.multiply_adds_per_output

    def store_bytes(self, store: int, positions: int) -> int:
        """Bytes of keys and values in a store that a token reads which sees `positions` positions, its own included; a window holds no more than itself."""
        found = self.stores[store]
        seen = min(positions, found.window) if found.window else positions
        return seen * page_bytes(found, self.cache_type) // PAGE_POSITIONS

    def cache_bytes(self, positions: int) -> int:
        """The same of all stores."""
        return sum(self.store_bytes(store, positions) for store in range(len(self.stores)))

    def decode_bytes(self, first_position: int, count: int, sequences: int = 1, as_in_file: bool = False) -> int:
        """Bytes that `count` steps of one token for each of `sequences`, chosen greedily, must read from position `first_position` on: the weights once a
        step. What is read of few row tiles, whichever those are, to make sure of a choice is not among them: some 1 % of the output matrix on smollm2-135m,
        0.4 % on gemma-3-270m, 0.1 % on qwen2.5-coder-0.5b."""
        left_out = self.left_out_bytes if sequences <= SCREENED_ROWS else 0
        weights = self.file_weight_bytes if as_in_file else self.weight_bytes - left_out
        own = sum(self.embedding_row_bytes + self.cache_bytes(first_position + index + 1) for index in range(count))
        return count * weights + sequences * own


def count_work(program: Program, cache_type: str | None = None) -> ProgramWork:
    """The counts of a program, with a cache of `cache_type`, or of the default type."""
    embedding_row = left_out = 0
    in_planes = matrix_in_planes(program)
    matrices, vectors, stored = {}, {}, {}
    for operation in program.operations:
        if operation.kind == "embedding":
            table = operation.weights[0]
            embedding_row += format_by_name(table.format_name).row_bytes(table.shape[1])
            continue
        for weight in operation.weights:
            stored[weight.name] = file_bytes(weight)
            if len(weight.shape) == 1:
                vectors[weight.name] = -(-weight.shape[0] // TILE_ROWS) * TILE_ROWS * 4
            else:
                products = weight.shape[0] * weight.shape[1]
                if weight.name == in_planes:
                    left_out = -(-weight.shape[0] // TILE_ROWS) * planes_layout().low_tile_bytes(weight.shape[1])
                matrices[weight.name] = MatrixWork(products, packed_bytes(weight.format_name, *weight.shape), operation.outputs[0].per_output)
    return ProgramWork(
        multiply_adds_per_row=sum(matrix.multiply_adds for matrix in matrices.values() if not matrix.per_output),
        multiply_adds_per_output=sum(matrix.multiply_adds for matrix in matrices.values() if matrix.per_output),
        weight_bytes=sum(matrix.packed_bytes for matrix in matrices.values()) + sum(vectors.values()),
        left_out_bytes=left_out,
        file_weight_bytes=sum(stored.values()),
        embedding_row_bytes=embedding_row,
        stores=program.stores,
        cache_type=cache_type or DEFAULT_CACHE_TYPES["numba"],
        matrices=matrices,
    )


def work_of_file(model: Path, cache_type: str | None = None) -> ProgramWork:
    """The counts of a model file, of which only metadata is read. Raises ModelFileError and UnsupportedModelError."""
    with GGUFFile.open(model) as file:
        return count_work(fuse(build_program(file)), cache_type)

"""Packed weights: how a matrix of a quantized format lies in memory while it is used. One layout, generic over the formats.

Rows are interleaved 16 at a time, so that one vector holds 4 columns of 16 rows and a dot product needs no horizontal sums. A *row tile* (16 rows, zeros
beyond the last) is a sequence of *records*; a record is a header (scales, minima) followed by the codes of `groups_per_record` groups of 32 columns:

    [header: header_bytes][codes of group 0: data_bytes] ... [codes of group n-1: data_bytes]

Sizes are multiples of 64, and everything is read forward once. A group's codes unpack to 8 vectors of 64 bytes; byte 4 * row + i of vector v is the code
of column 4 * v + i. Nibbles lie so that the low ones are columns 0 to 15 and the high ones columns 16 to 31 of the group.

Matrices of the float formats are kept as [row tile][column][16 rows] in their own element type.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from kernels_numba.simd.function import KernelFunction

TILE_ROWS = 16
GROUP = 32
PLANES, UPPER_PLANE = "q8_0_planes", "q8_0_upper"
"""Tags of kernels for matrices in two planes, and for the upper one alone."""


@dataclass(frozen=True)
class PackedLayout:
    """What a format's file says about its packed form.

    unpack(simd, data, width) -> 8 code vectors, bytes 0..255, for a tile of `width` tokens · scale(simd, header, slot) -> float32x16 of a group (of the
    whole record with `sub_scales`) · minimum(simd, header, slot) -> float32x16 that is added to each element, if `has_minimum` · low_scale,
    high_scale(simd, header, slot) -> int32x16 that multiply columns 0-15 and 16-31, if `sub_scales` · pack(simd, block, record, slot, lane) writes one
    block of the file, of row `lane` of the tile.
    A code stands for code - 2 ** zero_shift, or for itself where `zero_shift` is 0.

    A matrix in two planes (`planes`) has the upper bits of all codes in records as above, then the lower bits, `low_bytes` a group: `join(simd, codes, low)`
    -> whole codes, and its `pack` takes the place of a block's lower bits too: (simd, block, record, slot, low, lane).
    """

    groups_per_record: int
    header_bytes: int
    data_bytes: int
    zero_shift: int
    unpack: KernelFunction
    scale: KernelFunction
    pack: KernelFunction
    minimum: KernelFunction | None = None
    low_scale: KernelFunction | None = None
    high_scale: KernelFunction | None = None
    low_bytes: int = 0
    join: KernelFunction | None = None

    @property
    def record_bytes(self) -> int:
        return self.header_bytes + self.groups_per_record * self.data_bytes

    def tile_bytes(self, columns: int) -> int:
        """Bytes of a row tile, in the upper plane where there are two."""
        return self._records(columns) * self.record_bytes

    def low_tile_bytes(self, columns: int) -> int:
        """Bytes of a row tile in the lower plane."""
        return self._records(columns) * self.groups_per_record * self.low_bytes

    def _records(self, columns: int) -> int:
        return -(-columns // (GROUP * self.groups_per_record))


@dataclass(frozen=True)
class FloatLayout:
    """A float format: `element_bytes`, and load(simd, address) -> float32x16 of one column of a tile."""

    element_bytes: int
    load: KernelFunction

    def tile_bytes(self, columns: int) -> int:
        return columns * TILE_ROWS * self.element_bytes


def packed_layout(format_name: str) -> PackedLayout | FloatLayout:
    """The `PACKED` of a format's file."""
    return importlib.import_module(f"kernels_numba.formats.{format_name.lower()}").PACKED


def planes_layout() -> PackedLayout:
    """That of a matrix of Q8_0 in two planes, `PLANES` as a tag. It takes the bytes of the plain form."""
    return importlib.import_module("kernels_numba.layouts.planes").Q8_0_PLANES


def packed_bytes(format_name: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix."""
    return -(-rows // TILE_ROWS) * packed_layout(format_name).tile_bytes(columns)

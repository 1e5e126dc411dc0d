"""The arena: where the values of a program lie while a step runs. Slots are reused when a value is dead; all memory is taken once, for the largest step.

A value can have two forms: `rows` (float32 matrix, rows of `stride` bytes) and `blocks` (quantized activations, `kernels_numba.ops.common`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN, GROUP

LARGEST_TILE = 16


def row_stride(width: int) -> int:
    """Bytes from a row to the next: the width padded to 16 float32."""
    return -(-width // 16) * 64


def rows_bytes(rows: int, width: int) -> int:
    return rows * row_stride(width)


def blocks_bytes(rows: int, width: int) -> int:
    """Bytes of quantized activations, whatever tile width the number of rows takes."""
    return -(-rows // LARGEST_TILE) * LARGEST_TILE * -(-width // GROUP) * BLOCK_BYTES_PER_TOKEN


@dataclass
class Slot:
    """A piece of the arena. `offset` is known once the arena is laid out."""

    size: int
    offset: int = -1


@dataclass
class Arena:
    """Hands out slots; a freed slot serves the next request of its size, and no other: where workers share rows they do not wait for each other, so rows of
    values in the same slot must lie at the same places."""

    slots: list[Slot] = field(default_factory=list)
    _free: list[Slot] = field(default_factory=list)

    def take(self, size: int) -> Slot:
        size = -(-size // 64) * 64
        for slot in self._free:
            if slot.size == size:
                self._free.remove(slot)
                return slot
        slot = Slot(size)
        self.slots.append(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        self._free.append(slot)

    def lay_out(self) -> int:
        """Gives every slot its offset; returns the bytes of the whole. A cache line between slots keeps a row's last vector from its neighbour's first."""
        offset = 0
        for slot in self.slots:
            slot.offset = offset
            offset += slot.size + 64
        return offset

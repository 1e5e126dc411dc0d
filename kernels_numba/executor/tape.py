"""The tape: the list of kernel calls that a step runs, as the int64 words that the run loop reads. Written once by a backend; free of Numba.

An entry of the tape is `ENTRY_WORDS` words: the kernel's address, the address of its operands, flags. Operands are int64 words in the order of
the record named beside the kernel; a float32 operand is its bits in the low half. Addresses in operands are unchecked: whoever builds an entry checks
sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.executor.store import KernelName

ENTRY_WORDS = 3
ENTRY_BYTES = 8 * ENTRY_WORDS
(ENTRY_KERNEL, ENTRY_OPERANDS, ENTRY_FLAGS) = (8 * index for index in range(ENTRY_WORDS))
"""Byte offsets of an entry's words."""

FLAG_BARRIER = 1
"""All workers wait for each other after this entry; the step's status and cancel words are looked at there."""
FLAG_ROW_WISE = 2
"""What the entry writes in a row follows from the same row of what it reads. Where workers share rows, those that follow each other are a chain: a worker
runs all of it for a block of rows before it turns to its next block, and workers wait for each other only before and after it."""


def float_operand(value: float) -> int:
    """The operand word of a float32: its bits in the low half. The value is rounded to float32."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


@dataclass(frozen=True)
class TapeEntry:
    """One kernel call. `barrier_after` is false only where the next entries neither read what this one writes nor write what it reads; `row_wise` is
    FLAG_ROW_WISE."""

    kernel: KernelName
    operands: Sequence[int]
    barrier_after: bool = True
    label: str = ""
    row_wise: bool = False


class Tape:
    """The words of a list of entries, in memory that the tape owns. Immutable once built; any number of steps may run it, one after the other."""

    def __init__(self, entries: Sequence[TapeEntry], words: NDArray[np.int64], operands: NDArray[np.int64], profile: bool) -> None:
        self.entries = tuple(entries)
        self.words = words
        self._operands = operands  # the words point into it
        self.counters: NDArray[np.int64] | None = aligned_zeros(max(1, len(self.entries)), np.int64)[: len(self.entries)] if profile else None
        self.address = address_of(words)
        self.counters_address = address_of(self.counters) if self.counters is not None and len(self.entries) else 0

    @classmethod
    def build(cls, entries: Sequence[TapeEntry], addresses: Mapping[KernelName, int], profile: bool = False) -> Tape:
        """The tape of these entries with the kernels at `addresses` (`KernelStore.load`).

        With `profile`, `counters` is int64[entries]: nanoseconds that worker 0 spent on each entry and the wait after it, summed over steps.
        Raises KeyError for a kernel without an address and OverflowError for an operand that is no int64.
        """
        total = sum(len(entry.operands) for entry in entries)
        operands = aligned_zeros(max(1, total), np.int64)
        words = aligned_zeros((max(1, len(entries)), ENTRY_WORDS), np.int64)[: len(entries)]
        base = address_of(operands)
        position = 0
        for row, entry in zip(words, entries):
            address = addresses[entry.kernel]
            if not address:
                raise ValueError(f"kernel {entry.kernel.symbol} has the address 0")
            operands[position : position + len(entry.operands)] = entry.operands
            row[:] = (address, base + 8 * position, FLAG_BARRIER * entry.barrier_after | FLAG_ROW_WISE * entry.row_wise)
            position += len(entry.operands)
        return cls(entries, words, operands, profile)

    def __len__(self) -> int:
        return len(self.entries)

    def listing(self) -> str:
        """One line an entry: number, kernel, whether workers wait after it, label; with a profile, the microseconds summed over steps."""
        lines = []
        for index, entry in enumerate(self.entries):
            kernel = ".".join((entry.kernel.module, entry.kernel.function)) + (f"[{', '.join(entry.kernel.tags)}]" if entry.kernel.tags else "")
            time = f" {self.counters[index] / 1000:12.1f} us" if self.counters is not None else ""
            lines.append(f"{index:4d}{time}  {kernel:<40s} {'|' if entry.barrier_after else ' '}  {entry.label}".rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.listing()

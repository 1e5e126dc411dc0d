"""The tape's words, as the run loop reads them, and its listing."""

from __future__ import annotations

import ctypes
import struct

import pytest

from kernels_numba.executor.store import KernelName
from kernels_numba.executor.tape import ENTRY_BYTES, Tape, TapeEntry, float_operand

LINEAR = KernelName("ops.linear", "linear", ("Q4_1",))
NORM = KernelName("ops.norm", "rms_norm")


def word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def test_entries_point_to_their_operands() -> None:
    tape = Tape.build(
        [TapeEntry(NORM, [1, 2, float_operand(1e-5)], label="norm"), TapeEntry(LINEAR, [-7], barrier_after=False), TapeEntry(NORM, [])],
        {LINEAR: 1000, NORM: 2000},
    )
    entries = [[word(tape.address + ENTRY_BYTES * i + 8 * j) for j in range(3)] for i in range(3)]
    assert [entry[0] for entry in entries] == [2000, 1000, 2000]
    assert [entry[2] for entry in entries] == [1, 0, 1]
    assert [word(entries[0][1] + 8 * i) for i in range(2)] == [1, 2]
    assert ctypes.c_float.from_address(entries[0][1] + 16).value == struct.unpack("<f", struct.pack("<f", 1e-5))[0]
    assert word(entries[1][1]) == -7


def test_float_operand_is_the_bits_of_a_float32() -> None:
    assert float_operand(1.0) == 0x3F800000
    assert float_operand(-0.0) == 0x80000000
    assert float_operand(0.1) == 0x3DCCCCCD


def test_missing_kernels_and_wide_operands_are_refused() -> None:
    with pytest.raises(KeyError):
        Tape.build([TapeEntry(NORM, [])], {})
    with pytest.raises(ValueError, match="address 0"):
        Tape.build([TapeEntry(NORM, [])], {NORM: 0})
    with pytest.raises(OverflowError):
        Tape.build([TapeEntry(NORM, [1 << 63])], {NORM: 1})


def test_listing_names_kernels_labels_and_waits() -> None:
    tape = Tape.build([TapeEntry(NORM, [], label="x -> h"), TapeEntry(LINEAR, [], False, "h -> q")], {LINEAR: 1, NORM: 1})
    first, second = tape.listing().splitlines()
    assert first.split() == ["0", "ops.norm.rms_norm", "|", "x", "->", "h"]
    assert second.split() == ["1", "ops.linear.linear[Q4_1]", "h", "->", "q"]

"""Packing: every byte of a packed matrix that matters comes from the file, padding is zero, and shares of workers do not overlap."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_numba.layouts import FloatLayout, packed_bytes, packed_layout
from tests.kernels.weights import FORMATS, column_counts, levels_and_formats, pack, random_rows


@pytest.mark.parametrize(("level", "format_name"), levels_and_formats(FORMATS))
def test_any_workers_give_the_same_bytes(level: str, format_name: str) -> None:
    for columns in column_counts(format_name):
        for rows in (1, 15, 16, 17, 50, 64):
            stored = random_rows(format_name, rows, columns)
            expected, memory = pack(level, format_name, stored, columns)
            for workers in (2, 3, 4):
                np.testing.assert_array_equal(pack(level, format_name, stored, columns, workers)[0], expected)
            memory.check()


@pytest.mark.parametrize(("level", "format_name"), levels_and_formats(FORMATS))
def test_rows_do_not_touch_each_other_and_missing_rows_are_zero(level: str, format_name: str) -> None:
    """Row r of a tile occupies the same bytes whatever the other rows are: 16 matrices that have one row each add up to the whole."""
    columns = column_counts(format_name)[-1]
    stored = random_rows(format_name, 16, columns)
    whole, _ = pack(level, format_name, stored, columns)
    empty, _ = pack(level, format_name, np.zeros_like(stored), columns)
    total = empty.copy()
    for row in range(16):
        one = np.zeros_like(stored)
        one[row] = stored[row]
        change = pack(level, format_name, one, columns)[0] ^ empty
        assert not (change & (total ^ empty)).any()
        total ^= change
    np.testing.assert_array_equal(total, whole)
    first, _ = pack(level, format_name, stored[:1], columns)
    np.testing.assert_array_equal(first & ~(whole & first), np.zeros_like(first))


@pytest.mark.parametrize("format_name", FORMATS)
def test_sizes_are_near_the_files(format_name: str) -> None:
    layout = packed_layout(format_name)
    if isinstance(layout, FloatLayout):
        assert packed_bytes(format_name, 17, 96) == 32 * 96 * layout.element_bytes
        return
    assert layout.header_bytes % 64 == 0 and layout.data_bytes % 64 == 0
    stored = random_rows(format_name, 16, 768)
    assert packed_bytes(format_name, 16, 768) == 768 // 32 // layout.groups_per_record * layout.record_bytes
    assert packed_bytes(format_name, 17, 768) == packed_bytes(format_name, 32, 768) == 2 * packed_bytes(format_name, 16, 768)
    assert 1 <= packed_bytes(format_name, 16, 768) / stored.nbytes < 1.04

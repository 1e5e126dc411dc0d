"""Quantized formats: one file a format, and this folder is the registry.

A format's file defines `FORMAT` (a `Format` record) and plain NumPy functions `decode` and `encode`; nothing here imports Numba, because the file
reader, the reference, the quantizer and boards without Numba need it too. `ggml_types.py` knows names and sizes of every type of GGML, also of those
that have no file here. Anyone above may call `all_formats`, `format_by_name` and `format_by_ggml_type`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

# Modules of this folder that are no formats: they hold what several formats share.
_SHARED_MODULES = frozenset({"ggml_types", "k_scales", "nibbles"})


@dataclass(frozen=True)
class Format:
    """How one type of weights is stored.

    A block is `block_bytes` bytes that hold `block_elements` consecutive elements of a row. A decoded element is `scale * code`, or
    `scale * code + minimum` where `has_minimum`; `elements_per_scale` consecutive elements share the scale (fewer than a block where the block has
    sub-blocks), and codes lie in `lowest_code ... highest_code`. For the formats that are not quantized (F32, F16, BF16) the codes are 0 ... 0.

    decode: uint8[n, block_bytes] -> float32[n, block_elements], bit for bit what GGML's reference computes.
    encode: float32[n, block_elements] -> uint8[n, block_bytes], round to nearest; the values must be finite.
    """

    name: str
    ggml_type: int
    block_elements: int
    block_bytes: int
    quantized: bool
    has_minimum: bool
    elements_per_scale: int
    lowest_code: int
    highest_code: int
    decode: Callable[[NDArray[np.uint8]], NDArray[np.float32]]
    encode: Callable[[NDArray[np.float32]], NDArray[np.uint8]]

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of that many elements; a ValueError if they are no whole number of blocks."""
        if elements % self.block_elements:
            raise ValueError(f"a row of {elements} elements is no whole number of {self.name} blocks of {self.block_elements}")
        return elements // self.block_elements * self.block_bytes

    def decode_rows(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8[rows, row_bytes] -> float32[rows, elements]."""
        blocks = np.ascontiguousarray(rows).reshape(-1, self.block_bytes)
        return self.decode(blocks).reshape(rows.shape[0], rows.shape[1] // self.block_bytes * self.block_elements)

    def encode_rows(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """float32[rows, elements] -> uint8[rows, row_bytes]; a ValueError if a row is no whole number of blocks."""
        row_bytes = self.row_bytes(values.shape[1])
        blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, self.block_elements)
        return self.encode(blocks).reshape(values.shape[0], row_bytes)


@functools.cache
def all_formats() -> Mapping[str, Format]:
    """Every format that has a file in this folder, by name, in the order of GGML's type numbers."""
    found: list[Format] = []
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _SHARED_MODULES:
            found.append(importlib.import_module(f"{__name__}.{module.name}").FORMAT)
    found.sort(key=lambda entry: entry.ggml_type)
    return MappingProxyType({entry.name: entry for entry in found})


@functools.cache
def _formats_by_ggml_type() -> Mapping[int, Format]:
    return {entry.ggml_type: entry for entry in all_formats().values()}


def format_by_name(name: str) -> Format:
    """The format of that name ("Q4_K"); a KeyError that lists the known ones otherwise."""
    try:
        return all_formats()[name]
    except KeyError:
        raise KeyError(f"no format {name!r}; known are {', '.join(all_formats())}") from None


def format_by_ggml_type(ggml_type: int) -> Format:
    """The format with GGML's type number; a KeyError if it has no file here."""
    try:
        return _formats_by_ggml_type()[ggml_type]
    except KeyError:
        raise KeyError(f"no format for the ggml type {ggml_type}; known are {', '.join(all_formats())}") from None

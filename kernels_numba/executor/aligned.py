"""Zeroed NumPy arrays that start on a cache line, for memory whose addresses are handed to kernels. Used by the executor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_LINE = 64


def aligned_zeros(shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros of that shape and dtype whose address is a multiple of 64. The array owns its memory (through its base)."""
    kind = np.dtype(dtype)
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * kind.itemsize
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    start = -address_of(memory) % CACHE_LINE
    return memory[start : start + size].view(kind).reshape(shape)


def address_of(array: NDArray[Any]) -> int:
    """The address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address

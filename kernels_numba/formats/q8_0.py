"""Q8_0: 32 elements in 34 bytes. float16 scale, then 32 signed bytes; scale * code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import half_bytes, half_column, reciprocal


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * half_column(blocks, 0)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Halves are rounded away from zero, as C's `roundf` does."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * reciprocal(scale)
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    codes = np.sign(scaled) * (whole + np.floor(2 * (magnitude - whole)))
    return np.concatenate([half_bytes(scale), codes.astype(np.int8).view(np.uint8)], axis=1)


FORMAT = Format(
    name="Q8_0", ggml_type=8, block_elements=32, block_bytes=34, quantized=True, has_minimum=False, elements_per_scale=32,
    lowest_code=-128, highest_code=127, decode=decode, encode=encode,
)  # fmt: skip

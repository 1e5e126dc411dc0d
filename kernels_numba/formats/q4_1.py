"""Q4_1: 32 elements in 20 bytes. float16 scale, float16 minimum, 16 bytes of codes in the order of Q4_0; scale * code + minimum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import half_bytes, half_column, join_nibbles, reciprocal, split_nibbles, truncated_codes


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    codes = split_nibbles(blocks[:, 4:]).astype(np.float32)
    return half_column(blocks, 0) * codes + half_column(blocks, 2)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    minimum = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(15)
    codes = truncated_codes((values - minimum) * reciprocal(scale), 0.5, 15)
    return np.concatenate([half_bytes(scale), half_bytes(minimum), join_nibbles(codes)], axis=1)


FORMAT = Format(
    name="Q4_1", ggml_type=3, block_elements=32, block_bytes=20, quantized=True, has_minimum=True, elements_per_scale=32,
    lowest_code=0, highest_code=15, decode=decode, encode=encode,
)  # fmt: skip

"""Q8_0: 32 elements in 34 bytes. float16 scale, then 32 signed bytes; scale * code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import half_bytes, half_column, reciprocal
from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.nibbles import half_scale, pack_half, pack_words
from kernels_numba.simd.function import Constant, kernel_function


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


@kernel_function
def unpack(simd: Any, data: int, width: Constant) -> Any:
    """Codes are kept as value + 128."""
    return (
        simd.load_i8x64(data), simd.load_i8x64(data + 64), simd.load_i8x64(data + 128), simd.load_i8x64(data + 192),
        simd.load_i8x64(data + 256), simd.load_i8x64(data + 320), simd.load_i8x64(data + 384), simd.load_i8x64(data + 448),
    )  # fmt: skip


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, lane: int) -> None:
    pack_half(simd, block, record + 32 * slot + 2 * lane)
    pack_words(simd, block + 2, record + 64 + 512 * slot, lane, 8, 0x80808080)


PACKED = PackedLayout(groups_per_record=2, header_bytes=64, data_bytes=512, zero_shift=7, unpack=unpack, scale=half_scale, pack=pack)

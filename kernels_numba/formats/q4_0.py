"""Q4_0: 32 elements in 18 bytes. float16 scale, then 16 bytes of codes (elements 0-15 in the low nibbles, 16-31 in the high ones); scale * (code - 8)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import half_bytes, half_column, join_nibbles, reciprocal, signed_scale, split_nibbles, truncated_codes
from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.nibbles import half_scale, pack_half, pack_words, unpack_nibbles
from kernels_numba.simd.function import kernel_function


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    codes = split_nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)
    return half_column(blocks, 0) * codes.astype(np.float32)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    scale = signed_scale(values, 8)
    codes = truncated_codes(values * reciprocal(scale), 8.5, 15)
    return np.concatenate([half_bytes(scale), join_nibbles(codes)], axis=1)


FORMAT = Format(
    name="Q4_0", ggml_type=2, block_elements=32, block_bytes=18, quantized=True, has_minimum=False, elements_per_scale=32,
    lowest_code=-8, highest_code=7, decode=decode, encode=encode,
)  # fmt: skip


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, lane: int) -> None:
    pack_half(simd, block, record + 32 * slot + 2 * lane)
    pack_words(simd, block + 2, record + 64 + 256 * slot, lane, 4, 0)


PACKED = PackedLayout(groups_per_record=2, header_bytes=64, data_bytes=256, zero_shift=3, unpack=unpack_nibbles, scale=half_scale, pack=pack)

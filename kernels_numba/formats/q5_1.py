"""Q5_1: 32 elements in 24 bytes. float16 scale, float16 minimum, 4 bytes of fifth bits, 16 bytes of low nibbles; scale * code + minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import half_bytes, half_column, join_bits, join_nibbles, reciprocal, split_bits, split_nibbles, truncated_codes
from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.nibbles import half_scale, pack_bit_columns, pack_half, pack_words, second_half, unpack_five_bits
from kernels_numba.simd.function import kernel_function


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    codes = split_nibbles(blocks[:, 8:]) | (split_bits(blocks[:, 4:8]) << np.uint8(4))
    return half_column(blocks, 0) * codes.astype(np.float32) + half_column(blocks, 2)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    minimum = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(31)
    codes = truncated_codes((values - minimum) * reciprocal(scale), 0.5, 31)
    return np.concatenate([half_bytes(scale), half_bytes(minimum), join_bits(codes >> np.uint8(4)), join_nibbles(codes)], axis=1)


FORMAT = Format(
    name="Q5_1", ggml_type=7, block_elements=32, block_bytes=24, quantized=True, has_minimum=True, elements_per_scale=32,
    lowest_code=0, highest_code=31, decode=decode, encode=encode,
)  # fmt: skip


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, lane: int) -> None:
    pack_half(simd, block, record + 2 * lane)
    pack_half(simd, block + 2, record + 32 + 2 * lane)
    pack_bit_columns(simd, simd.load_u32(block + 4), record + 64, lane)
    pack_words(simd, block + 8, record + 128, lane, 4, 0)


PACKED = PackedLayout(
    groups_per_record=1, header_bytes=64, data_bytes=320, zero_shift=0, unpack=unpack_five_bits, scale=half_scale, minimum=second_half, pack=pack
)

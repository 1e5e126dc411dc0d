"""Q5_0: 32 elements in 22 bytes. float16 scale, 4 bytes with the fifth bit of each element, 16 bytes of low nibbles; scale * (code - 16)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.nibbles import (
    half_bytes,
    half_column,
    join_bits,
    join_nibbles,
    reciprocal,
    signed_scale,
    split_bits,
    split_nibbles,
    truncated_codes,
)
from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.nibbles import half_scale, pack_bit_columns, pack_half, pack_words, unpack_five_bits
from kernels_numba.simd.function import kernel_function


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    codes = split_nibbles(blocks[:, 6:]) | (split_bits(blocks[:, 2:6]) << np.uint8(4))
    return half_column(blocks, 0) * (codes.view(np.int8) - np.int8(16)).astype(np.float32)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    scale = signed_scale(values, 16)
    codes = truncated_codes(values * reciprocal(scale), 16.5, 31)
    return np.concatenate([half_bytes(scale), join_bits(codes >> np.uint8(4)), join_nibbles(codes)], axis=1)


FORMAT = Format(
    name="Q5_0", ggml_type=6, block_elements=32, block_bytes=22, quantized=True, has_minimum=False, elements_per_scale=32,
    lowest_code=-16, highest_code=15, decode=decode, encode=encode,
)  # fmt: skip


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, lane: int) -> None:
    pack_half(simd, block, record + 32 * slot + 2 * lane)
    data = record + 64 + 320 * slot
    pack_bit_columns(simd, simd.load_u32(block + 2), data, lane)
    pack_words(simd, block + 6, data + 64, lane, 4, 0)


PACKED = PackedLayout(groups_per_record=2, header_bytes=64, data_bytes=320, zero_shift=4, unpack=unpack_five_bits, scale=half_scale, pack=pack)

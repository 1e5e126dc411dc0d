"""Q4_K: 256 elements in 144 bytes, in eight sub-blocks of 32. The head of `k_scales` (16 bytes), then 128 bytes of codes: of every 32 bytes the low
nibbles are one sub-block and the high nibbles the next; scale * code - minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.k_scales import encode_sub_blocks, sub_block_scales
from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.k_blocks import k_minimum, k_scale, pack_k_header, pack_k_nibbles
from kernels_numba.layouts.nibbles import unpack_nibbles
from kernels_numba.simd.function import kernel_function


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    scale, minimum = sub_block_scales(blocks)
    packed = blocks[:, 16:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([packed & np.uint8(0x0F), packed >> np.uint8(4)], axis=2).reshape(-1, 8, 32)
    return (scale * codes.astype(np.float32) - minimum).reshape(-1, 256)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    head, codes = encode_sub_blocks(values, highest_code=15)
    packed = codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    return np.concatenate([head, packed.reshape(-1, 128)], axis=1)


FORMAT = Format(
    name="Q4_K", ggml_type=12, block_elements=256, block_bytes=144, quantized=True, has_minimum=True, elements_per_scale=32,
    lowest_code=0, highest_code=15, decode=decode, encode=encode,
)  # fmt: skip


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, lane: int) -> None:
    pack_k_header(simd, block, record, lane)
    for group in range(8):
        pack_k_nibbles(simd, block + 16, record + 320 + 256 * group, group, lane)


PACKED = PackedLayout(
    groups_per_record=8, header_bytes=320, data_bytes=256, zero_shift=0, unpack=unpack_nibbles, scale=k_scale, minimum=k_minimum, pack=pack
)

"""Q5_K: 256 elements in 176 bytes, in eight sub-blocks of 32. The head of `k_scales` (16 bytes), 32 bytes of fifth bits (bit s of byte e belongs to
element e of sub-block s), then 128 bytes of low nibbles in the order of Q4_K; scale * code - minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.formats.k_scales import encode_sub_blocks, sub_block_scales
from kernels_numba.layouts import PackedLayout
from kernels_numba.layouts.k_blocks import k_minimum, k_scale, pack_k_header, pack_k_nibbles
from kernels_numba.layouts.nibbles import unpack_five_bits
from kernels_numba.simd.function import kernel_function

_BIT_OF_SUB_BLOCK = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    scale, minimum = sub_block_scales(blocks)
    packed = blocks[:, 48:].reshape(-1, 4, 1, 32)
    low = np.concatenate([packed & np.uint8(0x0F), packed >> np.uint8(4)], axis=2).reshape(-1, 8, 32)
    high = (blocks[:, 16:48].reshape(-1, 1, 32) >> _BIT_OF_SUB_BLOCK) & np.uint8(1)
    codes = low | (high << np.uint8(4))
    return (scale * codes.astype(np.float32) - minimum).reshape(-1, 256)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    head, codes = encode_sub_blocks(values, highest_code=31)
    high = np.bitwise_or.reduce((codes >> np.uint8(4)) << _BIT_OF_SUB_BLOCK, axis=1)
    low = codes & np.uint8(0x0F)
    packed = low[:, 0::2] | (low[:, 1::2] << np.uint8(4))
    return np.concatenate([head, high, packed.reshape(-1, 128)], axis=1)


FORMAT = Format(
    name="Q5_K", ggml_type=13, block_elements=256, block_bytes=176, quantized=True, has_minimum=True, elements_per_scale=32,
    lowest_code=0, highest_code=31, decode=decode, encode=encode,
)  # fmt: skip


@kernel_function
def pack(simd: Any, block: int, record: int, slot: int, lane: int) -> None:
    pack_k_header(simd, block, record, lane)
    for group in range(8):
        data = record + 320 + 320 * group
        bits = 0
        for vector in range(8):
            bits |= ((simd.load_u32(block + 16 + 4 * vector) >> group) & 0x01010101) << vector
        simd.store_i32(data + 4 * lane, bits)
        pack_k_nibbles(simd, block + 48, data + 64, group, lane)


PACKED = PackedLayout(
    groups_per_record=8, header_bytes=320, data_bytes=320, zero_shift=0, unpack=unpack_five_bits, scale=k_scale, minimum=k_minimum, pack=pack
)

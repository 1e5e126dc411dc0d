"""BF16: the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.layouts import FloatLayout
from kernels_numba.simd.function import kernel_function


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round to nearest even; a NaN stays a (quiet) NaN, as in `ggml_compute_fp32_to_bf16`."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    rounded = (bits.astype(np.uint64) + np.uint64(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint64(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(64)
    return np.where(is_nan, quiet, rounded).astype(np.uint16).view(np.uint8)


FORMAT = Format(
    name="BF16", ggml_type=30, block_elements=1, block_bytes=2, quantized=False, has_minimum=False, elements_per_scale=1,
    lowest_code=0, highest_code=0, decode=decode, encode=encode,
)  # fmt: skip


@kernel_function
def load(simd: Any, address: int) -> Any:
    return simd.load_bf16x16(address)


PACKED = FloatLayout(element_bytes=2, load=load)

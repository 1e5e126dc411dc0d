"""F32: float32 as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.formats import Format
from kernels_numba.layouts import FloatLayout
from kernels_numba.simd.function import kernel_function


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks).view(np.float32)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8)


FORMAT = Format(
    name="F32", ggml_type=0, block_elements=1, block_bytes=4, quantized=False, has_minimum=False, elements_per_scale=1,
    lowest_code=0, highest_code=0, decode=decode, encode=encode,
)  # fmt: skip


@kernel_function
def load(simd: Any, address: int) -> Any:
    return simd.load_f32x16(address)


PACKED = FloatLayout(element_bytes=4, load=load)

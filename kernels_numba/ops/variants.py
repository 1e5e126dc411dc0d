"""Members of the compile-time values, by name. Filled by the layouts (formats) and by cache types."""

from __future__ import annotations

from kernels_numba.ops.activation import GELU_ERF as gelu_erf
from kernels_numba.ops.activation import GELU_TANH as gelu_tanh
from kernels_numba.ops.activation import RELU_SQUARED as relu_squared
from kernels_numba.ops.activation import SILU as silu
from kernels_numba.ops.cache_types import F16 as f16
from kernels_numba.ops.cache_types import F32 as f32
from kernels_numba.ops.rope import HALVES as halves
from kernels_numba.ops.rope import NEIGHBOURS as neighbours

__all__ = ["f16", "f32", "gelu_erf", "gelu_tanh", "halves", "neighbours", "relu_squared", "silu"]

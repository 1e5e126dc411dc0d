"""Compile-time values that are no formats, by name: the module of kernels_numba that defines one, and its name there. Imports nothing, because whoever
looks for a compiled kernel reads this table too."""

from __future__ import annotations

VARIANTS: dict[str, tuple[str, str]] = {
    "f16": ("ops.caches", "F16"),
    "f32": ("ops.caches", "F32"),
    "gelu_erf": ("ops.activation", "GELU_ERF"),
    "gelu_tanh": ("ops.activation", "GELU_TANH"),
    "halves": ("ops.rope", "HALVES"),
    "neighbours": ("ops.rope", "NEIGHBOURS"),
    "q16_0": ("ops.caches", "Q16_0"),
    "q8_0": ("ops.caches", "Q8_0"),
    "q8_0_planes": ("layouts.planes", "Q8_0_PLANES"),
    "q8_0_upper": ("layouts.planes", "Q8_0_UPPER"),
    "relu_squared": ("ops.activation", "RELU_SQUARED"),
    "silu": ("ops.activation", "SILU"),
}

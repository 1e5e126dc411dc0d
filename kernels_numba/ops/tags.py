"""The compile-time values that kernels are specialized by, by name: formats ("Q4_1") and cache types ("f16"). Imported only where kernels compile."""

from __future__ import annotations

import importlib

from kernels_numba.executor.compile import CompileTimeValue
from kernels_numba.simd.function import KernelFunction, kernel_function

_known: dict[str, CompileTimeValue] = {}


def resolve_tag(name: str) -> CompileTimeValue:
    """The tag of that name: the members of `layouts/NAME.py`, `ops/cache_types.py`, ... as compile-time values. One object a name."""
    if name not in _known:
        _known[name] = _make(name)
    return _known[name]


def _make(name: str) -> CompileTimeValue:
    from kernels_numba.ops import variants

    return CompileTimeValue(name, getattr(variants, name))


__all__ = ["KernelFunction", "importlib", "kernel_function", "resolve_tag"]

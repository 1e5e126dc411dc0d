"""Kernel functions: plain Python functions that the kernel compiler turns into machine code, without importing Numba before that.

A kernel function's first parameter is `simd`, the vocabulary of an instruction set (see `vocabulary`); a function that depends on a quantization format
takes `format` as well. Both are compile-time values: they select code and cost nothing. Inside, integers are int64, addresses are int64, floats are
float32 (`np.float32(...)` constants), and vectors are values like any other. There are no exceptions, no allocation and no bounds checks: whoever
writes the operands checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Constant = int
"""Annotates an integer parameter of a kernel function whose value must be known when compiling (a tile's width)."""


class KernelFunction:
    """A function that other kernel functions may call; always inlined. It runs as compiled code alone: its vocabulary exists for the compiler."""

    __slots__ = ("python",)

    def __init__(self, python: Callable[..., Any]) -> None:
        self.python = python

    @property
    def name(self) -> str:
        return self.python.__name__

    def __call__(self, *arguments: Any) -> Any:
        """For type checkers, which see one kernel function call another; always raises TypeError."""
        raise TypeError(f"the kernel function {self.name} cannot be called from Python; kernels are loaded with KernelStore.function")

    def __repr__(self) -> str:
        return f"<kernel function {self.python.__module__}.{self.name}>"


def kernel_function(python: Callable[..., Any]) -> KernelFunction:
    """Marks a plain function as callable from kernels."""
    return KernelFunction(python)

"""Kernels: SIMD vocabulary, quantized formats, operations, and the executor that runs them. Knows bytes and vectors, never GGUF or architectures."""

ARITHMETIC_VERSION = 1
"""Version of `docs/arithmetic.md`: raised whenever a kernel may give other bits than before. Caches, sessions and certificates are bound to it."""

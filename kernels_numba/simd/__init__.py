"""SIMD values and operations for kernels, and the instruction sets that they compile to.

`function` and `levels` are free of Numba; everything else here is needed only where a kernel is compiled.
"""

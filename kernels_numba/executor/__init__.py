"""Compiling, storing and running kernels: `compile` (Numba as front end to LLVM), `store` (objects, loaded without Numba), `tape`, `workers`, `run`."""

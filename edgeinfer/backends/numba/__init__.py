"""The numba backend: our own kernels. `plan` decides what lies where, `pack` fills the weights, `emit` writes the tape, `backend` runs steps.

Despite its name nothing here imports Numba: kernels come from the store of `kernels_numba.executor`, which compiles only those that are missing.
"""

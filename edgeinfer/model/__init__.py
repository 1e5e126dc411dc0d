"""The mathematics of models as data: architectures, sizes, tensors, the program of a forward pass and its NumPy reference. It never imports Numba."""

from __future__ import annotations

from edgeinfer.model.build import build_program
from edgeinfer.model.program import OPERATIONS, CacheStore, Operation, Program, Value, Weight
from edgeinfer.model.rewrite import fuse

__all__ = ["OPERATIONS", "CacheStore", "Operation", "Program", "Value", "Weight", "build_program", "fuse"]

"""Kernels of tests: compiled for a level and loaded, without the store (which knows modules of kernels_numba alone); the levels that this machine runs."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from edgeinfer.core.host import instruction_sets
from kernels_numba.simd.function import KernelFunction
from kernels_numba.simd.levels import Level, level_by_name, usable_levels

_alive: list[object] = []  # engines own the code whose addresses are handed out


def runnable_levels() -> list[Level]:
    """The levels that this machine runs, best first."""
    return usable_levels(platform.machine(), frozenset(instruction_sets()))


def lowest_level() -> Level:
    """The level that every machine of this architecture runs."""
    return level_by_name({"x86_64": "x86_portable", "aarch64": "arm_neon"}[platform.machine()])


def compile_kernels(level: Level, functions: Sequence[KernelFunction]) -> list[int]:
    """The addresses of kernels with four integer arguments."""
    from kernels_numba.executor.compile import front_end

    return load_objects({f"test_{function.name}": front_end(level).compile(f"test_{function.name}", function, (), 4) for function in functions})


def load_objects(objects: dict[str, bytes]) -> list[int]:
    """The addresses of the symbols that object files define, one each."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine(jit=True))
    for code in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _alive.append(engine)
    return [engine.get_function_address(symbol) for symbol in objects]

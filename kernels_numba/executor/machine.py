"""LLVM's target machine of an instruction-set level, and the one pipeline that optimizes for it. Called by `compile`; Numba has no part in it."""

from __future__ import annotations

import llvmlite.binding as llvm

from kernels_numba.simd.levels import Level

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def target_machine(level: Level) -> llvm.TargetMachine:
    """The level's LLVM target machine, position independent."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(_TRIPLES[level.architecture])
    return target.create_target_machine(cpu=level.cpu, features=level.llvm_features, opt=3, reloc="pic", codemodel="default")


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """One O3 pipeline, without vectorizers: kernels say themselves what is a vector."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)

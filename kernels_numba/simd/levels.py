"""Instruction-set levels: what an object file of a kernel is compiled for, and which levels a machine can run. Free of Numba and llvmlite.

A level names a vocabulary (`targets/TARGET.py`) and a target machine of LLVM. Objects of a level run on every CPU that has the level's features, so the
level, not the CPU's name, is the key of the kernel store. `EDGEINFER_ISA` (read by the engine, not here) forces one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """`features` must all be among the machine's (names as in /proc/cpuinfo on x86, HWCAP names on arm64)."""

    name: str
    architecture: str  # "x86_64" | "aarch64"
    target: str  # module in kernels_numba.simd.targets
    cpu: str  # LLVM's name
    llvm_features: str
    features: frozenset[str]


def _level(name: str, architecture: str, target: str, cpu: str, llvm_features: str, features: str) -> Level:
    return Level(name, architecture, target, cpu, llvm_features, frozenset(features.split()))


LEVELS: tuple[Level, ...] = (
    # best first within an architecture; fast-dpwssd keeps LLVM from taking a dot product of pairs apart, which halves the instructions of attention
    # Sapphire Rapids and newer; Linux has to permit the registers of matrices too (`edgeinfer.core.host`)
    _level(
        "x86_amx", "x86_64", "x86_amx", "cascadelake", "-prefer-256-bit,+gfni,+avx512vbmi,+fast-dpwssd,+amx-tile,+amx-int8",
        "amx_tile amx_int8 avx512f avx512cd avx512bw avx512vl avx512dq avx512_vnni gfni avx512vbmi avx2 fma f16c bmi1 bmi2 abm movbe",
    ),
    # Ice Lake, Zen 4 and newer; what LLVM may use beyond Cascade Lake is named, and asked of the machine
    _level(
        "x86_avx512vnni", "x86_64", "x86_avx512vnni", "cascadelake", "-prefer-256-bit,+gfni,+avx512vbmi,+fast-dpwssd",
        "avx512f avx512cd avx512bw avx512vl avx512dq avx512_vnni gfni avx512vbmi avx2 fma f16c bmi1 bmi2 abm movbe",
    ),
    # the first CPU with VNNI
    _level(
        "x86_cascadelake", "x86_64", "x86_avx512vnni", "cascadelake", "-prefer-256-bit,+fast-dpwssd",
        "avx512f avx512cd avx512bw avx512vl avx512dq avx512_vnni avx2 fma f16c bmi1 bmi2 abm movbe",
    ),
    _level("x86_avxvnni", "x86_64", "x86_avxvnni", "haswell", "+avxvnni,+fast-dpwssd", "avx_vnni avx2 fma f16c bmi1 bmi2 abm movbe"),
    _level("x86_avx2", "x86_64", "x86_avx2", "haswell", "", "avx2 fma f16c bmi1 bmi2 abm movbe"),
    _level("x86_portable", "x86_64", "x86_portable", "x86-64", "", ""),
    _level("arm_i8mm", "aarch64", "arm_i8mm", "cortex-a76", "+i8mm", "asimd asimddp i8mm"),
    _level("arm_dotprod", "aarch64", "arm_dotprod", "cortex-a76", "", "asimd asimddp"),
    _level("arm_neon", "aarch64", "arm_neon", "cortex-a72", "", "asimd"),
)


def level_by_name(name: str) -> Level:
    """Raises KeyError, naming the known ones, for an unknown level."""
    for level in LEVELS:
        if level.name == name:
            return level
    raise KeyError(f"no instruction-set level {name!r}; known: {', '.join(level.name for level in LEVELS)}")


def usable_levels(architecture: str, features: frozenset[str]) -> list[Level]:
    """The levels that a machine with these features can run, best first."""
    return [level for level in LEVELS if level.architecture == architecture and level.features <= features]

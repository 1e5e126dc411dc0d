"""Which levels a machine can run, best first; and, said once for all tests of kernels, which ones this machine cannot."""

from __future__ import annotations

import platform

import pytest

from edgeinfer.core.host import instruction_sets
from kernels_numba.simd.levels import LEVELS, level_by_name, usable_levels
from tests.support.kernels import lowest_level, runnable_levels

HASWELL = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"})
CASCADE_LAKE = HASWELL | {"avx512f", "avx512cd", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}


@pytest.mark.parametrize(
    ("architecture", "features", "names"),
    [
        ("x86_64", frozenset(), ["x86_portable"]),
        ("x86_64", HASWELL, ["x86_avx2", "x86_portable"]),
        ("x86_64", HASWELL - {"f16c"}, ["x86_portable"]),
        ("x86_64", HASWELL | {"avx_vnni"}, ["x86_avxvnni", "x86_avx2", "x86_portable"]),
        ("x86_64", CASCADE_LAKE, ["x86_cascadelake", "x86_avx2", "x86_portable"]),
        ("x86_64", CASCADE_LAKE | {"gfni", "avx512vbmi"}, ["x86_avx512vnni", "x86_cascadelake", "x86_avx2", "x86_portable"]),
        (
            "x86_64", CASCADE_LAKE | {"gfni", "avx512vbmi", "amx_tile", "amx_int8"},
            ["x86_amx", "x86_avx512vnni", "x86_cascadelake", "x86_avx2", "x86_portable"],
        ),
        ("x86_64", HASWELL | {"amx_tile", "amx_int8"}, ["x86_avx2", "x86_portable"]),
        ("aarch64", frozenset({"asimd"}), ["arm_neon"]),
        ("aarch64", frozenset({"asimd", "asimddp", "i8mm", "sve"}), ["arm_i8mm", "arm_dotprod", "arm_neon"]),
        ("riscv64", frozenset(), []),
    ],
)
def test_a_machine_runs_the_levels_whose_instructions_it_has(architecture: str, features: frozenset[str], names: list[str]) -> None:
    assert [level.name for level in usable_levels(architecture, features)] == names


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match="x86_avx9.*x86_avx2"):
        level_by_name("x86_avx9")


def test_every_level_of_this_architecture_runs_here() -> None:
    """Not a defect where it is skipped: kernels of these levels are compiled and read as assembly all the same, but not run."""
    runnable = [level.name for level in runnable_levels()]
    assert lowest_level().name in runnable
    present = instruction_sets()
    lacking = {level.name: sorted(level.features - present) for level in LEVELS if level.architecture == platform.machine() and level.name not in runnable}
    if lacking:
        pytest.skip("kernels were not run for " + "; ".join(f"{name}: this machine lacks {', '.join(features)}" for name, features in lacking.items()))

"""Fills `kernels_numba/pack` with ready-made kernels, which then travel in the wheel: `python -m tools.kernel_pack MODEL ... [--level NAME ...]`.

The pack has what these models take, for the given levels (by default those that most x86-64 and arm64 machines have). What it lacks is compiled where it is
needed, as ever.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from edgeinfer.backends.numba.ahead import kernels_of, levels_named, make_kernels
from edgeinfer.cards import load_cards, resolve_model
from edgeinfer.core.home import model_file
from kernels_numba.executor.store import BUILT_IN_PACK

COMMON_LEVELS = ("x86_amx", "x86_avx512vnni", "x86_avx2", "arm_i8mm", "arm_dotprod", "arm_neon")


def make_pack(models: list[Path], levels: list[str], folder: Path) -> int:
    """Writes the pack anew; the bytes that it takes."""
    shutil.rmtree(folder, ignore_errors=True)
    needed = list(dict.fromkeys(kernel for model in models for kernel in kernels_of(model, (None, "f16", "f32"))))
    total = 0
    for level in levels_named(levels):
        made = make_kernels(needed, level, folder)
        total += made.size
        print(f"{made.level}: {made.kernels} kernels, {made.size / 1e3:,.0f} kB")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", help="paths or names of models; default: all that have been pulled")
    parser.add_argument("--level", action="append", help="an instruction-set level; may be given several times")
    arguments = parser.parse_args()
    models = [resolve_model(model) for model in arguments.models] or [model_file(name) for name in load_cards() if model_file(name).is_file()]
    if not models:
        parser.error("no model was pulled; name models, or pull one with: edgeinfer pull smollm2-135m")
    total = make_pack(models, arguments.level or list(COMMON_LEVELS), BUILT_IN_PACK)
    print(f"{total / 1e6:.1f} MB in {BUILT_IN_PACK}; build the wheel now")


if __name__ == "__main__":
    main()

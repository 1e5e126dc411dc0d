"""Kernels compiled for levels that this machine cannot run."""

from __future__ import annotations

import platform
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from kernels_numba.executor.store import KernelStore
from kernels_numba.executor.workers import RUN_KERNELS
from kernels_numba.simd.levels import LEVELS
from tests.support.kernels import lowest_level


def test_objects_for_another_architecture_are_kept_and_found_again(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    level = next(level for level in LEVELS if level.architecture != platform.machine())
    store = KernelStore(level, tmp_path)
    assert store.compile_ahead(RUN_KERNELS) == [kernel.symbol for kernel in RUN_KERNELS]
    assert KernelStore(level, tmp_path).compile_ahead(RUN_KERNELS) == []
    assert store.loaded == []
    [run] = tmp_path.rglob("*executor_run_run.object")
    assert level.name in run.parts
    code = run.read_bytes()
    assert llvm.ObjectFileRef.from_data(code[code.index(b"\x7fELF") :]) is not None
    assert code[code.index(b"\x7fELF") + 18] == {"aarch64": 183, "x86_64": 62}[level.architecture]  # e_machine


def test_a_store_in_memory_compiles_nothing_ahead() -> None:
    with pytest.raises(ValueError, match="need a folder"):
        KernelStore(lowest_level(), None).compile_ahead(RUN_KERNELS)

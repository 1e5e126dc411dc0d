"""Kernels compiled for levels that this machine cannot run."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.workers import RUN_KERNELS
from kernels_numba.simd.levels import LEVELS
from tests.support.kernels import lowest_level

OTHER = next(level for level in LEVELS if level.architecture != platform.machine())


def test_objects_for_another_architecture_are_kept_and_found_again(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    store = KernelStore(OTHER, tmp_path)
    made = store.compile_ahead([*RUN_KERNELS, RUN_KERNELS[0]])
    assert made.kernels == 3 and sorted(made.compiled) == sorted(kernel.symbol for kernel in RUN_KERNELS)
    files = list(tmp_path.rglob("*.kernel"))
    assert made.size == sum(path.stat().st_size for path in files) and len(files) == 3
    again = KernelStore(OTHER, tmp_path).compile_ahead(RUN_KERNELS)
    assert again.compiled == () and again.size == made.size
    assert store.loaded == [] and {path.parent.name for path in files} == {OTHER.name}


def test_children_compile_and_progress_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    seen: list[tuple[int, int]] = []
    store = KernelStore(lowest_level(), tmp_path, compilers=2)
    kernels = [*RUN_KERNELS, KernelName("ops.elementwise", "add")]
    made = store.compile_ahead(kernels, lambda done, total: seen.append((done, total)))
    assert seen == [(done, 4) for done in range(1, 5)]
    assert len(made.compiled) == 4 and sorted(store.compiled) == sorted(made.compiled)
    assert not list(tmp_path.rglob("*.part"))


def test_a_wrong_kernel_among_many_is_named_when_children_compile(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    kernels = [*RUN_KERNELS, KernelName("ops.elementwise", "no_such_kernel")]
    with pytest.raises(AttributeError, match="no_such_kernel"):
        KernelStore(lowest_level(), tmp_path, compilers=2).load(kernels)


def test_a_folder_that_takes_nothing_is_an_error_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):  # one kernel: no child compiles it
        KernelStore(lowest_level(), tmp_path).compile_ahead(RUN_KERNELS[:1])


def test_a_store_in_memory_compiles_nothing_ahead() -> None:
    with pytest.raises(ValueError, match="need a folder"):
        KernelStore(lowest_level(), None).compile_ahead(RUN_KERNELS)


def test_compiling_is_told_only_where_something_is_missing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    told: list[int] = []

    @contextmanager
    def compiling(count: int) -> Iterator[None]:
        told.append(count)
        assert not list(tmp_path.rglob("*.kernel"))
        yield
        assert len(list(tmp_path.rglob("*.kernel"))) == count

    for _ in range(2):
        store = KernelStore(lowest_level(), tmp_path)
        store.load(RUN_KERNELS[:1], compiling)
        store.load(RUN_KERNELS[:1], compiling)
    assert told == [1]

"""The kernel store: what it keeps, what it refuses to trust, and that no trouble with a folder keeps kernels from running."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from kernels_numba.executor import store as store_module
from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.executor.step import STEP_WORDS
from kernels_numba.executor.store import KernelName, KernelStore, source_digest
from tests.support.kernels import lowest_level, runnable_levels

ROOT = Path(__file__).resolve().parents[2]
ADD = KernelName("ops.elementwise", "add")
SELECT = KernelName("ops.elementwise", "select_outputs")


def adds(store: KernelStore) -> None:
    """Runs the kernel `add` on one row of 16."""
    kernel = store.function(ADD)
    x, y, output = (aligned_zeros((1, 16), np.float32) for _ in range(3))
    x[:], y[:] = np.arange(16), 0.5
    step = aligned_zeros(len(STEP_WORDS), np.int64)
    step[0] = 1
    operands = np.array([address_of(x), 64, address_of(y), 64, 16, 0, address_of(output), 64], np.int64)
    kernel(address_of(operands), address_of(step), 0, 1)
    np.testing.assert_array_equal(output, x + y)


def quiet(directory: Path | None) -> KernelStore:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = KernelStore(lowest_level(), directory)
        adds(store)
    return store


@pytest.fixture
def folder(tmp_path: Path, filled: Path) -> Path:
    """A folder of its own with the kernel in it."""
    shutil.copytree(filled, tmp_path / "kernels")
    return tmp_path / "kernels"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "kernels"
    assert quiet(directory).compiled == [ADD.symbol]
    return directory


def objects(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.object"))


def test_a_second_store_compiles_nothing(folder: Path) -> None:
    assert quiet(folder).compiled == []


def test_levels_do_not_share_objects(folder: Path) -> None:
    """A cache that machines of different kinds share (a network home) holds an object for each of their levels."""
    for level in runnable_levels():
        store = KernelStore(level, folder)
        adds(store)
        assert bool(store.compiled) == (level != lowest_level())
        assert store.directory is not None and store.directory.name == level.name
    assert len(objects(folder)) == len(runnable_levels())


def test_only_we_can_write_to_the_folders_and_the_key_has_digest_and_level(folder: Path) -> None:
    [path] = objects(folder)
    assert path.relative_to(folder).parts == (source_digest(), lowest_level().name, f"{ADD.symbol}.object")
    made = folder.parent / "made" / "by us"
    before = os.umask(0o002)
    try:
        quiet(made)
    finally:
        os.umask(before)
    for path in (made, *(path for path in made.rglob("*") if path.is_dir())):
        assert path.stat().st_mode & 0o777 == 0o755
    assert not list(made.rglob("*.part"))


@pytest.mark.parametrize("keep", [0, 5, 0.5, -1], ids=["empty", "five bytes", "half", "all but one byte"])
def test_a_truncated_object_is_made_again_with_a_warning(folder: Path, keep: float) -> None:
    [path] = objects(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    store = KernelStore(lowest_level(), folder)
    with pytest.warns(UserWarning, match="damaged and is made again"):
        adds(store)
    assert store.compiled == [ADD.symbol]
    assert path.read_bytes()[:32] == whole[:32]
    assert quiet(folder).compiled == []


@pytest.mark.parametrize("at", [0, 25, 60, -1])
def test_a_changed_byte_is_noticed(folder: Path, at: int) -> None:
    [path] = objects(folder)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="damaged"):
        adds(KernelStore(lowest_level(), folder))


def test_junk_and_a_folder_in_place_of_an_object(folder: Path) -> None:
    [path] = objects(folder)
    path.write_bytes(os.urandom(5000))
    with pytest.warns(UserWarning, match="damaged"):
        adds(KernelStore(lowest_level(), folder))
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="could not be kept"):
        adds(KernelStore(lowest_level(), folder))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_folder_that_others_can_write_to_is_not_trusted(folder: Path, mode: int, depth: int) -> None:
    """Native code that somebody else may have put there must not run."""
    [path] = objects(folder)
    [folder, path.parents[1], path.parents[0]][depth].chmod(mode)
    with pytest.warns(UserWarning, match="nobody else can write to.*EDGEINFER_CACHE"):
        store = KernelStore(lowest_level(), folder)
    adds(store)
    assert store.directory is None and store.compiled == [ADD.symbol]


def test_a_folder_of_somebody_else_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module.os, "getuid", lambda: 12345)
    if folder.stat().st_uid == 0:
        os.chown(folder, 4321, -1)
    with pytest.warns(UserWarning, match="a folder of yours"):
        assert KernelStore(lowest_level(), folder).directory is None


def test_a_folder_that_root_filled_is_used_by_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root compiles while an image is built; the service that runs it may read the folder and write nowhere."""
    if folder.stat().st_uid != 0:
        pytest.skip("only root can fill a folder as root")
    monkeypatch.setattr(store_module.os, "getuid", lambda: 12345)
    assert quiet(folder).compiled == []
    assert all(path.stat().st_mode & 0o005 == 0o005 for path in [folder, *folder.rglob("*")] if path.is_dir())
    assert all(path.stat().st_mode & 0o004 for path in objects(folder))


def test_without_a_folder_kernels_live_in_memory() -> None:
    store = quiet(None)
    assert store.directory is None and store.compiled == [ADD.symbol]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match=r"cannot be used for compiled kernels \(Not a directory\)"):
        store = KernelStore(lowest_level(), tmp_path / "file" / "kernels")
    adds(store)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_is_not_fatal_and_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", fail)
    store = KernelStore(lowest_level(), tmp_path / "kernels")
    with pytest.warns(UserWarning) as seen:
        adds(store)
        store.load([SELECT])
    assert len(seen) == 1 and os.strerror(number) in str(seen[0].message)
    assert [path for path in (tmp_path / "kernels").rglob("*") if path.is_file()] == []


def test_kernels_may_come_from_any_iterable(folder: Path) -> None:
    store = quiet(folder)
    addresses = store.load(kernel for kernel in (ADD, ADD))
    assert list(addresses) == [ADD] and addresses[ADD]


def test_the_digest_changes_with_a_source_and_with_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_digest()
    assert before == source_digest() and len(before) == 24
    copy = tmp_path / "kernels_numba"
    shutil.copytree(ROOT / "kernels_numba", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(store_module, "__file__", str(copy / "executor" / "store.py"))
    assert source_digest() == before
    changed = copy / "simd" / "targets" / "lanes.py"
    changed.write_text(changed.read_text() + "# another callee\n")
    after = source_digest()
    assert after != before
    changed.rename(changed.with_name("lanes2.py"))
    assert source_digest() not in (before, after)
    monkeypatch.undo()
    import importlib.metadata

    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.0")
    assert source_digest() != before


LOAD = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("error")
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.simd.levels import level_by_name
store = KernelStore(level_by_name({level!r}), Path({directory!r}))
from tests.executor.test_store import ADD, SELECT, adds
store.load([ADD, SELECT])
adds(store)
print(len(store.compiled), sorted({{name.split(".")[0] for name in sys.modules}} & {{"numba", "llvmlite"}}))
"""


def start(directory: Path) -> subprocess.Popen[str]:
    code = LOAD.format(level=lowest_level().name, directory=str(directory))
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_numba_is_not_imported_when_every_kernel_is_there_and_processes_may_compile_at_once(tmp_path: Path) -> None:
    """Eight processes into one empty cache: all end well (numba#4807), and the ninth only loads."""
    crowd = [start(tmp_path / "kernels") for _ in range(8)]
    for process in crowd:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        assert int(out.split()[0]) in (0, 1, 2)
    assert len(objects(tmp_path / "kernels")) == 2 and not list((tmp_path / "kernels").rglob("*.part"))
    last = start(tmp_path / "kernels")
    out, error = last.communicate(timeout=60)
    assert (last.returncode, out.strip()) == (0, "0 ['llvmlite']"), error

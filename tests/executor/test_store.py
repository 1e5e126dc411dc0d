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
from kernels_numba.executor import trust
from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.executor.sources import Sources, compiler_versions, sources
from kernels_numba.executor.step import STEP_WORDS
from kernels_numba.executor.store import KernelName, KernelStore
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
    return sorted(directory.rglob("*.kernel"))


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
    digest = sources().digest(ADD, lowest_level())
    assert len(digest) == 16
    assert path.relative_to(folder).parts == (lowest_level().name, f"{ADD.symbol}-{digest}.kernel")
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


@pytest.mark.parametrize("at", [0, 25, 60, 150, -1])
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
@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_that_others_can_write_to_is_not_trusted(folder: Path, mode: int, depth: int) -> None:
    """Native code that somebody else may have put there must not run."""
    [path] = objects(folder)
    [folder, path.parent][depth].chmod(mode)
    with pytest.warns(UserWarning, match="nobody else can write to.*EDGEINFER_CACHE"):
        store = KernelStore(lowest_level(), folder)
    adds(store)
    assert store.directory is None and store.compiled == [ADD.symbol]


def test_a_folder_of_somebody_else_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust.os, "getuid", lambda: 12345)
    if folder.stat().st_uid == 0:
        os.chown(folder, 4321, -1)
    with pytest.warns(UserWarning, match="a folder of yours"):
        assert KernelStore(lowest_level(), folder).directory is None


def test_a_folder_that_root_filled_is_used_by_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root compiles while an image is built; the service that runs it may read the folder and write nowhere."""
    if folder.stat().st_uid != 0:
        pytest.skip("only root can fill a folder as root")
    monkeypatch.setattr(trust.os, "getuid", lambda: 12345)
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


def test_a_file_that_others_can_write_to_is_not_trusted(folder: Path) -> None:
    [path] = objects(folder)
    path.chmod(0o666)
    store = KernelStore(lowest_level(), folder)
    with pytest.warns(UserWarning, match=r"is not used: it must be a file of yours that nobody else can write to"):
        adds(store)
    assert store.compiled == [ADD.symbol]
    assert path.stat().st_mode & 0o022 == 0  # replaced by ours


def test_an_object_under_a_wrong_name_is_not_used(folder: Path) -> None:
    """A whole object of another kernel must not run in place of the one that the name says."""
    [path] = objects(folder)
    path.rename(path.with_name(f"{SELECT.symbol}-{sources().digest(SELECT, lowest_level())}.kernel"))
    store = KernelStore(lowest_level(), folder)
    with pytest.warns(UserWarning, match="damaged and is made again"):
        store.load([SELECT])
    assert store.compiled == [SELECT.symbol]


def test_objects_of_another_compiler_are_made_again_but_taken_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "compiler_versions", lambda: "")
    assert quiet(folder).compiled == []
    monkeypatch.setattr(store_module, "compiler_versions", lambda: "numba 99.0, llvmlite 99.0")
    assert quiet(folder).compiled == [ADD.symbol]


def test_the_versions_of_the_compilers_are_found_without_importing_them() -> None:
    from importlib.metadata import version

    assert compiler_versions() == f"numba {version('numba')}, llvmlite {version('llvmlite')}"


def test_objects_of_sources_that_are_long_gone_are_removed(folder: Path) -> None:
    [path] = objects(folder)
    recent = path.with_name(f"{ADD.symbol}-{'0' * 16}.kernel")
    stale = path.with_name(f"{ADD.symbol}-{'1' * 16}.kernel")
    other = path.with_name(f"{ADD.symbol}_f16-{'1' * 16}.kernel")
    for copy in (recent, stale, other):
        shutil.copy(path, copy)
    for old in (stale, other):
        os.utime(old, (0, 0))
    KernelStore(lowest_level(), folder).make(ADD)
    assert objects(folder) == sorted([path, recent, other])


# -- packs


def test_a_pack_is_found_without_compiling_and_is_not_written_to(folder: Path, tmp_path: Path) -> None:
    for path in (folder, folder / lowest_level().name):
        path.chmod(0o555)
    own = tmp_path / "own"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = KernelStore(lowest_level(), own, packs=[tmp_path / "no such pack", folder])
        adds(store)
    assert store.compiled == [] and objects(own) == []
    store.load([SELECT])
    assert store.compiled == [SELECT.symbol] and len(objects(own)) == 1 and len(objects(folder)) == 1


def test_a_pack_serves_a_store_in_memory(folder: Path) -> None:
    store = KernelStore(lowest_level(), None, packs=[folder])
    adds(store)
    assert store.compiled == []


def test_a_pack_of_other_sources_or_levels_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = objects(folder)
    path.rename(path.with_name(path.name.replace("-", "-0")))
    store = KernelStore(lowest_level(), None, packs=[folder])
    adds(store)
    assert store.compiled == [ADD.symbol]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_pack_that_others_can_write_to_is_not_used(folder: Path, depth: int) -> None:
    [path] = objects(folder)
    [folder, path.parent, path][depth].chmod(0o777)
    with pytest.warns(UserWarning, match="not used: it must be a (folder|file) of yours"):
        store = KernelStore(lowest_level(), None, packs=[folder])
        adds(store)
    assert store.compiled == [ADD.symbol]


def test_a_pack_inside_the_package_is_trusted_as_far_as_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the umask lets the group write, pip installs modules and packs that the group can write to alike: the one is no safer than the other."""
    [path] = objects(folder)
    monkeypatch.setattr(trust, "PACKAGE", folder.parent)
    for entry in (folder, path.parent, path):
        entry.chmod(0o775)
    folder.parent.chmod(0o755)
    with pytest.warns(UserWarning, match="not used"):
        KernelStore(lowest_level(), None, packs=[folder])
    folder.parent.chmod(0o775)
    store = KernelStore(lowest_level(), None, packs=[folder])
    adds(store)
    assert store.compiled == []


# -- digests


KERNELS = [
    ADD,
    KernelName("executor.run", "run", (), 6),
    KernelName("ops.attention", "attention", ("f16",)),
    KernelName("ops.activation", "activation_quantize", ("silu",)),
    KernelName("ops.linear", "linear", ("Q4_K",)),
    KernelName("ops.pack", "pack", ("Q8_0",)),
    KernelName("ops.pack", "pack_planes", ("q8_0_planes",)),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.symbol)
def test_the_digest_covers_every_module_that_a_compile_imports(kernel: KernelName) -> None:
    """The modules are found by reading; a process that does compile imports no other one of ours."""
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom kernels_numba.executor.compile import front_end\n"
        "from kernels_numba.executor.store import KernelName, KernelStore\nfrom kernels_numba.simd.levels import level_by_name\n"
        f"KernelStore(level_by_name({lowest_level().name!r}), None)._compile(KernelName(*{(kernel.module, kernel.function, kernel.tags, kernel.integers)!r}))\n"
        "print(*[name for name in sys.modules if name.startswith('kernels_numba.')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    # The store itself decides nothing. `ops.tags` knows all drivers and the formats by name; a value that is no format comes from its module alone.
    loader = {
        "executor", "executor.store", "executor.executable", "executor.sources", "executor.trust", "executor.aligned", "simd", "simd.targets", "ops",
        "ops.tags",
    }  # fmt: skip
    imported = {name.removeprefix("kernels_numba.") for name in ran.stdout.split()} - loader
    covered = sources().modules(kernel, lowest_level())
    if not kernel.tags or kernel.tags[0] in ("f16", "silu"):  # not a format: what `ops.tags` imports is not asked for members
        imported -= {"ops.linear", "ops.matrices", "ops.embedding", "layouts", "formats", "ops.variants", "ops.common", "executor.step"}
    assert imported <= covered


def test_the_digest_changes_with_a_callee_and_not_with_a_stranger(tmp_path: Path) -> None:
    copy = tmp_path / "kernels_numba"
    shutil.copytree(ROOT / "kernels_numba", copy, ignore=shutil.ignore_patterns("__pycache__", "pack"))
    level = lowest_level()
    linear, attention, norm = KernelName("ops.linear", "linear", ("Q4_0",)), KERNELS[2], KernelName("ops.norm", "rms_norm_quantize")
    before = [Sources(copy).digest(kernel, level) for kernel in (linear, attention, norm)]
    assert before == [sources().digest(kernel, level) for kernel in (linear, attention, norm)]
    for module, changed in (
        ("ops/linear.py", (True, False, False)),
        ("formats/q4_0.py", (True, False, False)),
        ("formats/q6_k.py", (False, False, False)),
        ("layouts/nibbles.py", (True, False, False)),
        ("ops/cache_types.py", (False, True, False)),
        ("ops/attention.py", (False, True, False)),
        ("ops/quantize.py", (False, False, True)),  # a callee of the norm in another file
        ("simd/targets/lanes.py", (True, True, True)),  # a part of the target's base
        ("simd/targets/x86_avx512vnni.py" if level.architecture == "x86_64" else "simd/targets/arm_i8mm.py", (False, False, False)),  # another level's
        ("simd/levels.py", (True, True, True)),
        ("executor/compile.py", (True, True, True)),
        ("executor/machine.py", (True, True, True)),
        ("executor/workers.py", (False, False, False)),
    ):
        path = copy / module
        text = path.read_text()
        path.write_text(text + "# another\n")
        after = [Sources(copy).digest(kernel, level) for kernel in (linear, attention, norm)]
        assert tuple(one != other for one, other in zip(before, after)) == changed, module
        path.write_text(text)


def test_levels_have_digests_of_their_own_targets() -> None:
    """Two levels may be one target for different CPUs; the store keeps each level's kernels in a folder of its own."""
    digests = {(level.target, sources().digest(ADD, level)) for level in runnable_levels()}
    assert len({digest for _, digest in digests}) == len(digests) == len({target for target, _ in digests})


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
    assert (last.returncode, out.strip()) == (0, "0 []"), error

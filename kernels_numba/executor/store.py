"""The kernel store: compiled kernels by (kernel, instruction-set level, digest of their sources), made by `compile` when missing, loaded by mapping bytes:
neither Numba nor llvmlite is imported for kernels that are there.

A store has one folder of its own, into which it writes, and reads ready-made ones (packs) beside it, which may be read-only. Folders hold native code, so
they are used only if they belong to the user or to root and nobody else can write to them. Each file carries a hash of its content and is replaced
atomically; a damaged one is made again.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_numba.executor.executable import map_code
from kernels_numba.executor.link import Image, link
from kernels_numba.executor.sources import compiler_versions, sources
from kernels_numba.executor.trust import PACKAGE, make_own, not_ours
from kernels_numba.simd.levels import Level

if TYPE_CHECKING:
    from kernels_numba.simd.function import KernelFunction

_MAGIC = b"edgeinfer-kernel-2\n"
_HASH_BYTES = 32
_STALE_AFTER = 30 * 86400.0
"""Seconds after which an object of other sources is removed when its kernel is made again. Checkouts of several versions may share a folder."""

_stores: weakref.WeakSet[KernelStore] = weakref.WeakSet()

Compiling = Callable[[int], contextlib.AbstractContextManager[object]]

BUILT_IN_PACK = PACKAGE / "pack"
"""Kernels that travel in the wheel; `tools/kernel_pack.py` makes them."""


@dataclass(frozen=True, order=True)
class KernelName:
    """A kernel: a function of a module of `kernels_numba`, specialized by compile-time values.

    `module` is relative to kernels_numba ("ops.linear"), `tags` are names of formats ("Q4_1") or cache types ("f16") that `ops.tags` resolves.
    """

    module: str
    function: str
    tags: tuple[str, ...] = ()
    integers: int = 4

    @property
    def symbol(self) -> str:
        return "_".join(["edgeinfer", *self.module.split("."), self.function, *self.tags]).lower()


@dataclass(frozen=True)
class Made:
    """What `compile_ahead` did: the kernels asked for, the symbols of those compiled now, and the bytes that all of them take in the folder."""

    kernels: int
    compiled: tuple[str, ...]
    size: int


class KernelStore:
    """The kernels of one level in this process. Thread-safe. `directory` None: what is compiled is kept in memory alone.

    Missing kernels are compiled by up to `compilers` child processes, which also keeps Numba out of this process (100 MB); where that fails, and with 0,
    they are compiled here.
    `packs` are looked through in their order after the store's own folder; one that does not exist is no error, one that cannot be trusted is reported.
    """

    def __init__(self, level: Level, directory: Path | None, compilers: int = 0, packs: Sequence[Path] = ()) -> None:
        self.level = level
        self.compilers = compilers
        self.directory = directory / level.name if directory is not None else None
        obstacle = make_own(directory, level.name) if directory is not None else None
        if obstacle is not None:
            warnings.warn(
                f"{directory} cannot be used for compiled kernels ({obstacle}); "
                "kernels are compiled again in each process. Choose another folder with EDGEINFER_CACHE.",
                stacklevel=2,
            )
            self.directory = None
        self.packs = tuple(pack / level.name for pack in packs if _trusted_pack(pack, level.name))
        self._places = (*((self.directory,) if self.directory is not None else ()), *self.packs)  # where kernels are looked for, in order
        self.compiled: list[str] = []  # symbols that this process had to compile
        self._keeps = self.directory is not None  # until writing fails once
        self._addresses: dict[KernelName, int] = {}
        self._lock = threading.Lock()
        self._late: threading.Thread | None = None
        self._late_failed = False
        _stores.add(self)

    def load(self, kernels: Iterable[KernelName], compiling: Compiling = lambda count: contextlib.nullcontext()) -> dict[KernelName, int]:
        """The addresses of the kernels, compiling those that are missing, if any are: `with compiling(how many)` around it."""
        wanted = dict.fromkeys(kernels)
        with self._lock:
            missing = [kernel for kernel in wanted if kernel not in self._addresses]
            if missing:
                self._load(missing, compiling)
            return {kernel: self._addresses[kernel] for kernel in wanted}

    def load_or_begin(self, kernels: Iterable[KernelName], compiling: Compiling = lambda count: contextlib.nullcontext()) -> dict[KernelName, int] | None:
        """The addresses of kernels that are there. None while some are not: a thread that this starts compiles them, and the process does not end before it.

        For who can do without: where such a thread fails, it warns, and the answer stays None.
        """
        wanted = list(dict.fromkeys(kernels))
        if (self._late is not None and self._late.is_alive()) or not self._lock.acquire(blocking=False):
            return None  # these are being compiled, or others, and then they will be asked for again
        try:
            missing = [kernel for kernel in wanted if kernel not in self._addresses]
            if all(self._find(kernel, self._places) is not None for kernel in missing):
                if missing:
                    self._load(missing, compiling)
                return {kernel: self._addresses[kernel] for kernel in wanted}
            if self._late_failed:
                return None
            self._late = threading.Thread(target=self._load_late, args=(wanted, compiling), name="edgeinfer-late-kernels", daemon=False)
            self._late.start()
            return None
        finally:
            self._lock.release()

    def _load_late(self, kernels: list[KernelName], compiling: Compiling) -> None:
        try:
            self.load(kernels, compiling)
        except Exception as error:  # too little memory, say; a defect shows where kernels are loaded before the work
            self._late_failed = True
            warnings.warn(f"{len(kernels)} kernels could not be compiled, and are done without: {error!r}", stacklevel=1)

    @property
    def loaded(self) -> list[KernelName]:
        """The kernels whose addresses this process holds."""
        with self._lock:
            return sorted(self._addresses)

    def compile_ahead(self, kernels: Iterable[KernelName], progress: Callable[[int, int], None] | None = None) -> Made:
        """Puts the missing objects of these kernels into the folder without loading them, which works for levels that this machine cannot run.

        `progress` is called with the number of kernels that are there and of those asked for. Raises ValueError for a store in memory alone, OSError when
        the folder does not take an object.
        """
        if self.directory is None:
            raise ValueError("kernels compiled ahead need a folder to be kept in")
        wanted = list(dict.fromkeys(kernels))
        with self._lock:
            missing = [kernel for kernel in wanted if self._find(kernel, (self.directory,)) is None]
            before = len(wanted) - len(missing)
            self._compile_in_children(missing, lambda done: progress(before + done, len(wanted)) if progress is not None else None)
            for kernel in missing:
                if not self._path(kernel).exists():
                    self._write(kernel, self._compile(kernel), must=True)
            size = sum(self._path(kernel).stat().st_size for kernel in wanted)
            return Made(len(wanted), tuple(kernel.symbol for kernel in missing), size)

    def function(self, kernel: KernelName) -> Any:
        """The kernel as a ctypes function of int64 arguments."""
        address = self.load([kernel])[kernel]
        return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * kernel.integers)(address)

    def make(self, kernel: KernelName) -> None:
        """Compiles a kernel into the folder without loading it; its level need not be one that this machine can run."""
        self._write(kernel, self._compile(kernel))

    def _load(self, kernels: list[KernelName], compiling: Compiling) -> None:
        images = {kernel: self._find(kernel, self._places) for kernel in kernels}
        absent = [kernel for kernel, image in images.items() if image is None]
        with compiling(len(absent)) if absent else contextlib.nullcontext():
            self._compile_in_children(absent)
            for kernel in absent:
                image = self._find(kernel, self._places[:1]) if self.directory is not None and self._path(kernel).exists() else None
                if image is None:
                    image = self._compile(kernel)
                    self._write(kernel, image)
                images[kernel] = image
        whole = {kernel: image for kernel, image in images.items() if image is not None}
        for (kernel, image), start in zip(whole.items(), map_code([image.code for image in whole.values()]), strict=True):
            self._addresses[kernel] = start + image.entry

    def _compile_in_children(self, kernels: list[KernelName], progress: Callable[[int], None] = lambda done: None) -> None:
        """Fills the folder by child processes (`executor.make`). Whatever they do not manage is compiled by this process, which then raises its error."""
        if self.directory is None or not sys.executable:
            return
        processes = min(self.compilers, -(-len(kernels) // 2))
        if processes < 1:
            return
        root = str(Path(__file__).resolve().parent.parent.parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
        command = [sys.executable, "-m", "kernels_numba.executor.make", self.level.name, str(self.directory.parent)]
        waiting = sorted(kernels, key=_expected_cost)  # the most expensive is taken first
        children: list[subprocess.Popen[bytes]] = []
        with contextlib.suppress(OSError):
            for _ in range(processes):
                children.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                )
        done = 0
        count_lock = threading.Lock()

        def serve(child: subprocess.Popen[bytes]) -> None:
            """Gives a child one kernel after the other, the next when it has finished one."""
            nonlocal done
            assert child.stdin is not None and child.stdout is not None
            with contextlib.suppress(OSError):  # a child that ended early
                while waiting:
                    kernel = waiting.pop()
                    child.stdin.write(json.dumps(dataclasses.astuple(kernel)).encode() + b"\n")
                    child.stdin.flush()
                    if not child.stdout.readline():
                        break
                    with count_lock:
                        done += 1
                        progress(done)
            with contextlib.suppress(OSError):
                child.stdin.close()
            child.stdout.close()
            child.wait()

        threads = [threading.Thread(target=serve, args=(child,), name="edgeinfer-compiler") for child in children]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:  # an interrupt: what they have finished is kept
            for child in children:
                child.kill()
            raise
        self.compiled += [kernel.symbol for kernel in kernels if self._path(kernel).exists()]

    def _compile(self, kernel: KernelName) -> Image:
        from kernels_numba.executor.compile import front_end
        from kernels_numba.ops.tags import resolve_tag

        function: KernelFunction = getattr(importlib.import_module(f"kernels_numba.{kernel.module}"), kernel.function)
        self.compiled.append(kernel.symbol)
        tags = tuple(resolve_tag(tag) for tag in kernel.tags)
        return link(front_end(self.level).compile(kernel.symbol, function, tags, kernel.integers), kernel.symbol)

    def _file_name(self, kernel: KernelName) -> str:
        return f"{kernel.symbol}-{sources().digest(kernel, self.level)}.kernel"

    def _path(self, kernel: KernelName) -> Path:
        assert self.directory is not None
        return self.directory / self._file_name(kernel)

    def _find(self, kernel: KernelName, folders: Sequence[Path]) -> Image | None:
        """The kernel from the first folder that has a whole one."""
        for folder in folders:
            path = folder / self._file_name(kernel)
            own = folder == self.directory
            try:
                with path.open("rb") as file:
                    obstacle = not_ours(os.fstat(file.fileno()), path)
                    data = file.read() if obstacle is None else b""
            except OSError:
                continue
            if obstacle is not None:
                warnings.warn(f"{path} is not used: {obstacle}", stacklevel=2)
                continue
            head, _, code = data[len(_MAGIC) + _HASH_BYTES :].partition(b"\n")
            if data[: len(_MAGIC)] == _MAGIC and hashlib.sha256(head + b"\n" + code).digest() == data[len(_MAGIC) : len(_MAGIC) + _HASH_BYTES]:
                description = json.loads(head)
                named = [description[key] for key in ("symbol", "level", "digest")]
                if named == [kernel.symbol, self.level.name, sources().digest(kernel, self.level)]:
                    if own and compiler_versions() not in ("", description["compilers"]):
                        continue  # another compiler may know better; a pack is taken as its maker tested it
                    return Image(code, description["entry"])
            warnings.warn(f"{path} is damaged and is made again" if own else f"{path} is damaged and is not used", stacklevel=2)
        return None

    def _write(self, kernel: KernelName, image: Image, must: bool = False) -> None:
        """Keeps an object. That a folder does not take it is an error only if it `must`."""
        if not self._keeps:
            return
        digest = sources().digest(kernel, self.level)
        description = {"symbol": kernel.symbol, "level": self.level.name, "digest": digest, "compilers": compiler_versions(), "entry": image.entry}
        body = json.dumps(description).encode() + b"\n" + image.code
        path = self._path(kernel)
        temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
        try:
            temporary.write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)
            temporary.replace(path)
        except OSError as error:  # a full disk or a read-only folder costs the next process a compile, nothing else
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if must:
                raise
            self._keeps = False
            warnings.warn(f"compiled kernels could not be kept in {self.directory}: {error}", stacklevel=2)
            return
        with contextlib.suppress(OSError):
            for other in path.parent.glob(f"{kernel.symbol}-{'?' * len(digest)}.kernel"):
                if other != path and other.stat().st_mtime < time.time() - _STALE_AFTER:
                    other.unlink()


def _expected_cost(kernel: KernelName) -> int:
    """Orders kernels by how long they take to compile: attention some 3 s, a linear kernel 1 s, others a third and less."""
    return {"ops.attention": 2, "ops.linear": 1}.get(kernel.module, 0)


def _trusted_pack(pack: Path, level: str) -> bool:
    """Whether a pack has kernels of the level and may be used; warns of one that others could have changed."""
    for folder in (pack, pack / level):
        try:
            obstacle = not_ours(folder.stat(), folder)
        except OSError:
            return False
        if obstacle is not None:
            warnings.warn(f"the kernels in {folder} are not used: {obstacle}", stacklevel=3)
            return False
    return True


def _after_fork() -> None:
    """In a forked child: a lock may have been held by a thread that compiled, and no longer exists."""
    for store in _stores:
        store._lock = threading.Lock()
        store._late = None


os.register_at_fork(after_in_child=_after_fork)

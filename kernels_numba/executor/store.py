"""The kernel store: objects of compiled kernels by (kernel, instruction-set level, source digest), made by `compile` when missing, loaded without Numba.

A folder of the store holds native code, so it is used only if it belongs to the user and nobody else can write to it; else kernels live in memory
alone. Each file carries a hash of its object and is replaced atomically; a damaged file is made again. Objects are loaded by llvmlite's execution engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import importlib
import json
import os
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_numba.simd.levels import Level

if TYPE_CHECKING:
    from kernels_numba.simd.function import KernelFunction

_MAGIC = b"edgeinfer-kernel-1\n"


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


def source_digest() -> str:
    """Of everything that decides what a kernel compiles to: the sources of kernels_numba and the versions of the compilers."""
    from importlib.metadata import version

    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(f"{version('numba')} {version('llvmlite')}".encode())
    return digest.hexdigest()[:24]


class KernelStore:
    """The kernels of one level in this process. Thread-safe. `directory` None: memory alone.

    Many missing kernels are compiled by `compilers` child processes, which also keeps Numba out of this process; where that fails, they are compiled here.
    """

    def __init__(self, level: Level, directory: Path | None, compilers: int = 1) -> None:
        self.level = level
        self.compilers = compilers
        self.directory = directory / source_digest() / level.name if directory is not None else None
        obstacle = _make_own(directory, source_digest(), level.name) if directory is not None else None
        if obstacle is not None:
            warnings.warn(
                f"{directory} cannot be used for compiled kernels ({obstacle}); "
                "kernels are compiled again in each process. Choose another folder with EDGEINFER_CACHE.",
                stacklevel=2,
            )
            self.directory = None
        self.compiled: list[str] = []  # symbols that this process had to compile
        self._keeps = self.directory is not None  # until writing fails once
        self._engine: Any = None
        self._addresses: dict[KernelName, int] = {}
        self._lock = threading.Lock()

    def load(self, kernels: Iterable[KernelName]) -> dict[KernelName, int]:
        """The addresses of the kernels, compiling those that are missing."""
        wanted = dict.fromkeys(kernels)
        with self._lock:
            missing = [kernel for kernel in wanted if kernel not in self._addresses]
            if missing:
                self._compile_in_children(missing)
                self._load(missing)
            return {kernel: self._addresses[kernel] for kernel in wanted}

    @property
    def loaded(self) -> list[KernelName]:
        """The kernels whose addresses this process holds."""
        with self._lock:
            return sorted(self._addresses)

    def compile_ahead(self, kernels: Iterable[KernelName]) -> list[str]:
        """Puts the missing objects of these kernels into the folder without loading them, which works for levels that this machine cannot run.

        Returns the symbols that were compiled. Raises ValueError for a store in memory alone.
        """
        if self.directory is None:
            raise ValueError("kernels compiled ahead need a folder to be kept in")
        with self._lock:
            missing = [kernel for kernel in dict.fromkeys(kernels) if self._read(kernel) is None]
            for kernel in missing:
                self._write(kernel, self._compile(kernel))
            return [kernel.symbol for kernel in missing]

    def function(self, kernel: KernelName) -> Any:
        """The kernel as a ctypes function of int64 arguments."""
        address = self.load([kernel])[kernel]
        return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * kernel.integers)(address)

    def make(self, kernel: KernelName) -> None:
        """Compiles a kernel into the folder without loading it; its level need not be one that this machine can run."""
        self._write(kernel, self._compile(kernel))

    def _load(self, kernels: list[KernelName]) -> None:
        import llvmlite.binding as llvm

        if self._engine is None:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        for kernel in kernels:
            code = self._read(kernel)
            if code is None:
                code = self._compile(kernel)
                self._write(kernel, code)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        for kernel in kernels:
            self._addresses[kernel] = self._engine.get_function_address(kernel.symbol)

    def _compile_in_children(self, kernels: list[KernelName]) -> None:
        """Fills the folder by child processes (`executor.make`). Whatever they do not manage is compiled by this process, which then raises its error."""
        if self.directory is None or not sys.executable:
            return
        absent = [kernel for kernel in kernels if not self._path(kernel).exists()]
        processes = min(self.compilers, len(absent) // 2)
        if processes < 1:
            return
        root = str(Path(__file__).resolve().parent.parent.parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
        absent.sort(key=lambda kernel: kernel.module != "ops.linear")  # the longest first, dealt out like cards
        children = []
        for number in range(processes):
            request = json.dumps([dataclasses.astuple(kernel) for kernel in absent[number::processes]])
            command = [sys.executable, "-m", "kernels_numba.executor.make", self.level.name, str(self.directory.parent.parent), request]
            try:
                children.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
            except OSError:
                break
        try:
            for child in children:
                child.wait()
        except BaseException:  # an interrupt: what they have finished is kept
            for child in children:
                child.kill()
                child.wait()
            raise
        self.compiled += [kernel.symbol for kernel in absent if self._path(kernel).exists()]

    def _compile(self, kernel: KernelName) -> bytes:
        from kernels_numba.executor.compile import front_end
        from kernels_numba.ops.tags import resolve_tag

        function: KernelFunction = getattr(importlib.import_module(f"kernels_numba.{kernel.module}"), kernel.function)
        self.compiled.append(kernel.symbol)
        return front_end(self.level).compile(kernel.symbol, function, tuple(resolve_tag(tag) for tag in kernel.tags), kernel.integers)

    def _path(self, kernel: KernelName) -> Path:
        assert self.directory is not None
        return self.directory / f"{kernel.symbol}.object"

    def _read(self, kernel: KernelName) -> bytes | None:
        if self.directory is None:
            return None
        path = self._path(kernel)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[len(_MAGIC) + 32 :]
        if data[: len(_MAGIC)] == _MAGIC and hashlib.sha256(body).digest() == data[len(_MAGIC) : len(_MAGIC) + 32]:
            return body
        warnings.warn(f"{path} is damaged and is made again", stacklevel=2)
        return None

    def _write(self, kernel: KernelName, code: bytes) -> None:
        if not self._keeps:
            return
        temporary = self._path(kernel).with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
        try:
            temporary.write_bytes(_MAGIC + hashlib.sha256(code).digest() + code)
            temporary.replace(self._path(kernel))
        except OSError as error:  # a full disk or a read-only folder costs the next process a compile, nothing else
            self._keeps = False
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            warnings.warn(f"compiled kernels could not be kept in {self.directory}: {error}", stacklevel=2)


def _make_own(directory: Path, *inner: str) -> str | None:
    """Makes the folder and the ones inside of it, if need be. None when they exist, are ours and are writable by nobody else (read-only folders of ours
    are fine), otherwise what is in the way.
    """
    folders = [directory.joinpath(*inner[:depth]) for depth in range(len(inner) + 1)]
    for folder in folders:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # others may read: root fills a cache when an image is built, a service uses it
            information = folder.stat()
        except OSError as error:
            return error.strerror or str(error)
        if information.st_uid not in (os.getuid(), 0) or information.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "it must be a folder of yours that nobody else can write to"
    return None

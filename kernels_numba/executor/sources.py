"""The digest of a kernel's sources: of every module that can decide what the kernel compiles to. The store keeps and finds objects by it.

Modules are read as text and followed through their imports, so that neither Numba nor the kernel's own module is imported. What is imported by a computed
name is named here: the modules that a target builds on, and those that a tag (a format, a cache type, an activation) takes its members from.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_numba.ops.variants import VARIANTS

if TYPE_CHECKING:
    from kernels_numba.executor.store import KernelName
    from kernels_numba.simd.levels import Level

_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+kernels_numba(?:\.([\w.]+))?(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n]*))?", re.MULTILINE)
_QUOTED = re.compile(r'"(\w+)"')
_COMPILER = ("executor.compile", "simd.vocabulary")
_TAGS = "ops.tags"
_TARGETS = "simd.targets"


class Sources:
    """The sources of kernels_numba under a folder. Files are read once; an object of this class is valid for a process."""

    def __init__(self, root: Path) -> None:
        self._paths = dict(_modules(root))
        self._read: dict[str, tuple[bytes, frozenset[str]]] = {}
        self._closures: dict[str, frozenset[str]] = {}

    def modules(self, kernel: KernelName, level: Level) -> frozenset[str]:
        """Names, relative to kernels_numba, of the modules that decide what a kernel compiles to."""
        roots = [kernel.module, *_COMPILER, f"{_TARGETS}.{level.target}"]
        for tag in kernel.tags:
            roots += [VARIANTS[tag][0]] if tag in VARIANTS else [f"formats.{tag.lower()}"]
            if not roots[-1].startswith("ops."):
                roots.append(_TAGS)
        return frozenset().union(*(self._closure(root) for root in roots))

    def digest(self, kernel: KernelName, level: Level) -> str:
        """16 hexadecimal digits."""
        return self._digest(self.modules(kernel, level))

    def layout_digest(self, formats: Iterable[str]) -> str:
        """16 hexadecimal digits of all that decides the bytes of packed weights of these formats, the same for every level."""
        return self._digest(frozenset().union(self._closure("ops.pack"), *(self._closure(f"formats.{name.lower()}") for name in formats)))

    def _digest(self, modules: frozenset[str]) -> str:
        digest = hashlib.sha256()
        for name in sorted(modules):
            digest.update(name.encode() + b"\0" + self._file(name)[0])
        return digest.hexdigest()[:16]

    def _closure(self, name: str) -> frozenset[str]:
        """A module and all that it imports, directly or not."""
        if name not in self._closures:
            reached, waiting = {name}, [name]
            while waiting:
                found = self._file(waiting.pop())[1] - reached
                reached |= found
                waiting += found
            self._closures[name] = frozenset(reached)
        return self._closures[name]

    def _file(self, name: str) -> tuple[bytes, frozenset[str]]:
        """The hash of a module's text, and the modules that it imports."""
        if name not in self._read:
            if name not in self._paths:
                raise ModuleNotFoundError(f"there is no module kernels_numba.{name}")
            content = Path(self._paths[name]).read_bytes()
            text = content.decode()
            imported = set()
            for module, members in _IMPORT.findall(text):
                inner = [f"{module}.{member}".strip(".") for member in re.findall(r"\w+", members)]
                submodules = [candidate for candidate in inner if candidate in self._paths]
                imported.update(submodules)
                if len(submodules) < len(inner) or not inner:  # else the package is but the way to its modules
                    imported.add(module)
            if name.startswith(f"{_TARGETS}."):
                imported.update(f"{_TARGETS}.{word}" for word in _QUOTED.findall(text) if f"{_TARGETS}.{word}" in self._paths)
            imported.discard("")
            self._read[name] = (hashlib.sha256(content).digest(), frozenset(imported))
        return self._read[name]


def _modules(root: Path) -> Iterator[tuple[str, str]]:
    """Names and paths of all modules under a folder. The package itself is the empty name."""
    for folder, _, files in os.walk(root):
        parts = [part for part in os.path.relpath(folder, root).split(os.sep) if part != "."]
        for file in files:
            if file.endswith(".py"):
                yield ".".join(parts if file == "__init__.py" else [*parts, file[:-3]]), os.path.join(folder, file)


@functools.cache
def sources() -> Sources:
    """Those of the package that runs."""
    return Sources(Path(__file__).resolve().parent.parent)


@functools.cache
def compiler_versions() -> str:
    """ "numba 0.68.1, llvmlite 0.50.0"; without those that are not installed. Read from their files, because importing them takes long."""
    found = []
    for name in ("numba", "llvmlite"):
        specification = importlib.util.find_spec(name)
        if specification is None or specification.origin is None:
            continue
        try:
            text = Path(specification.origin).with_name("_version.py").read_text()
        except OSError:
            text = ""
        match = re.search(r"""version["']?\s*[:=]\s*["']([^"']+)["']""", text)
        found.append(f"{name} {match[1] if match else 'of an unknown version'}")
    return ", ".join(found)

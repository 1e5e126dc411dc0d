"""The direction of imports is law: arrows go down only, heavy libraries are imported where they are used, and kernels know no model.

Reads the source with `ast`, so an import inside a function counts as well; only the tests on start-up look at module level alone.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# From the bottom up. A module may import from its own group and from the layers below it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("edgeinfer.core",),
    ("edgeinfer.gguf", "edgeinfer.tokenizer", "edgeinfer.chat", "edgeinfer.sampling", "edgeinfer.kvcache", "edgeinfer.model", "edgeinfer.cards"),
    ("edgeinfer.pull", "edgeinfer.backends"),
    ("edgeinfer.scheduler",),
    ("edgeinfer.engine",),
    ("edgeinfer.verify", "edgeinfer.benchmark", "edgeinfer.server"),
    ("edgeinfer.cli",),
    ("edgeinfer.__main__",),
)
# Groups of one layer that may know each other: these take the types of the file reader.
SIDEWAYS = {("edgeinfer.tokenizer", "edgeinfer.gguf"), ("edgeinfer.model", "edgeinfer.gguf")}

KERNEL_LAYERS: tuple[tuple[str, ...], ...] = (
    ("kernels_numba.simd",),
    ("kernels_numba.executor.aligned", "kernels_numba.executor.link", "kernels_numba.executor.machine"),
    ("kernels_numba.executor.step", "kernels_numba.executor.compile"),  # the words of the step record; what the compiler takes as a constant
    ("kernels_numba.formats", "kernels_numba.layouts"),
    ("kernels_numba.ops",),
    ("kernels_numba.executor",),
)
KERNEL_SIDEWAYS = {("kernels_numba.formats", "kernels_numba.layouts")}  # a format's file says how its blocks are packed

# What of the kernels a part of edgeinfer may know. Formats are free of Numba; the levels are a table of names.
KERNELS_KNOWN_TO = {
    "edgeinfer.gguf": ("kernels_numba.formats",),
    "edgeinfer.model": ("kernels_numba.formats",),
    "edgeinfer.backends": ("kernels_numba",),
    "edgeinfer.verify": ("kernels_numba.formats", "kernels_numba.simd.levels"),
    "edgeinfer.benchmark": ("kernels_numba.simd.levels",),
    "edgeinfer.cli": ("kernels_numba.simd.levels",),
}

# Libraries that only one place may import.
OWNERS = {
    "llama_cpp": ("edgeinfer/backends/llamacpp", "edgeinfer/benchmark/peers/llama.py"),  # the latter in a process of its own, to time it alone
    "onnxruntime": ("edgeinfer/backends/onnx",),
    "onnx": ("edgeinfer/backends/onnx",),
    "tokenizers": ("edgeinfer/tokenizer/",),
    "jinja2": ("edgeinfer/chat/",),
    "huggingface_hub": ("edgeinfer/pull.py",),
    "typer": ("edgeinfer/cli/",),
    "rich": ("edgeinfer/cli/", "edgeinfer/core/tables", "edgeinfer/verify/display", "edgeinfer/verify/backends_display", "edgeinfer/benchmark/display"),
    "matplotlib": ("edgeinfer/benchmark/plot",),
    "numba": ("kernels_numba/simd/", "kernels_numba/ops/", "kernels_numba/executor/", "kernels_numba/layouts/"),
    "llvmlite": ("kernels_numba/simd/", "kernels_numba/ops/", "kernels_numba/executor/", "kernels_numba/layouts/"),
    "gguf": (),
    "torch": (),
    "psutil": (),
}
HEAVY = {"numba", "llvmlite", "tokenizers", "jinja2", "llama_cpp", "onnxruntime", "huggingface_hub", "fastapi", "uvicorn", "rich", "matplotlib"}
MAY_IMPORT_NUMBA_EAGERLY = (
    "kernels_numba/simd/", "kernels_numba/ops/", "kernels_numba/layouts/", "kernels_numba/executor/compile.py", "kernels_numba/executor/machine.py",
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    """An import statement: where it stands, what it names, and whether it runs when the module is imported."""

    path: str
    line: int
    target: str
    eager: bool

    @property
    def importer(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(tree: ast.AST, eager: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, eager
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node):
            yield from statements(node, False)
        else:
            yield from statements(node, eager)


def imports_of(path: Path) -> Iterator[Import]:
    name = path.relative_to(ROOT).as_posix()
    for node, eager in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, node.lineno, alias.name, eager)
        else:
            assert node.level == 0, f"{name}:{node.lineno}: imports are absolute here, so that they can be read and checked"
            assert node.module is not None
            for alias in node.names:  # `from a.b import c`: c may be a module
                yield Import(name, node.lineno, f"{node.module}.{alias.name}", eager)


IMPORTS = [found for package in ("edgeinfer", "kernels_numba") for path in sorted((ROOT / package).rglob("*.py")) for found in imports_of(path)]


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def group_of(module: str, layers: tuple[tuple[str, ...], ...]) -> tuple[int, str] | None:
    """The layer (from the bottom) and the most specific group that a module belongs to."""
    found = [(height, group) for height, groups in enumerate(layers) for group in groups if inside(module, group)]
    return max(found, key=lambda item: len(item[1]), default=None)


def against_the_arrows(layers: tuple[tuple[str, ...], ...], sideways: set[tuple[str, str]]) -> list[str]:
    wrong = []
    for found in IMPORTS:
        source, target = group_of(found.importer, layers), group_of(found.target, layers)
        if source is None or target is None or source == target or (source[1], target[1]) in sideways:
            continue
        if target[0] >= source[0]:
            wrong.append(str(found))
    return wrong


def test_the_check_itself_sees_imports() -> None:
    assert len(IMPORTS) > 200
    assert any(found.importer == "edgeinfer.cards" and found.target == "edgeinfer.core.home.model_file" and found.eager for found in IMPORTS)
    assert any(found.importer == "edgeinfer.cli.run" and found.target.startswith("edgeinfer.core.requests") and not found.eager for found in IMPORTS)


def test_arrows_go_down_in_edgeinfer() -> None:
    assert against_the_arrows(LAYERS, SIDEWAYS) == []


def test_arrows_go_down_in_the_kernels() -> None:
    assert against_the_arrows(KERNEL_LAYERS, KERNEL_SIDEWAYS) == []


def test_every_module_belongs_to_a_layer() -> None:
    modules = {found.importer for found in IMPORTS}
    modules -= {"edgeinfer", "kernels_numba"}
    assert [name for name in sorted(modules) if group_of(name, LAYERS) is None and group_of(name, KERNEL_LAYERS) is None] == []


def test_kernels_never_import_edgeinfer() -> None:
    assert [str(found) for found in IMPORTS if inside(found.importer, "kernels_numba") and inside(found.target, "edgeinfer")] == []


def test_only_backends_know_kernels() -> None:
    wrong = []
    for found in IMPORTS:
        if inside(found.importer, "edgeinfer") and inside(found.target, "kernels_numba"):
            group = group_of(found.importer, LAYERS)
            known = KERNELS_KNOWN_TO.get(group[1] if group else "", ())
            if not any(inside(found.target, package) for package in known):
                wrong.append(str(found))
    assert wrong == []


def test_nobody_imports_tests_tools_or_data() -> None:
    assert [str(found) for found in IMPORTS if found.target.split(".")[0] in ("tests", "bench", "tools", "models")] == []


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_a_library_is_imported_by_its_owner_alone(library: str) -> None:
    users = [found for found in IMPORTS if inside(found.target, library)]
    assert [str(found) for found in users if not found.path.startswith(OWNERS[library])] == []


def test_formats_and_models_are_free_of_numba() -> None:
    for package in ("kernels_numba.formats", "edgeinfer.model"):
        assert [str(found) for found in IMPORTS if inside(found.importer, package) and found.target.split(".")[0] in ("numba", "llvmlite")] == []


def test_heavy_libraries_are_imported_inside_functions() -> None:
    eager = [found for found in IMPORTS if found.eager and found.target.split(".")[0] in HEAVY]
    assert [str(found) for found in eager if not found.path.startswith(MAY_IMPORT_NUMBA_EAGERLY)] == []


def test_loading_a_backend_imports_no_numba() -> None:
    """Modules that are needed when kernels are compiled already: none of them, nor what they import, may bring Numba in."""
    modules = ["edgeinfer.engine", "edgeinfer.gguf.reader", "edgeinfer.model.build", "kernels_numba.executor.store", "kernels_numba.formats"]
    modules.append("edgeinfer.backends.numba.backend")
    program = f"import sys, {', '.join(modules)}; sys.exit(any(name in sys.modules for name in ('numba', 'llvmlite', 'llama_cpp', 'jinja2', 'rich')))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0

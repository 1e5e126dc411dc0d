"""The backend that docs/backends.md shows, taken from that page and installed as a package: a module and what pip leaves beside it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"


def example_source() -> str:
    """The page's only block of Python."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(source)


def example_entry() -> str:
    """The page's line for the entry point: name = "module:object"."""
    (line,) = re.findall(r'\[project.entry-points."edgeinfer.backends"\]\n(.*?)\n```', PAGE.read_text(encoding="utf-8"))
    return str(line).replace('"', "")


def install(folder: Path, package: str, entry: str, module: str, source: str, version: str = "1.0") -> None:
    """Puts a package with one entry point into `folder`, as installing it would; the caller puts the folder on the path."""
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    information = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(f"[edgeinfer.backends]\n{entry}\n", encoding="utf-8")


def install_example(folder: Path) -> None:
    """The page's backend, under the name `counting`."""
    install(folder, "counting-backend", example_entry(), "counting_backend", example_source())

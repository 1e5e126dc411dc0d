"""The wheel that we build: what it holds, and that its data files are found when it is installed outside the checkout."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout. Building needs hatchling: installed, or fetched by pip from an index."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    if importlib.util.find_spec("hatchling") is not None:
        command.insert(4, "--no-build-isolation")
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0 and "hatchling" in built.stderr:
        pytest.skip("hatchling is neither installed nor to be had from a package index")
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("edgeinfer-*.whl")
    return found


def test_top_level_names(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"edgeinfer", "kernels_numba"}


def test_every_module_and_every_data_file_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    suffixes = {".py", ".txt"}  # texts: what `verify` reads
    packages = [path for package in ("edgeinfer", "kernels_numba") for path in (ROOT / package).rglob("*")]
    modules = {path.relative_to(ROOT).as_posix() for path in packages if path.suffix in suffixes}
    data = {"edgeinfer/data/" + path.relative_to(ROOT).as_posix() for path in (ROOT / "models").rglob("*.toml")}
    assert len(data) >= 3
    assert modules | data <= inside
    assert not [name for name in inside if name.startswith(("tests/", "models/", "bench/", "tools/")) or "__pycache__" in name]


def test_the_data_files_are_found_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    program = (
        "import edgeinfer, edgeinfer.cards, edgeinfer.core.paths as paths\n"
        "print(edgeinfer.__file__); print(paths.data_path('cards')); print(*edgeinfer.cards.load_cards())"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    ran = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    package, cards, names = ran.stdout.splitlines()
    assert Path(package).is_relative_to(target)
    assert Path(cards) == target / "edgeinfer" / "data" / "models" / "cards"
    assert names.split()[0] == "smollm2-135m"
    assert {path.name for path in target.iterdir() if not path.name.endswith(".dist-info")} <= {"edgeinfer", "kernels_numba", "bin"}

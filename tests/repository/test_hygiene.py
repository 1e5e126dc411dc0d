"""What is committed: no paths of somebody's machine, no files that have grown too long, modules that introduce themselves, tables that are current."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from tools.readme_tables import README, with_current_tables

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_FILE = 450
# Files that may be longer, because what they hold is one thing. Keep this list short.
MAY_BE_LONGER: set[str] = set()

# Put together here, so that this file does not hold what it looks for.
FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.])/(work|root|Users|mnt|opt)/[\w.]|(?<![\w.])/tmp/[\w.]+/|(?<![\w.])/home/(?!user\b)[\w.]+/",
    "the host of a package index or hub": r"\b(py" + r"pi\.org|python" + r"hosted\.org|hugging" + r"face\.co)\b",
    "a folder outside the repository": r"\.\./" + r"shared",
    "a note to oneself": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
}
TEXTS = {".py", ".toml", ".md", ".sh", ".txt", ".yml", ".yaml", ".cfg", ".json", ""}


def tracked() -> list[Path]:
    """The files of the repository: as git knows them, or (in an unpacked archive) all that are not generated."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
    if listed.returncode == 0:
        return [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name and (ROOT / os.fsdecode(name)).is_file()]
    skipped = {".git", ".venv", ".cache", "__pycache__", "build", "dist"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.relative_to(ROOT).parts)]


FILES = tracked()
MODULES = [path for path in FILES if path.suffix == ".py"]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_repository_is_seen() -> None:
    assert len(MODULES) > 50 and ROOT / "LICENSE" in FILES


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_files_hold_nothing_that_does_not_belong(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in FILES:
        if path.suffix in TEXTS and "corpus" not in path.parts and path.name != "LICENSE":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if pattern.search(line):
                    found.append(f"{name(path)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_no_file_has_grown_too_long() -> None:
    long = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: lines for path, lines in long.items() if lines > LONGEST_FILE and path not in MAY_BE_LONGER} == {}
    assert {path for path in MAY_BE_LONGER if long.get(path, 0) <= LONGEST_FILE} == set(), "these have become shorter: take them off the list"


def test_every_module_introduces_itself() -> None:
    silent = [name(path) for path in MODULES if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert silent == []


def test_scripts_stop_at_the_first_error_and_can_be_run() -> None:
    scripts = [path for path in FILES if path.suffix == ".sh" or path.parent.name == ".ci" or name(path) == "tests/arm64/run"]
    assert scripts
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("#!/bin/bash\n") and "\nset -euo pipefail\n" in text, name(path)
        assert os.access(path, os.X_OK), name(path)


def test_no_large_or_binary_files() -> None:
    assert [name(path) for path in FILES if path.stat().st_size > 300_000] == []


def test_the_tables_of_the_readme_are_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_current_tables(text) == text, "run `make readme`"


def test_the_readme_names_every_command() -> None:
    from edgeinfer.cli.main import COMMANDS

    text = README.read_text(encoding="utf-8")
    assert [command for command in COMMANDS if f"$ edgeinfer {command}" not in text] == []


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in text and "END OF TERMS AND CONDITIONS" in text

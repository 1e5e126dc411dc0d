"""Outputs that cannot be written are refused before the work, with what the user named them by."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.core.outputs import require_writable_file, require_writable_folder


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for name in ("old", "new", "link", "pipe"):
        require_writable_file(tmp_path / name, "--plot")
    require_writable_file(Path(os.devnull), "--plot")
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "old").read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "reason"), [("", "Is a directory"), ("no/file", "No such file"), ("old/file", "Not a directory"), ("x" * 300, "too long"), ("a\0b", "null")]
)
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "old").write_text("")
    with pytest.raises(InvalidRequestError, match=f"^--plot cannot be written to .*{reason}.*; name another file$"):
        require_writable_file(tmp_path / name, "--plot")


def test_a_folder_is_made_or_refused(tmp_path: Path) -> None:
    require_writable_folder(tmp_path / "made" / "for it", "--write")
    assert list((tmp_path / "made" / "for it").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequestError, match="^--write cannot be written to .*file: .*; name another folder$"):
        require_writable_folder(tmp_path / "file", "--write")

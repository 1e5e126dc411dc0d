"""The temporary folders of the onnx backend, above all those of processes that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edgeinfer.backends.onnx.weights_folder import weights_folder

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
from edgeinfer.backends.onnx.weights_folder import weights_folder
with weights_folder() as folder:
    (folder / "model.onnx.data").write_bytes(bytes(1000))
    print(folder, flush=True)
    input()
"""


def _holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process in the middle of a load, and its folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(parent)}
    process = subprocess.Popen([sys.executable, "-c", HOLD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_load_leaves_is_removed_by_the_next_and_what_a_live_one_uses_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, left = _holder(tmp_path)
    killed.kill()
    killed.communicate()
    assert (left / "model.onnx.data").exists()
    live, used = _holder(tmp_path)
    try:
        assert not left.exists()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        (tmp_path / "edgeinfer-onnx-of-somebody").mkdir()  # without a lock: not one of ours
        (tmp_path / "edgeinfer-onnx-link").symlink_to(used)
        with weights_folder() as mine, weights_folder() as other:
            assert mine != other and mine.exists() and other.exists() and (used / "model.onnx.data").exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([used.name, "edgeinfer-onnx-of-somebody", "edgeinfer-onnx-link"])
    finally:
        live.communicate("\n")
    assert not used.exists()

"""Folders and files of any name, in any locale: ONNX Runtime and onnx take paths as UTF-8 alone, while a path on Linux is bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import Engine
from edgeinfer.backends.onnx.export import export_model
from edgeinfer.core.errors import InvalidRequestError
from tests.support.tiny_models import tiny_llama

pytestmark = pytest.mark.onnx

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import sys
from pathlib import Path
from edgeinfer import Engine
from edgeinfer.backends.onnx.export import export_model
with Engine.load(sys.argv[1], backend="onnx", context=64, threads=1) as engine:
    print(engine.logits([1, 2, 3]).tobytes().hex(), [text for text in engine.warnings if "temporary folder" in text])
export_model(Path(sys.argv[1]), Path(sys.argv[2]), "cpu")
"""


def test_names_in_any_script_in_the_c_locale(tmp_path: Path) -> None:
    folder = tmp_path / "Папка ü"
    folder.mkdir()
    model, output = tiny_llama(folder / "模型.gguf"), folder / "出力.onnx"
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    ran = subprocess.run([sys.executable, "-c", _PROGRAM, model, output], env={**os.environ, **c_locale}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    with Engine.load(model, backend="onnx", context=64, threads=1) as engine:
        assert ran.stdout.split() == [engine.logits([1, 2, 3]).tobytes().hex(), "[]"]
    assert "出力.onnx.data".encode() in output.read_bytes()
    assert json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]["filename"] == "出力.onnx"


def test_names_that_are_no_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary folder is gone around; an export is refused, since the graph has to hold the name of its weights."""
    folder = tmp_path / os.fsdecode(b"bad\xff\xfe")
    folder.mkdir()
    model = tiny_llama(folder / "model.gguf")
    with Engine.load(model, backend="onnx", context=64, threads=1) as engine:
        wanted = engine.logits([1, 2, 3])
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with Engine.load(model, backend="onnx", context=64, threads=1) as engine:
        assert any("temporary folder (its name is not valid UTF-8" in text for text in engine.warnings)
        assert np.array_equal(engine.logits([1, 2, 3]), wanted)
    with pytest.raises(InvalidRequestError, match=r"bad\\udcff\\udcfe/out.onnx, which is not valid UTF-8"):
        export_model(model, folder / "out.onnx", "cpu")
    assert list(folder.iterdir()) == [model]

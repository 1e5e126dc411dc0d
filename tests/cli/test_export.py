"""`edgeinfer export`: what it writes, what it says, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_llama

Command = Callable[..., Any]


@pytest.mark.onnx
def test_a_model_is_exported_and_described(command: Command, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf", weight_format="Q5_0")
    ended = command("export", str(model), str(tmp_path / "out.onnx"), "--dialect", "opset21", "--context", "64", "--json")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["dialect"] == "opset21" and report["context"] == 64 and len(report["warnings"]) == 1
    assert "warning: 15 matrices of Q5_0" in ended.err
    assert all(Path(file).is_file() for file in report["files"])
    ended = command("export", str(model), str(tmp_path / "out.onnx"))
    assert ended.code == 0 and "onnx.checker" in ended.out and "256 positions" in ended.out


@pytest.mark.onnx
@pytest.mark.parametrize(
    ("arguments", "words"), [(["--dialect", "tpu"], "no ONNX dialect named 'tpu'"), (["--context", "0"], "--context is 0; it must be")]
)
def test_wrong_input_ends_with_2(command: Command, tmp_path: Path, arguments: list[str], words: str) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf")
    ended = command("export", str(model), str(tmp_path / "out.onnx"), *arguments)
    assert ended.code == 2 and words in ended.err and ended.err.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix != ".gguf"] == []


def test_without_the_package_the_error_says_what_to_install(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.backends.onnx import library

    monkeypatch.setattr(library, "import_problem", lambda module: "not installed")
    ended = command("export", str(tiny_llama(tmp_path / "tiny.gguf")), str(tmp_path / "out.onnx"))
    assert ended.code == 1 and "pip install 'edgeinfer[onnx]'" in ended.err

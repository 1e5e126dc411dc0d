"""An output that cannot be written is refused before the work starts: exit code 2, one line, and nothing loaded or measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_llama

Command = Callable[..., Any]
BENCH = ("edgeinfer.benchmark.rounds", "run_benchmark")
EXPORT = ("edgeinfer.backends.onnx.export", "build_program")
VERIFY = ("edgeinfer.verify.backends", "verify_backends")
BATCH = ("edgeinfer.engine", "Engine.load")


@pytest.mark.parametrize(
    ("arguments", "work", "named"),
    [
        (("bench", "MODEL", "--write", "FOLDER/file"), BENCH, "--write"),
        (("bench", "MODEL", "--write", "FOLDER/file/below"), BENCH, "--write"),
        (("bench", "MODEL", "--plot", "FOLDER/none/picture.png"), BENCH, "--plot"),
        (("bench", "MODEL", "--plot", "FOLDER/folder.png"), BENCH, "--plot"),
        (("verify", "MODEL", "--backends", "numba", "--report", "FOLDER"), VERIFY, "--report"),
        (("verify", "MODEL", "--backends", "numba", "--report", "FOLDER/file/page.html"), VERIFY, "--report"),
        pytest.param(("export", "MODEL", "FOLDER/none/out.onnx"), EXPORT, "the export", marks=pytest.mark.onnx),
        pytest.param(("export", "MODEL", "FOLDER/folder.onnx"), EXPORT, "the export", marks=pytest.mark.onnx),
        (("batch", "FOLDER/file", "FOLDER/none/out.jsonl", "--model", "MODEL"), BATCH, "OUT.jsonl"),
    ],
)
def test_an_unwritable_output_ends_with_2(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], work: tuple[str, str], named: str
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    model = tiny_llama(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("")
    for name in ("folder.png", "folder.onnx"):
        (tmp_path / name).mkdir()

    def begun(*_: Any, **__: Any) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(".".join(work), begun)
    ended = command(*[part.replace("FOLDER", str(tmp_path)).replace("MODEL", str(model)) for part in arguments])
    assert ended.code == 2 and ended.out == ""
    assert ended.err.startswith(f"edgeinfer: error: {named} cannot be written to {tmp_path}") and ended.err.count("\n") == 1

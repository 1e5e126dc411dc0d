"""`edgeinfer bench`: what it refuses before it measures, and a whole run of our own engine on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_llama

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--threads", "1;2"), "threads are '1;2'"),
        (("--threads", "0"), "threads are [0]"),
        (("--batch", "1,64"), "at most 32 sequences"),
        (("--plot", "picture.svg"), "ends in .png"),
        (("--backend", "auto"), "auto is a choice between backends; name those to compare: numba, llamacpp, onnx"),
        (("--backend", "llamacpp", "--profile"), "--profile is of the backend numba, which is not among llamacpp"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(command: Command, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ended = command("bench", str(tiny_llama(tmp_path / "tiny.gguf")), *arguments)
    assert ended.code == 2 and said in " ".join(ended.err.split()) and "warm-up" not in ended.err


@pytest.mark.slow
def test_a_whole_run_of_our_own_engine(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model = tiny_llama(tmp_path / "tiny.gguf")
    ended = command(
        "bench", str(model), "--peers", "none", "--rounds", "1", "--threads", "1", "--prompt-lengths", "8,24", "--decode-tokens", "3", "--batch", "1,2",
        "--profile", "--plot", str(tmp_path / "picture.png"), "--write", str(tmp_path), "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    record = json.loads(ended.out.strip().splitlines()[-1])
    (run,) = record["runs"]
    measured = run["engines"]["edgeinfer"]["measurements"]
    assert list(measured) == ["prefill 8", "prefill 24", "decode 3", "decode 3 x 2"]
    assert all(entry["fraction_of_roofline"] > 0 for entry in measured.values())
    assert run["engines"]["edgeinfer"]["memory"]["private_peak_bytes"] > 10_000_000
    assert set(run["profiles"]) == {"prefill", "decode"}
    assert len(run["roofline"]["read_patterns"]) == 5
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert json.loads(next(tmp_path.glob("*-tiny.json")).read_text()) == record

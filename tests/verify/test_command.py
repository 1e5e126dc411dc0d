"""`edgeinfer verify` and `edgeinfer bench` as processes: the last line of standard output, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_models import tiny_llama

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("command") / "tiny.gguf")


def _edgeinfer(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "edgeinfer.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_verify_prints_one_object_and_ends_with_zero(tiny: Path) -> None:
    run = _edgeinfer("verify", str(tiny), "--tokens", "30", "--without-oracle", "--threads", "1", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)  # nothing else on standard output
    assert found["holds"] is True and found["tokens"] >= 30 and found["token_ids_equal"] is None
    assert "Teacher forcing" in run.stderr and "not judged" in run.stderr


def test_a_missed_bar_ends_with_one(tiny: Path) -> None:
    run = _edgeinfer("verify", str(tiny), "--tokens", "30", "--without-oracle", "--backend", "fake")
    assert run.returncode == 1, run.stderr
    assert "NO" in run.stdout and "KL(reference || ours)" in run.stdout


def test_verify_compares_backends_and_writes_the_page(tiny: Path, tmp_path: Path) -> None:
    options = ("--backends", "numba,fake", "--tokens", "30", "--greedy-tokens", "2", "--threads", "1", "--report", str(tmp_path / "page.html"), "--json")
    run = _edgeinfer("verify", str(tiny), *options)
    assert run.returncode == 1, run.stderr  # fake computes something else
    found = json.loads(run.stdout)
    assert list(found["backends"]) == ["numba", "fake"] and found["holds"] is False
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>") and f"written to {tmp_path / 'page.html'}" in run.stderr


def test_options_of_verify_that_do_not_go_together_are_refused(tiny: Path, tmp_path: Path) -> None:
    for options in (
        ("--report", "page.html"), ("--backends", "numba", "--without-oracle"), ("--backends", "tpu"), ("--backends", ","),
        ("--backends", "numba", "--backend", "onnx"), ("--backends", "numba,onnx", "--provider", "openvino:fast"),
        ("--backends", "numba", "--min-share", "0.9"),
    ):  # fmt: skip
        run = _edgeinfer("verify", str(tiny), *options)
        assert run.returncode == 2 and run.stderr.startswith("edgeinfer: error:"), run.stderr


def test_wrong_input_ends_with_two_and_one_line(tiny: Path) -> None:
    for arguments in (("verify", "no-such-model"), ("bench", str(tiny), "--peers", "vllm"), ("bench", str(tiny), "--prompt-lengths", "x")):
        run = _edgeinfer(*arguments)
        assert run.returncode == 2, run.stderr
        assert run.stderr.startswith("edgeinfer: error:") and "Traceback" not in run.stderr


def test_bench_measures_our_engine_alone_and_writes_the_record(tiny: Path, tmp_path: Path) -> None:
    options = ("--peers", "none", "--rounds", "1", "--prompt-lengths", "16", "--decode-tokens", "4", "--threads", "1")
    run = _edgeinfer("bench", str(tiny), *options, "--json", "--write", str(tmp_path))
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    ours = found["runs"][0]["engines"]["edgeinfer"]
    assert ours["measurements"]["decode 4"]["tokens_per_second"] > 0 and ours["load_seconds"] > 0
    assert ours["memory"]["peak_bytes"] > 10_000_000
    (written,) = tmp_path.iterdir()
    assert written.name.endswith("-tiny.json") and json.loads(written.read_text()) == found

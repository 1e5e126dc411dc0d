"""The commands on the llamacpp backend: answers, nothing of llama.cpp's log on the terminal, and its reasons in our errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny_models import tiny_llama

ROOT = Path(__file__).resolve().parent.parent.parent
PROMPT = "The capital of France is"

pytestmark = pytest.mark.llamacpp


def edgeinfer(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: what the library writes past Python would show."""
    command = [sys.executable, "-c", "from edgeinfer.cli.main import main; main()", *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


def test_a_file_that_it_refuses_is_one_line_with_its_reason(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "strange.gguf", tensors={"blk.1.attn_q.weight": None})
    ended = edgeinfer("run", str(model), "-p", "x", "--backend", "llamacpp", "--threads", "1")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("edgeinfer: error: llama.cpp cannot load") and ended.stderr.count("\n") == 1
    assert "blk.1.attn_q.weight" in ended.stderr


def test_bench_measures_it_behind_our_engine(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf")
    options = ["--rounds", "1", "--threads", "1", "--prompt-lengths", "8", "--decode-tokens", "3", "--batch", "1,2", "--peers", "none", "--no-roofline"]
    ended = edgeinfer("bench", str(model), "--backends", "llamacpp", *options, "--json")
    assert ended.returncode == 0, ended.stderr
    (run,) = json.loads(ended.stdout.strip().splitlines()[-1])["runs"]
    assert "llama.cpp" in run["engines"]["edgeinfer-llamacpp"]["settings"]
    assert set(run["engines"]["edgeinfer-llamacpp"]["measurements"]) == {"prefill 8", "decode 3", "decode 3 x 2"}


@pytest.mark.model
def test_a_real_model_answers_in_every_command(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    model = str(model_path("smollm2-135m"))
    backend = ["--backend", "llamacpp", "--threads", "1"]
    ran = edgeinfer("run", model, "-p", PROMPT, "-n", "6", "--temperature", "0", "--json", *backend)
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert answer["text"].startswith(" Paris")
    assert "llama" not in ran.stderr and "ggml" not in ran.stderr
    chat = edgeinfer("chat", model, "-n", "6", "--temperature", "0", *backend, input="Hello!\n/new\nHello!\n")
    assert chat.returncode == 0 and chat.stdout.strip() and "llama" not in chat.stderr
    requests = [{"prompt": PROMPT}, {"prompt": "Two plus two is"}, {"messages": [{"role": "user", "content": "Say hello."}]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({**request, "max_tokens": 6}) + "\n" for request in requests))
    batch = edgeinfer("batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--model", model, *backend)
    assert batch.returncode == 0, batch.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0]["text"].startswith(" Paris") and all(line["text"] for line in lines)

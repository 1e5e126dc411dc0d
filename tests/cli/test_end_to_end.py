"""The command line with a real model and the real engine, as a person uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROMPT = "The capital of France is"

pytestmark = pytest.mark.model


def edgeinfer(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from edgeinfer.cli.main import main; main()", *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def answer() -> dict[str, object]:
    """What `run --json` says."""
    from tests.real_files import model_path

    model_path("smollm2-135m")
    ended = edgeinfer("run", "smollm2-135m", "-p", PROMPT, "-n", "8", "--temperature", "0", "--json")
    assert ended.returncode == 0, ended.stderr
    value: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return value


def test_the_answer_makes_sense(answer: dict[str, object]) -> None:
    assert str(answer["text"]).startswith(" Paris")
    assert answer["finish_reason"] == "length" and len(answer["token_ids"]) == 8  # type: ignore[arg-type]


def test_a_path_and_other_threads_give_the_same(answer: dict[str, object], model_path: Callable[[str], Path]) -> None:
    ended = edgeinfer("run", str(model_path("smollm2-135m")), "-p", PROMPT, "-n", "8", "--threads", "1")
    assert ended.stdout == answer["text"]


def test_a_batch_gives_the_same(answer: dict[str, object], tmp_path: Path) -> None:
    requests = [{"prompt": PROMPT}, {"prompt": "Two plus two is"}, {"prompt": "x " * 9000}, {"messages": [{"role": "user", "content": "Say hello."}]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({**request, "max_tokens": 8}) + "\n" for request in requests))
    ended = edgeinfer("batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--model", "smollm2-135m")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ended.returncode == 1, ended.stderr
    assert lines[0]["token_ids"] == answer["token_ids"]
    assert lines[2]["error"]["type"] == "ContextLengthError"
    assert lines[1]["text"] and lines[3]["text"]


def test_a_chat_answers_every_line(answer: dict[str, object]) -> None:
    ended = edgeinfer("chat", "smollm2-135m", "-n", "6", "--temperature", "0", input="Hello!\n/new\nHello!\n")
    first, second = ended.stdout.split("\n", 1)[0], ended.stdout
    assert ended.returncode == 0 and first and second == f"{first}\n{first}\n"


def test_a_base_model_does_not_chat(model_path: Callable[[str], Path]) -> None:
    model_path("gemma-3-270m")
    ended = edgeinfer("chat", "gemma-3-270m", input="Hello!\n")
    assert ended.returncode == 2 and "has no chat template" in ended.stderr and ended.stderr.count("\n") == 1

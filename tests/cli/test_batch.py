"""`edgeinfer batch`: every line gets an answer or an error, in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli import batch as module

Command = Callable[..., Any]


def run(command: Command, folder: Path, lines: list[Any], *arguments: str) -> tuple[Any, list[dict[str, Any]]]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "in.jsonl").write_text(text + "\n", encoding="utf-8", errors="surrogateescape")
    ended = command("batch", str(folder / "in.jsonl"), str(folder / "out.jsonl"), "--model", "m.gguf", *arguments)
    return ended, [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]


def test_answers_come_in_order_with_their_ids(command: Command, engine: Any, tmp_path: Path) -> None:
    requests = [{"id": "x", "prompt": "one two"}, "", {"prompt": [1, 2]}, {"id": 3, "messages": [{"role": "user", "content": "hi"}], "seed": 5}]
    ended, answers = run(command, tmp_path, requests)
    assert ended.code == 0 and ended.out == ""
    assert [(answer["id"], answer["line"], answer["text"], answer["seed"]) for answer in answers] == [
        ("x", 1, "ONE TWO", 7),
        (None, 3, "<ids>", 7),
        (3, 4, "1 MESSAGES, LAST: HI", 5),
    ]
    assert answers[0]["usage"]["completion_tokens"] == 2 and answers[0]["finish_reason"] == "stop"


def test_lines_override_the_options(command: Command, engine: Any, tmp_path: Path) -> None:
    _, answers = run(command, tmp_path, [{"prompt": "a b c"}, {"prompt": "a b c", "max_tokens": 1}], "-n", "2", "--seed", "9")
    assert [(answer["text"], answer["seed"]) for answer in answers] == [("A B", 9), ("A", 9)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"prompt": "a", "seed": 1' + 5000 * "0" + "}", "line 2 is not JSON"),
        ({"id": 1, "prompt": "a", "temperature": 10**400}, "it must be a number of at least 0"),
        ('{"prompt": "a", "temperature": NaN}', "temperature is nan"),
        ("[1]", "line 2 is list, but must be a JSON object"),
        ({"id": 1}, "must have either 'prompt' or 'messages'"),
        ({"id": 1, "prompt": "a", "messages": []}, "must have either 'prompt' or 'messages'"),
        ({"id": 1, "prompt": "a", "temprature": 1}, "unknown field 'temprature'"),
        ({"id": 1, "prompt": "a", "temperature": -1}, "temperature is -1"),
        ({"id": 1, "prompt": "a", "max_tokens": "many"}, "max_tokens is 'many'"),
        ({"id": 1, "prompt": "a", "stop": 5}, "stop is 5; it must be a text"),
        ('{"id": NaN, "prompt": "a"}', "a number that JSON cannot hold"),
        ('{"id": [1e999], "prompt": "a"}', "a number that JSON cannot hold"),
        ({"id": 1, "prompt": "explode"}, "this prompt explodes"),
        ({"id": 1, "prompt": "too long"}, "the prompt has 9 tokens"),
    ],
)
def test_a_wrong_line_does_not_harm_the_others(command: Command, engine: Any, tmp_path: Path, line: Any, message: str) -> None:
    ended, answers = run(command, tmp_path, [{"prompt": "before"}, line, {"prompt": "after"}])
    assert ended.code == 1 and "1 of 3 requests failed" in ended.err
    assert [answer.get("text") for answer in answers] == ["BEFORE", None, "AFTER"]
    assert message in answers[1]["error"]["message"] and answers[1]["line"] == 2
    assert answers[1]["error"]["type"] in ("InvalidRequestError", "ContextLengthError", "TypeError")
    if isinstance(line, dict):
        assert answers[1]["id"] == 1


def test_more_lines_than_run_together(command: Command, engine: Any, tmp_path: Path) -> None:
    count = 2 * module.TOGETHER + 3
    ended, answers = run(command, tmp_path, [{"prompt": f"p{index}"} for index in range(count)])
    assert [answer["text"] for answer in answers] == [f"P{index}" for index in range(count)]
    assert f"{count} answered, 0 failed" in ended.err


def test_invalid_unicode_in_a_line_is_an_error_of_that_line(command: Command, engine: Any, tmp_path: Path) -> None:
    ended, answers = run(command, tmp_path, [{"prompt": "fine"}, '{"prompt": "bad \udcff"}'])
    assert ended.code == 1
    assert answers[0]["text"] == "FINE" and "UTF-8" in answers[1]["error"]["message"]


def test_the_requests_are_never_overwritten(command: Command, engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n')
    ended = command("batch", str(path), str(tmp_path / "." / "in.jsonl"), "--model", "m.gguf")
    assert ended.code == 2 and "is the file of requests" in ended.err
    assert path.read_text() == '{"prompt": "a"}\n' and engine.loaded == []


def test_files_that_cannot_be_opened(command: Command, engine: Any, tmp_path: Path) -> None:
    ended = command("batch", str(tmp_path / "none.jsonl"), str(tmp_path / "out.jsonl"), "--model", "m.gguf")
    assert ended.code == 2 and "cannot open" in ended.err and "No such file" in ended.err
    assert engine.loaded == []


def test_answers_to_standard_output(command: Command, engine: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a b"}\n')
    ended = command("batch", str(tmp_path / "in.jsonl"), "-", "--model", "m.gguf")
    assert json.loads(ended.out)["text"] == "A B"


def test_the_help_names_every_field_of_a_request() -> None:
    from dataclasses import fields

    from edgeinfer.cli.batch import batch
    from edgeinfer.core.requests import SamplingParams

    for name in ("prompt", "messages", "id", *(field.name for field in fields(SamplingParams))):
        assert f'"{name}"' in (batch.__doc__ or ""), name

"""`edgeinfer chat`: a conversation over pipes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.gguf.writer import write_gguf

Command = Callable[..., Any]


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "llama", "tokenizer.chat_template": "{{ messages }}"}, {})
    return str(path)


def test_lines_are_answered_with_the_whole_conversation(command: Command, engine: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello there\n\nand again\n/new\nonce more\n/quit\nnever read\n"))
    ended = command("chat", model)
    assert ended.code == 0
    assert ended.out == "1 MESSAGES, LAST: HELLO THERE\n3 MESSAGES, LAST: AND AGAIN\n1 MESSAGES, LAST: ONCE MORE\n"


def test_timings_go_to_standard_error(command: Command, engine: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    ended = command("chat", model, "--timings")
    assert ended.out == "1 MESSAGES, LAST: A\n" and "4 generated at 20.0/s" in ended.err


def test_system_instructions_stay(command: Command, engine: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n/new\nb\n"))
    assert command("chat", model, "--system", "be brief").out == "2 MESSAGES, LAST: A\n2 MESSAGES, LAST: B\n"


def test_a_message_that_does_not_fit_is_taken_back(command: Command, engine: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("too long\nshort\n"))
    ended = command("chat", model)
    assert (ended.code, ended.out) == (0, "1 MESSAGES, LAST: SHORT\n")
    assert "the prompt has 9 tokens" in ended.err and "/new begins a new conversation" in ended.err


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(command: Command, engine: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "interrupt_after", 2)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    ended = command("chat", model)
    assert (ended.code, ended.out) == (0, "1 MESSAGES,\n3 MESSAGES,\n")


def test_a_line_of_invalid_unicode_is_refused(command: Command, engine: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bad \xff\ngood\n"), encoding="utf-8"))
    ended = command("chat", model)
    assert (ended.code, ended.out) == (0, "1 MESSAGES, LAST: GOOD\n") and "not valid UTF-8 (byte 4)" in ended.err


def test_unknown_commands_get_help(command: Command, engine: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/what\n"))
    ended = command("chat", model)
    assert (ended.code, ended.out) == (0, "") and "/quit ends" in ended.err


def test_a_base_model_is_refused_before_it_is_loaded(command: Command, engine: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "base.gguf", {"general.architecture": "llama"}, {})
    ended = command("chat", str(tmp_path / "base.gguf"))
    assert ended.code == 2 and engine.loaded == []
    assert "has no chat template" in ended.err and "edgeinfer run" in ended.err

"""`edgeinfer run`: what goes where, and how it ends."""

from __future__ import annotations

import io
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from edgeinfer.backends.base import Placement

Command = Callable[..., Any]


def test_standard_output_is_the_text_alone(command: Command, engine: Any) -> None:
    ended = command("run", "m.gguf", "-p", "the capital of France")
    assert (ended.code, ended.out) == (0, "THE CAPITAL OF FRANCE")
    assert "4 generated at 20.0/s" in ended.err and "ended by stop; seed 7" in ended.err
    assert engine.closed == 1


def test_options_reach_the_engine(command: Command, engine: Any) -> None:
    ended = command(
        "run", "m.gguf", "--prompt", "a b c", "-n", "2", "--temperature", "0.5", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.1", "--seed", "42",
        "--stop", "x", "--stop", "y", "--backend", "llamacpp", "--threads", "3", "--context", "99", "--cache-type", "q8_0",
    )  # fmt: skip
    assert (ended.code, ended.out) == (0, "A B")
    assert "ended by length; seed 42" in ended.err
    given = {"model": "m.gguf", "backend": "llamacpp", "context": 99, "threads": 3, "cache_type": "q8_0", "provider": None, "minimum_share": None}
    assert engine.loaded == [given]


def test_json_is_the_last_line(command: Command, engine: Any) -> None:
    ended = command("run", "m.gguf", "-p", "héllo wörld", "--json")
    value = json.loads(ended.out.splitlines()[-1])
    assert ended.out.isascii()
    assert value["text"] == "HÉLLO WÖRLD"
    assert value["token_ids"] == [0, 1] and value["finish_reason"] == "stop" and value["seed"] == 7
    assert value["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4, "cached_tokens": 0}
    assert value["timings"]["first_token"] == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature is -1.0"),
        (["-n", "0"], "max_tokens is 0"),
        (["--top-p", "2"], "top_p is 2.0"),
        (["--stop", ""], "stop holds ''"),
        (["--temperature", "nan"], "temperature is nan"),
    ],
)
def test_wrong_values_are_one_line_and_nothing_is_loaded(command: Command, engine: Any, arguments: list[str], message: str) -> None:
    ended = command("run", "m.gguf", "-p", "a", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("edgeinfer: error: ") and message in ended.err and ended.err.count("\n") == 1
    assert engine.loaded == []


def test_an_error_of_the_engine_is_one_line(command: Command, engine: Any) -> None:
    ended = command("run", "m.gguf", "-p", "too long")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "edgeinfer: error: the prompt has 9 tokens, but the context holds 8 and one place is needed for the answer; "
        "shorten the prompt or load the model with a context above 9\n"
    )
    assert engine.closed == 1


def test_a_model_that_is_not_here(command: Command) -> None:
    ended = command("run", "smollm2-135m", "-p", "a")
    assert ended.code == 2
    assert ended.err.endswith("fetch it with: edgeinfer pull smollm2-135m\n") and ended.err.count("\n") == 1


def test_ctrl_c_keeps_what_was_printed_and_ends_with_130(command: Command, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "interrupt_after", 2)
    ended = command("run", "m.gguf", "-p", "a b c d")
    assert (ended.code, ended.out, ended.err) == (130, "A B", "\n")
    assert engine.closed == 1


def test_warnings_go_to_standard_error(command: Command, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "warnings", ("the context is smaller than asked for",))
    ended = command("run", "m.gguf", "-p", "a")
    assert ended.out == "A" and "edgeinfer: warning: the context is smaller than asked for\n" in ended.err


def test_the_prompt_can_come_from_standard_input(command: Command, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO("grün blau".encode())))
    assert command("run", "m.gguf", "-p", "-").out == "GRÜN BLAU"
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"ok \xff")))
    ended = command("run", "m.gguf", "-p", "-")
    assert ended.code == 2 and "not valid UTF-8 (byte 3)" in ended.err


def test_a_prompt_of_undecodable_bytes_is_refused(command: Command, engine: Any) -> None:
    ended = command("run", "m.gguf", "-p", os.fsdecode(b"bad \xff"))
    assert ended.code == 2 and "--prompt is not valid UTF-8 (byte 4)" in ended.err
    assert engine.loaded == []


def test_missing_arguments_are_named(command: Command) -> None:
    ended = command("run", "m.gguf")
    assert ended.code == 2 and "--prompt" in ended.err


def test_refused_memory_is_one_line(command: Command, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(engine, "stream", refused)
    ended = command("run", "m.gguf", "-p", "a")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("edgeinfer: error: the system refused more memory") and ended.err.count("\n") == 1


def test_more_threads_than_cores_are_warned_of(command: Command, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.core import host

    monkeypatch.delenv("EDGEINFER_THREADS", raising=False)
    monkeypatch.setattr(host, "usable_cores", lambda *_: host.UsableCores(2, "2 processors", (0, 1), ()))
    ended = command("run", "m.gguf", "-p", "a", "--threads", "3")
    assert (ended.code, ended.out) == (0, "A")
    assert ended.err.startswith("edgeinfer: warning: 3 threads (asked for) wait for each other on 2 cores (2 processors): this is slow\n")
    for arguments in (["--threads", "2"], []):
        assert "warning" not in command("run", "m.gguf", "-p", "a", *arguments).err


def test_a_provider_reaches_the_engine_and_what_it_runs_is_told(command: Command, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement("openvino", "opset21", "CPU", {"OpenVINOExecutionProvider": 3, "CPUExecutionProvider": 1}, 3)
    monkeypatch.setattr(engine, "capabilities", types.SimpleNamespace(placement=placement))
    ended = command("run", "m.gguf", "-p", "a", "--backend", "onnx", "--provider", "openvino:a=b", "--min-share", "0.7", "--json")
    assert ended.code == 0 and engine.loaded[0]["provider"] == "openvino:a=b" and engine.loaded[0]["minimum_share"] == 0.7
    assert "edgeinfer: provider openvino runs 3 of 4 nodes (OpenVINOExecutionProvider 3, CPUExecutionProvider 1) on CPU" in ended.err
    assert json.loads(ended.out.splitlines()[-1])["placement"]["share"] == 0.75

"""Fixtures for the command line: run it in this process, and an engine that needs no model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgeinfer
from edgeinfer.core.errors import ContextLengthError, InvalidRequestError
from edgeinfer.core.requests import SamplingParams
from edgeinfer.core.results import Completion, StreamEvent, Timings, Usage


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ended]:
    """`command("run", "MODEL", ...)`: runs the entry point in this process, with an empty home."""
    from edgeinfer.cli.main import main

    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["edgeinfer", *arguments])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
        output = capfd.readouterr()
        return Ended(code, output.out, output.err)

    return run


class FakeEngine:
    """Answers a prompt with its words in capitals, one token a word."""

    loaded: list[dict[str, Any]]
    warnings: tuple[str, ...] = ()
    interrupt_after: int | None = None
    capabilities = SimpleNamespace(placement=None)

    @classmethod
    def load(cls, model: str, **options: Any) -> FakeEngine:
        cls.loaded.append({"model": model, **options})
        return cls()

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        type(self).closed += 1

    closed = 0

    def _completion(self, prompt: Any, params: SamplingParams) -> Completion:
        if prompt == "explode":
            raise InvalidRequestError("this prompt explodes")
        if prompt == "too long":
            raise ContextLengthError(9, 8)
        words = ["<ids>"] if isinstance(prompt, list) else prompt.upper().split()
        kept = words[: params.max_tokens]
        reason = "stop" if len(kept) == len(words) else "length"
        text = " ".join(kept)
        return Completion(text, tuple(range(len(kept))), reason, Usage(len(words), len(kept)), Timings(0.25, 0.5, 10.0, 20.0), params.seed or 7)

    def generate(self, prompt: Any, params: SamplingParams) -> Completion:
        return self._completion(prompt, params)

    def generate_many(self, prompts: Sequence[Any], params: Sequence[SamplingParams]) -> list[Completion]:
        return [self._completion(prompt, item) for prompt, item in zip(prompts, params, strict=True)]

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[StreamEvent]:
        completion = self._completion(prompt, params)
        for index, word in enumerate(completion.text.split()):
            if index == self.interrupt_after:
                raise KeyboardInterrupt
            yield StreamEvent((" " if index else "") + word, (index,))
        yield StreamEvent("", (), completion)

    def chat(self, messages: Sequence[Any], params: SamplingParams) -> Completion:
        return self._completion(f"{len(messages)} messages, last: {messages[-1]['content']}", params)

    def chat_stream(self, messages: Sequence[Any], params: SamplingParams) -> Iterator[StreamEvent]:
        if messages[-1]["content"] == "too long":
            raise ContextLengthError(9, 8)
        return self.stream(f"{len(messages)} messages, last: {messages[-1]['content']}", params)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    """The class that commands load instead of the real engine."""
    monkeypatch.setattr(edgeinfer, "Engine", FakeEngine, raising=False)
    monkeypatch.setattr(FakeEngine, "loaded", [], raising=False)
    monkeypatch.setattr(FakeEngine, "closed", 0)
    return FakeEngine

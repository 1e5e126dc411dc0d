"""`edgeinfer batch`: answer a file of requests, one JSON object a line.

A request has "prompt" (a text or a list of token ids) or "messages", optionally "id" (anything; handed back) and the names of SamplingParams. A line
that cannot be answered gives a line with "error"; the others are answered all the same. Answers come in the order of the requests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from edgeinfer.cli import options

if TYPE_CHECKING:
    from edgeinfer.core.requests import SamplingParams
    from edgeinfer.engine import Engine

TOGETHER = 32  # requests that are handed to the engine at once


@dataclass(frozen=True)
class Request:
    """One line of input: what to answer, or `error`, why it cannot be."""

    number: int
    identifier: Any = None
    prompt: Any = None
    messages: Any = None
    params: SamplingParams | None = None
    error: Exception | None = None


def batch(
    source: Annotated[str, typer.Argument(metavar="IN.jsonl", help="requests, one JSON object a line; - is standard input")],
    target: Annotated[str, typer.Argument(metavar="OUT.jsonl", help="answers, one JSON object a line; - is standard output")],
    model: Annotated[str, typer.Option("--model", "-m", help="path of a GGUF file, or name of a pulled model")] = "smollm2-135m",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    backend: options.BackendName = "numba",
    provider: options.Provider = None,
    min_share: options.MinimumShare = None,
    threads: options.Threads = None,
    context: options.Context = None,
    cache_type: options.CacheType = None,
) -> None:
    """Answer a file of requests together. The options hold for lines that do not say otherwise.

    A request has "prompt" (a text or a list of token ids) or "messages" ([{"role": "user", "content": "..."}]), and may have "id", which comes back with
    its answer, "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop" and "ignore_eos".

    Ends with 1 when a request failed; its line of answers then has "error" instead of "text".
    """
    from edgeinfer.cli.console import loading, note
    from edgeinfer.core.errors import InvalidRequestError
    from edgeinfer.core.outputs import require_writable_file

    if target != "-" and source != "-" and os.path.exists(target) and os.path.exists(source) and os.path.samefile(target, source):
        raise InvalidRequestError(f"{target} is the file of requests; name another file for the answers")
    if target != "-":
        require_writable_file(Path(target), "OUT.jsonl")
    defaults = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    failed = answered = 0
    with (
        opened(source, "r") as lines,
        loading(model, backend=backend, context=context, threads=threads, cache_type=cache_type, provider=provider, minimum_share=min_share) as engine,
        opened(target, "w") as output,
    ):
        for warning in engine.warnings:
            note(f"edgeinfer: warning: {warning}")
        for requests in windows(read_requests(lines, defaults)):
            for answer in answers(engine, requests):
                write_line(output, answer)
                failed += "error" in answer
                answered += "error" not in answer
            note(f"{answered} answered, {failed} failed")
    if failed:
        note(f"edgeinfer: error: {failed} of {answered + failed} requests failed; their lines have a field \"error\"")
        raise SystemExit(1)


@contextmanager
def opened(name: str, mode: str) -> Iterator[TextIO]:
    """A file of UTF-8 lines, or a standard stream for "-". Bytes that are no UTF-8 are for `text_argument` to refuse, line by line.

    Raises InvalidRequestError when it cannot be opened.
    """
    import sys

    from edgeinfer.core.errors import InvalidRequestError

    if name == "-":
        yield sys.stdin if mode == "r" else sys.stdout
        return
    try:
        file = Path(name).open(mode, encoding="utf-8", errors="surrogateescape" if mode == "r" else "strict")  # noqa: SIM115 (closed below, outside the try that is about opening alone)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"cannot open {name!r}: {getattr(error, 'strerror', None) or error}") from error
    with file:
        yield cast("TextIO", file)


def write_line(output: TextIO, value: dict[str, Any]) -> None:
    """One whole line in one write, at once on its way to the disk: a reader never sees half an answer."""
    import json

    output.write(json.dumps(value, allow_nan=False) + "\n")
    output.flush()


def read_requests(lines: Iterable[str], defaults: dict[str, Any]) -> Iterator[Request]:
    """The requests of a file; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield read_request(number, line, defaults)


def read_request(number: int, line: str, defaults: dict[str, Any]) -> Request:
    """One request. What is wrong with it becomes its `error`: an unknown name, too, because a parameter that is ignored would change the answer."""
    import json

    from edgeinfer.cli.console import text_argument
    from edgeinfer.core.errors import InvalidRequestError
    from edgeinfer.core.requests import SamplingParams

    identifier = None
    try:
        value = json.loads(text_argument(f"line {number}", line))
        if not isinstance(value, dict):
            raise InvalidRequestError(f"line {number} is {type(value).__name__}, but must be a JSON object")
        identifier = checked_identifier(number, value.pop("id", None))
        prompt, messages = value.pop("prompt", None), value.pop("messages", None)
        if (prompt is None) == (messages is None):
            raise InvalidRequestError(f"line {number} must have either 'prompt' or 'messages'")
        names = {field.name for field in fields(SamplingParams)}
        if unknown := sorted(set(value) - names):
            known = ", ".join(["id", "prompt", "messages", *sorted(names)])
            raise InvalidRequestError(f"line {number} has the unknown field {unknown[0]!r}; known are {known}")
        return Request(number, identifier, prompt, messages, SamplingParams(**{**defaults, **value}))
    except (InvalidRequestError, TypeError) as error:
        return Request(number, identifier, error=error)
    except (ValueError, RecursionError) as error:  # also of a whole number with more digits than Python takes
        return Request(number, error=InvalidRequestError(f"line {number} is not JSON: {error}"))


def checked_identifier(number: int, identifier: Any) -> Any:
    """`identifier` as it came. Raises InvalidRequestError for one that no line of JSON can hand back: Python reads NaN and 1e999, which are no JSON."""
    import json

    from edgeinfer.core.errors import InvalidRequestError

    try:
        json.dumps(identifier, allow_nan=False)
    except ValueError:
        raise InvalidRequestError(f"line {number} has an 'id' with a number that JSON cannot hold (NaN or an infinity); use a text or a whole number") from None
    return identifier


def windows(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Lists of at most TOGETHER requests."""
    window: list[Request] = []
    for request in requests:
        window.append(request)
        if len(window) == TOGETHER:
            yield window
            window = []
    if window:
        yield window


def answers(engine: Engine, requests: list[Request]) -> Iterator[dict[str, Any]]:
    """The answers to requests in their order. Prompts run together; if one is refused, each is tried by itself."""
    from edgeinfer.core.errors import EdgeInferError

    prompts = [request for request in requests if request.error is None and request.messages is None]
    together: dict[int, Any] = {}
    try:
        completions = engine.generate_many([request.prompt for request in prompts], [request.params for request in prompts if request.params])
        together = {request.number: completion for request, completion in zip(prompts, completions)}
    except EdgeInferError:
        pass
    for request in requests:
        yield answer_one(engine, request, together.get(request.number))


def answer_one(engine: Engine, request: Request, completion: Any) -> dict[str, Any]:
    """The line of output for one request; `completion` is its answer where there is one already."""
    from edgeinfer.cli.run import as_object
    from edgeinfer.core.errors import EdgeInferError

    head = {"id": request.identifier, "line": request.number}
    try:
        if request.error is not None:
            raise request.error
        if completion is None and request.messages is not None:
            completion = engine.chat(request.messages, request.params)
        elif completion is None:
            completion = engine.generate(request.prompt, request.params)
    except (EdgeInferError, TypeError) as error:
        return {**head, "error": {"type": type(error).__name__, "message": str(error)}}
    return {**head, **as_object(completion)}

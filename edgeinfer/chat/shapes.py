"""The shapes that messages come in, and the others that a template may need. Only `template` uses this module.

A content is text, a list of parts, or None beside tool calls; the arguments of a call are an object, or that object as JSON. Some templates take all of
these; most expect one, and would put the other's Python form or a second layer of JSON into the prompt, or fail. `template` renders both and keeps the
shape that was sent where it does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from edgeinfer.core.errors import InvalidRequestError

Message = dict[str, Any]


@dataclass(frozen=True)
class OtherShape:
    """Another shape of messages. `traces`: what a template writes that did not expect the shape which was sent; or, of a `preferred` one, which is taken
    wherever it can be, what a template writes that did not expect this one."""

    of: Callable[[list[Message]], list[Message]]
    traces: tuple[str, ...]
    preferred: bool = False

    def is_needed(self, messages: Sequence[Message], as_sent: str, otherwise: str) -> bool:
        """Whether the other shape is to be taken, from what both were rendered to."""
        if self.preferred:
            return all(otherwise.count(trace) <= as_sent.count(trace) for trace in self.traces)
        if any(as_sent.count(trace) > otherwise.count(trace) for trace in self.traces):
            return True
        texts = (part["text"].strip() for message in messages for part in _parts(message))
        return any(text in otherwise and text not in as_sent for text in texts)


def fitting(messages: list[Message], render: Callable[[list[Message]], str | None]) -> list[Message]:
    """The messages in the shape that a template takes. `render` is the template, and gives None where it fails."""
    shapes = [shape for shape in _OTHER_SHAPES if shape.of(messages) != messages]
    if not shapes:
        return messages

    def shaped(others: Sequence[bool]) -> list[Message]:
        result = messages
        for shape, other in zip(shapes, others, strict=True):
            result = shape.of(result) if other else result
        return result

    for chosen in product((True, False), repeat=len(shapes)):
        rendered = render(shaped(chosen))
        if rendered is not None:
            break
    else:
        return shaped([True] * len(shapes))
    for place in [place for place, other in enumerate(chosen) if other]:
        tried = (*chosen[:place], False, *chosen[place + 1 :])
        as_sent = render(shaped(tried))
        if as_sent is not None and not shapes[place].is_needed(messages, as_sent, rendered):
            chosen, rendered = tried, as_sent
    return shaped(chosen)


def check_parts(place: int, content: Any) -> None:
    """Raises InvalidRequestError for a part of a message that is no text."""
    for part in content if isinstance(content, Sequence) and not isinstance(content, str | bytes) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            found = f"a part of type {kind!r}" if isinstance(part, Mapping) else f"a part that is a {type(part).__name__}"
            raise InvalidRequestError(f"message {place} has {found} in its content; parts must be texts: {{'type': 'text', 'text': '...'}}")
        if not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"message {place} has a part without a text; parts must be like {{'type': 'text', 'text': '...'}}")


def _parts(message: Message) -> list[Message]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _with_joined_parts(messages: list[Message]) -> list[Message]:
    """Parts are paragraphs of their own: that is how llama.cpp and vLLM join them too."""
    return [{**message, "content": "\n".join(part["text"] for part in _parts(message))} if _parts(message) else message for message in messages]


def _with_empty_texts(messages: list[Message]) -> list[Message]:
    """None, or nothing at all beside tool calls, is an empty text."""

    def is_none(message: Message) -> bool:
        return message["content"] is None if "content" in message else bool(message.get("tool_calls"))

    return [{**message, "content": ""} if is_none(message) or message.get("content") == [] else message for message in messages]


def _with_arguments(messages: list[Message], change: Callable[[Any], Any]) -> list[Message]:
    """Messages whose tool calls have other arguments; they may stand in the call or, as OpenAI has it, in its function."""

    def changed(call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        call = {**call, "arguments": change(call["arguments"])} if "arguments" in call else call
        return {**call, "function": changed(call["function"])} if isinstance(call.get("function"), dict) else call

    return [
        {**message, "tool_calls": [changed(call) for call in message["tool_calls"]]} if isinstance(message.get("tool_calls"), list) else message
        for message in messages
    ]


def _as_object(arguments: Any) -> Any:
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):  # a model wrote it: it stays what it is
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _as_json(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


_OTHER_SHAPES = (
    OtherShape(_with_joined_parts, ("'type': 'text'", '"type": "text"', '"type":"text"')),
    OtherShape(_with_empty_texts, ("None", "null", "[]")),
    OtherShape(lambda messages: _with_arguments(messages, _as_object), ("{'",), preferred=True),  # as transformers wants it
    OtherShape(lambda messages: _with_arguments(messages, _as_json), ("{'",)),
)

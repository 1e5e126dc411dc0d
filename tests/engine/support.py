"""What engine tests share: a byte tokenizer without a file, and an engine over the fake backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.fake import FakeBackend
from edgeinfer.engine import Engine

END = 256
BEGIN = 257


class ByteStream:
    """Bytes to text, holding back the bytes of an unfinished character."""

    def __init__(self) -> None:
        import codecs

        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """Token b is byte b; END ends a generation; BEGIN starts a text if `add_bos`."""

    vocabulary_size = 512
    end_of_generation_ids = frozenset({END})

    def __init__(self, add_bos: bool = False) -> None:
        self.add_bos = add_bos
        self.bos_id = BEGIN if add_bos else None

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        return [BEGIN] * (add_special and self.add_bos) + list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode("utf-8", "replace")

    def stream(self, skip_special: bool = False, *, starts_sequence: bool = True) -> ByteStream:
        return ByteStream()


def script(answer: str | bytes | Sequence[int], prompt: int, then: int = END) -> Callable[[Sequence[int]], int]:
    """A rule for the fake backend: after a prompt of `prompt` tokens come those of `answer`, and then always `then`."""
    tokens = list(answer.encode() if isinstance(answer, str) else answer)

    def rule(known: Sequence[int]) -> int:
        done = len(known) - prompt
        return tokens[done] if done < len(tokens) else then

    return rule


def fake_engine(
    rule: Callable[[Sequence[int]], int] | None = None,
    context: int = 256,
    add_bos: bool = False,
    backend: Callable[..., Backend] = FakeBackend,
    **options: Any,
) -> Engine:
    """An engine over the fake backend with the byte tokenizer."""
    fields = {"maximum_step_rows": 64, "maximum_sequences": 8, **options}
    return Engine(backend(BackendOptions(context=context, **fields), rule=rule), ByteTokenizer(add_bos))

"""What the engine needs of a tokenizer and a chat template, as protocols: the real ones live in their own layers, and tests bring small ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol


class TokenStream(Protocol):
    """Turns token ids into text piece by piece, never cutting a character."""

    def push(self, token: int, /) -> str: ...

    def finish(self) -> str: ...


class Tokenizer(Protocol):
    """Text to token ids and back. `bos_id` is None in a vocabulary that has no beginning-of-text token."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def end_of_generation_ids(self) -> Collection[int]: ...

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], /) -> str: ...

    def stream(self, skip_special: bool = False, *, starts_sequence: bool = True) -> TokenStream: ...


class Template(Protocol):
    """Messages of a chat to token ids."""

    def encode(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True
    ) -> list[int]: ...

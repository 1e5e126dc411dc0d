"""Token ids to text, one at a time: characters are never split, and the joined text is the text of all ids decoded at once.

`base.Tokenizer.decode` and `Tokenizer.stream` both run through this, so they cannot disagree.
"""

from __future__ import annotations

import codecs
from typing import Protocol


class PieceSource(Protocol):
    """What a `StreamDecoder` needs of a tokenizer."""

    @property
    def add_space_prefix(self) -> bool: ...
    def is_special(self, token_id: int) -> bool: ...
    def hides(self, token_id: int) -> bool: ...
    def token_bytes(self, token_id: int) -> bytes: ...


class PrefixRule:
    """Which bytes each token adds: `encode` puts a space before the text of a sequence and after each special token, so one is taken away there.

    Text that continues a sequence (`starts_sequence=False`) keeps its first space.
    """

    def __init__(self, source: PieceSource, skip_special: bool, starts_sequence: bool) -> None:
        self._source = source
        self._skip_special = skip_special
        self._drop_space = source.add_space_prefix and starts_sequence

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that the next token adds to the text."""
        source = self._source
        piece = source.token_bytes(token_id)
        if source.is_special(token_id):
            self._drop_space = source.add_space_prefix
            return b"" if self._skip_special and source.hides(token_id) else piece
        if self._drop_space:
            self._drop_space = False
            return piece.removeprefix(b" ")
        return piece


class StreamDecoder:
    """Decodes a sequence as it grows. `push` gives the text that is complete so far and has not been given yet, `finish` what is left.

    Bytes that are no UTF-8 become U+FFFD as soon as that is certain; a character that is cut off at the end becomes one U+FFFD in `finish`.
    """

    def __init__(self, source: PieceSource, skip_special: bool = False, starts_sequence: bool = True) -> None:
        self._rule = PrefixRule(source, skip_special, starts_sequence)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is incomplete. InvalidRequestError: the id is outside the vocabulary."""
        return self._decoder.decode(self._rule.bytes_of(token_id))

    def finish(self) -> str:
        """The rest: "" or the replacement for a character that was cut off. The decoder is then ready to go on with the same sequence."""
        return self._decoder.decode(b"", final=True)

"""`Tokenizer`: text to token ids and back, with llama.cpp's ids. Made by `load.load_tokenizer`; the engine, the chat layer and the faces use it.

Two switches that have nothing to do with each other: `add_special` puts BOS and EOS around a text as the file asks for, `parse_special` reads control
tokens that are written out in the text ('<|im_end|>') as those tokens. Both are off unless asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from edgeinfer.core.errors import InvalidRequestError, TokenizerError
from edgeinfer.tokenizer.bpe import bytes_of_piece
from edgeinfer.tokenizer.special import SpecialTokenFinder, TokenType
from edgeinfer.tokenizer.stream import PrefixRule, StreamDecoder
from edgeinfer.tokenizer.vocabulary import Vocabulary, byte_of_piece

_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
_SPECIAL = (*_HIDDEN, TokenType.USER_DEFINED)


class TextEncoder(Protocol):
    """The algorithm of a vocabulary: ordinary text to ids."""

    def encode(self, text: str, after_special: bool = True) -> list[int]: ...


class Tokenizer:
    """A vocabulary with its algorithm. Holds no file. Threads may share it."""

    def __init__(self, vocabulary: Vocabulary, encoder: TextEncoder, add_bos: bool, add_space_prefix: bool, byte_level: bool) -> None:
        """For `load`. add_bos, add_space_prefix: what the file says, or its model's default. byte_level: pieces are written in byte characters."""
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._byte_level = byte_level
        self._add_bos = add_bos
        self._add_space_prefix = add_space_prefix
        self._bytes: dict[int, bytes] = {}
        for token_id in self._ids_of_types((TokenType.BYTE,)):
            if byte_of_piece(vocabulary.pieces[token_id]) is None:
                raise TokenizerError(
                    f"tokenizer.ggml.tokens: token {token_id} is a byte token (tokenizer.ggml.token_type 6), but its text is "
                    f"{vocabulary.pieces[token_id]!r}; it must be '<0x00>' to '<0xFF>'"
                )

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are; ids are 0 ... vocabulary_size - 1."""
        return len(self._vocabulary.pieces)

    @property
    def model(self) -> str:
        """`tokenizer.ggml.model`: 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE) or 'gemma4'."""
        return self._vocabulary.model

    @property
    def pre_tokenizer(self) -> str | None:
        """`tokenizer.ggml.pre`; None if the file does not say."""
        return self._vocabulary.pre_tokenizer

    @property
    def bos_id(self) -> int | None:
        """Beginning of sequence; None: the vocabulary has none."""
        return self._vocabulary.named.bos

    @property
    def eos_id(self) -> int | None:
        """End of sequence; None: the vocabulary has none."""
        return self._vocabulary.named.eos

    @property
    def eot_id(self) -> int | None:
        """End of a turn; None: the vocabulary has none."""
        return self._vocabulary.named.eot

    @property
    def eom_id(self) -> int | None:
        """End of a message that expects a tool's answer; None: the vocabulary has none."""
        return self._vocabulary.named.eom

    @property
    def unk_id(self) -> int | None:
        """Unknown; None: the vocabulary has none."""
        return self._vocabulary.named.unk

    @property
    def pad_id(self) -> int | None:
        """Padding; None: the vocabulary has none."""
        return self._vocabulary.named.pad

    @property
    def end_of_generation_ids(self) -> frozenset[int]:
        """Every token that ends an answer: EOS, EOT, EOM, and those that llama.cpp knows by their text ('<|im_end|>', '<end_of_turn>' ...)."""
        return self._vocabulary.end_of_generation_ids

    @property
    def add_bos(self) -> bool:
        """Whether `add_special` puts BOS in front."""
        return self._add_bos

    @property
    def add_eos(self) -> bool:
        """Whether `add_special` puts EOS at the end."""
        return self._vocabulary.add_eos

    @property
    def add_space_prefix(self) -> bool:
        """Whether a text is encoded as if a space stood before it (SentencePiece), which decoding takes away again."""
        return self._add_space_prefix

    def token_text(self, token_id: int) -> str:
        """The token as the file writes it, U+2581 and byte characters included. InvalidRequestError: the id is outside the vocabulary."""
        self._check_id(token_id)
        return self._vocabulary.pieces[token_id]

    def token_type(self, token_id: int) -> TokenType:
        """The token's type, with llama.cpp's corrections. InvalidRequestError: the id is outside the vocabulary."""
        self._check_id(token_id)
        return TokenType(self._vocabulary.types[token_id])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text: maybe a part of a character; b"" for unused tokens. InvalidRequestError: outside the vocabulary."""
        found = self._bytes.get(token_id)
        if found is None:
            self._check_id(token_id)
            found = self._bytes[token_id] = self._bytes_of(token_id)
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether the token is found as a whole in texts: control, unknown and user-defined tokens."""
        return self._vocabulary.types[token_id] in _SPECIAL

    def hides(self, token_id: int) -> bool:
        """Whether `skip_special` leaves the token out: control and unknown tokens."""
        return self._vocabulary.types[token_id] in _HIDDEN

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False, *, stand_ins: Mapping[int, str] | None = None) -> list[int]:
        """Token ids of a text.

        User-defined tokens are found in any text, control tokens only with `parse_special`. With `add_special` a BOS is added where the file asks for
        it, even if the text begins with one (then with a warning); the same holds for EOS at the end.

        stand_ins: a `str.translate` table, applied after special tokens were found: characters that hide parts of a text from `parse_special`. The
        chat layer uses it so that a message cannot contain control tokens; with it, no text outside a found token becomes a control id.

        InvalidRequestError: not a string, or with half a surrogate pair in it.
        """
        _check_text(text)
        bos, eos = self.bos_id, self.eos_id
        encoded: list[int] = []
        if add_special and self.add_bos:
            assert bos is not None  # `load` has made sure
            encoded.append(bos)
        after_special = True
        fragments = (self._all_special if parse_special else self._user_defined).cut(text)
        if stand_ins is not None:
            fragments = self._revealed(fragments, stand_ins)
        encode = self._encoder.encode if stand_ins is None else self._encode_without_control
        for fragment in fragments:
            if isinstance(fragment, int):
                encoded.append(fragment)
                after_special = True
            else:
                encoded += encode(fragment, after_special)
                after_special = False
        if add_special and self.add_bos and len(encoded) > 1 and encoded[1] == bos:
            warnings.warn("the text begins with a BOS token, and the file asks for another one: the sequence begins with two", stacklevel=2)
        if add_special and self.add_eos:
            assert eos is not None
            if encoded and encoded[-1] == eos:
                warnings.warn("the text ends with an EOS token, and the file asks for another one: the sequence ends with two", stacklevel=2)
            encoded.append(eos)
        return encoded

    def decode(self, ids: Iterable[int], skip_special: bool = False, *, starts_sequence: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD. No other clean-up: what was encoded comes back.

        skip_special: leave out control and unknown tokens. starts_sequence: False keeps the first space of SentencePiece text that continues another.
        InvalidRequestError: an id is outside the vocabulary.
        """
        rule = PrefixRule(self, skip_special, starts_sequence)
        return b"".join([rule.bytes_of(token_id) for token_id in ids]).decode("utf-8", "replace")

    def stream(self, skip_special: bool = False, *, starts_sequence: bool = True) -> StreamDecoder:
        """A decoder for a sequence that grows; its joined text is that of `decode` with the same arguments."""
        return StreamDecoder(self, skip_special, starts_sequence)

    def control_texts(self) -> Sequence[str]:
        """The texts of all tokens that only `parse_special` finds (control and unknown tokens), by id."""
        return self._control_texts

    def control_texts_in(self, text: str) -> list[str]:
        """Those of `control_texts` that occur in `text`, the longest first."""
        return self._control.present(text)

    def _revealed(self, fragments: list[str | int], stand_ins: Mapping[int, str]) -> list[str | int]:
        """Fragments with their stand-ins translated. User-defined tokens are found in what was hidden, too: they are found in any text."""
        revealed: list[str | int] = []
        for fragment in fragments:
            revealed += [fragment] if isinstance(fragment, int) else self._user_defined.cut(fragment.translate(stand_ins))
        return revealed

    def _encode_without_control(self, text: str, after_special: bool) -> list[int]:
        """Encode a text; where merging would arrive at a control token, the text is cut behind that token's first character and encoded in parts."""
        encoded = self._encoder.encode(text, after_special)
        if not any(self.hides(token_id) for token_id in encoded):
            return encoded
        present = self.control_texts_in(text)
        cuts = sorted({match + 1 for special in present for match in _occurrences(text, special) if len(special) > 1})
        if not cuts:
            return encoded  # an unknown token for an unknown character: not a marker that somebody wrote
        encoded = []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            encoded += self._encoder.encode(text[start:end], after_special and start == 0)
        return encoded

    def _bytes_of(self, token_id: int) -> bytes:
        piece = self._vocabulary.pieces[token_id]
        kind = self._vocabulary.types[token_id]
        if kind in _SPECIAL:
            return piece.encode("utf-8", "surrogateescape")
        if kind == TokenType.BYTE:
            byte = byte_of_piece(piece)
            assert byte is not None
            return bytes([byte])
        if kind != TokenType.NORMAL:
            return b""
        if self._byte_level:
            return bytes_of_piece(piece)
        return piece.replace("▁", " ").encode("utf-8", "surrogateescape")

    @cached_property
    def _control_texts(self) -> tuple[str, ...]:
        return tuple(self._vocabulary.pieces[token_id] for token_id in self._ids_of_types(_HIDDEN))

    @cached_property
    def _all_special(self) -> SpecialTokenFinder:
        return self._finder(_SPECIAL)

    @cached_property
    def _user_defined(self) -> SpecialTokenFinder:
        return self._finder((TokenType.USER_DEFINED,))

    @cached_property
    def _control(self) -> SpecialTokenFinder:
        return self._finder(_HIDDEN)

    def _finder(self, kinds: tuple[TokenType, ...]) -> SpecialTokenFinder:
        vocabulary = self._vocabulary
        return SpecialTokenFinder(vocabulary.pieces, self._ids_of_types(kinds), vocabulary.strips_left, vocabulary.strips_right)

    def _ids_of_types(self, kinds: tuple[TokenType, ...]) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(np.frombuffer(self._vocabulary.types, np.uint8), kinds)).tolist()
        return found

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocabulary_size:
            raise InvalidRequestError(f"token id {token_id} is outside the vocabulary; ids go from 0 to {self.vocabulary_size - 1}")

    def __repr__(self) -> str:
        return f"Tokenizer({self._vocabulary.algorithm.value}, {self.vocabulary_size} tokens, pre-tokenizer {self.pre_tokenizer})"


def _occurrences(text: str, part: str) -> list[int]:
    places: list[int] = []
    place = text.find(part)
    while place >= 0:
        places.append(place)
        place = text.find(part, place + 1)
    return places


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(f"the text to encode is {type(text).__name__}; it must be a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has half a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start}; that is no Unicode character: decode "
            "the source of the text properly"
        ) from None

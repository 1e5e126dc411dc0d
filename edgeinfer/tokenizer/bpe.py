"""Byte-pair encoding: words from the pre-tokenizer, merged by rank. `load` builds a `BytePairEncoder`; `base.Tokenizer` asks it to encode text.

The merging of longer texts is the `tokenizers` library's wherever that gives llama.cpp's ids, and `merge_by_rank` (plain Python) where it would not:
the library drops characters that are no token before merging, instead of letting them part their neighbours, and refuses merges whose result is no token.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from edgeinfer.tokenizer.pretokenizers import PreTokenizer
from edgeinfer.tokenizer.words import KnownWords

if TYPE_CHECKING:
    from tokenizers.models import BPE

# Building the library's model of 150,000 merges takes 0.3 s and 90 MB, a table of ranks a tenth of that: a short prompt does not wait for the library.
_LIBRARY_AFTER = 20_000
"""Characters merged in Python before the library takes over."""


def _byte_characters() -> dict[int, str]:
    """The character that stands for each byte in GPT-2's vocabulary: itself where it is printable, else one from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    hidden = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(0x100 + place) for place, byte in enumerate(hidden)}


CHARACTER_OF_BYTE = _byte_characters()
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


class BytePairEncoder:
    """Encodes ordinary text (special tokens were cut out before) with a BPE vocabulary."""

    def __init__(self, ids: Mapping[str, int], merges: list[str], pre_tokenizer: PreTokenizer) -> None:
        self._ids = ids
        self._merges = merges
        self._pre_tokenizer = pre_tokenizer
        self._known_words = KnownWords()
        self._characters_merged = 0

    def encode(self, text: str, after_special: bool = True) -> list[int]:
        """Token ids of a text. Characters that the vocabulary cannot express at all are left out, as in llama.cpp."""
        if not self._pre_tokenizer.byte_level:
            text = text.replace(" ", "▁")
        return self._known_words.encode(self._pre_tokenizer.split(text), self._encode_word)

    def _encode_word(self, word: str) -> list[int]:
        pre_tokenizer = self._pre_tokenizer
        if pre_tokenizer.byte_level:
            word = word.encode("utf-8").decode("latin-1").translate(CHARACTER_OF_BYTE)
        whole = self._ids.get(word)
        if whole is not None and (pre_tokenizer.ignore_merges or (pre_tokenizer.newline_tokens and not word.strip("\n"))):
            return [whole]
        self._characters_merged += len(word)
        if self._characters_merged > _LIBRARY_AFTER and self._library is not None and self._single_characters.issuperset(word):
            return [token.id for token in self._library.tokenize(word)]
        return self._merge_by_rank(word)

    @cached_property
    def _library(self) -> BPE | None:
        """The library's merging; None if it cannot be exact for this vocabulary. Built when it is needed: decoding never does."""
        if not self._pre_tokenizer.byte_level or len(set(self._merges)) < len(self._merges):
            return None
        from tokenizers.models import BPE

        pairs: list[tuple[str, str]] = [(left, right) for left, _, right in (merge.partition(" ") for merge in self._merges)]
        try:
            return BPE(dict(self._ids), pairs)
        except Exception:  # the library raises plain Exception for a merge whose parts or result are no tokens
            return None

    @cached_property
    def _single_characters(self) -> frozenset[str]:
        """The byte characters that are tokens."""
        return frozenset(BYTE_OF_CHARACTER.keys() & self._ids.keys())

    def _merge_by_rank(self, word: str) -> list[int]:
        encoded: list[int] = []
        for piece in merge_by_rank(word, self._ranks):
            token = self._ids.get(piece)
            if token is not None:
                encoded.append(token)
                continue
            for byte in piece.encode("utf-8"):
                token = self._ids.get(chr(byte) if byte < 128 else "") if self._pre_tokenizer.byte_level else self._ids.get(f"<0x{byte:02X}>")
                if token is not None:
                    encoded.append(token)
        return encoded

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return dict(zip(reversed(self._merges), range(len(self._merges) - 1, -1, -1), strict=True))  # the first of equal merges comes last, and stays


def merge_by_rank(word: str, ranks: Mapping[str, int]) -> list[str]:
    """Merge the characters of a word, the pair of the lowest rank first and the leftmost among equals, in O(n log n).

    `ranks`: "left right" -> rank. Joined, the result is the word.
    """
    length = len(word)
    ends = list(range(1, length + 1))  # of the symbol that starts at an index; -1 once it was merged into its left neighbour
    previous = list(range(-1, length - 1))  # start of the symbol before the one that starts at an index
    candidates: list[tuple[int, int, int, int]] = []  # rank, start, start of the right symbol, end

    def consider(start: int, middle: int, end: int) -> None:
        rank = ranks.get(f"{word[start:middle]} {word[middle:end]}")
        if rank is not None:
            heapq.heappush(candidates, (rank, start, middle, end))

    for start in range(length - 1):
        consider(start, start + 1, start + 2)
    while candidates:
        _, start, middle, end = heapq.heappop(candidates)
        if ends[start] != middle or ends[middle] != end:
            continue
        ends[start] = end
        ends[middle] = -1
        if end < length:
            previous[end] = start
            consider(start, end, ends[end])
        if previous[start] >= 0:
            consider(previous[start], start, end)
    pieces: list[str] = []
    start = 0
    while start < length:
        pieces.append(word[start : ends[start]])
        start = ends[start]
    return pieces


def bytes_of_piece(piece: str) -> bytes:
    """The bytes that a byte-level piece stands for. A character that stands for no byte gives its own UTF-8 bytes."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return b"".join(
            bytes([BYTE_OF_CHARACTER[character]]) if character in BYTE_OF_CHARACTER else character.encode("utf-8", "surrogateescape") for character in piece
        )

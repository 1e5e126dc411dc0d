"""SentencePiece's byte-pair encoding: neighbouring symbols merge into the piece with the best score until no pair is a piece.

`load` builds a `SentencePieceEncoder` for vocabularies of tokenizer.ggml.model 'llama'; `base.Tokenizer` asks it to encode text.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeinfer.tokenizer.words import KnownWords

SPACE = "▁"  # U+2581 stands for a space in every piece


class SentencePieceEncoder:
    """Encodes ordinary text (special tokens were cut out before) with a SentencePiece vocabulary.

    ids: piece -> id; scores: f32[vocabulary]; unknown_id: for characters that are no piece where the vocabulary has no byte pieces.
    """

    def __init__(self, ids: Mapping[str, int], scores: NDArray[np.float32], add_space_prefix: bool, unknown_id: int) -> None:
        self._ids = ids
        self._scores = scores
        self._add_space_prefix = add_space_prefix
        self._unknown_id = unknown_id
        self._known_words = KnownWords()

    def encode(self, text: str, after_special: bool = True) -> list[int]:
        """Token ids of a text. `after_special`: it begins the sequence or follows a special token, so it gets the space prefix if there is one."""
        if self._add_space_prefix and after_special:
            text = " " + text
        return self._known_words.encode(self._word_starts.split(text.replace(" ", SPACE)), self._encode_word)

    @cached_property
    def _word_starts(self) -> re.Pattern[str]:
        """Where a text can be cut without changing its ids: before a space, unless a piece has that space after the same character in its inside.

        No merge crosses such a place, and merges on its two sides do not influence each other: only their order in time changes.
        """
        separator = "\udfff"  # in no piece: undecodable bytes became U+DC80 ... U+DCFF
        inside = set(re.findall(f"[^{SPACE}{separator}](?={SPACE})", separator.join(self._ids)))
        return re.compile(f"(?<=[^{SPACE}{re.escape(''.join(sorted(inside)))}])(?={SPACE})")

    @cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self._ids))

    @cached_property
    def _costs(self) -> list[float]:
        """The negated scores: the heap gives the smallest first."""
        costs: list[float] = (-self._scores).tolist()
        return costs

    def _encode_word(self, word: str) -> list[int]:
        ids, costs, longest = self._ids, self._costs, self._longest_piece
        length = len(word)
        ends = list(range(1, length + 1))  # of the symbol that starts at an index; -1 once it was merged into its left neighbour
        previous = list(range(-1, length - 1))  # start of the symbol before the one that starts at an index
        candidates: list[tuple[float, int, int, int]] = []  # cost, start, start of the right symbol, end
        for start in range(length - 1):
            token = ids.get(word[start : start + 2])
            if token is not None:
                candidates.append((costs[token], start, start + 1, start + 2))
        heapq.heapify(candidates)
        pop, push = heapq.heappop, heapq.heappush
        while candidates:
            _, start, middle, end = pop(candidates)
            if ends[start] != middle or ends[middle] != end:
                continue  # one of the two has merged with another symbol since
            ends[start] = end
            ends[middle] = -1
            if end < length:
                previous[end] = start
                after = ends[end]
                if after - start <= longest:
                    token = ids.get(word[start:after])
                    if token is not None:
                        push(candidates, (costs[token], start, end, after))
            before = previous[start]
            if before >= 0 and end - before <= longest:
                token = ids.get(word[before:end])
                if token is not None:
                    push(candidates, (costs[token], before, start, end))
        encoded: list[int] = []
        start = 0
        while start < length:
            end = ends[start]
            token = ids.get(word[start:end])
            if token is not None:
                encoded.append(token)
            else:
                encoded += self._byte_ids(word[start:end])
            start = end
        return encoded

    def _byte_ids(self, character: str) -> list[int]:
        """The byte pieces of a character that is no piece itself."""
        encoded: list[int] = []
        for byte in character.encode("utf-8"):
            token = self._ids.get(f"<0x{byte:02X}>")
            if token is None:
                token = self._ids.get(bytes([byte]).decode("utf-8", "surrogateescape"))
            if token is None:
                return [self._unknown_id]
            encoded.append(token)
        return encoded

"""Token ids of many texts, ours against the oracle's, with both switches (add special tokens, parse special tokens) both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Protocol


class Encoder(Protocol):
    """What both tokenizers can do."""

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]: ...


@dataclass(frozen=True)
class Mismatch:
    """One text whose ids differ."""

    text: str
    add_special: bool
    parse_special: bool
    ours: tuple[int, ...]
    oracle: tuple[int, ...]

    @property
    def first_difference(self) -> int:
        """The index of the first id that differs (the shorter length when one is the beginning of the other)."""
        equal = 0
        while equal < min(len(self.ours), len(self.oracle)) and self.ours[equal] == self.oracle[equal]:
            equal += 1
        return equal


@dataclass(frozen=True)
class TokenIds:
    """How many encodings were compared (four a text), how many ids that were, and what differed."""

    encodings: int
    ids: int
    mismatches: tuple[Mismatch, ...]

    @property
    def equal(self) -> bool:
        return not self.mismatches


def compare_token_ids(ours: Encoder, oracle: Encoder, texts: Iterable[str], progress: Callable[[int], None] = lambda texts: None) -> TokenIds:
    """Encodes every text four ways with both; `progress(1)` is called after each text."""
    encodings = ids = 0
    mismatches = []
    for text in texts:
        for add_special, parse_special in product((False, True), repeat=2):
            mine = tuple(ours.encode(text, add_special=add_special, parse_special=parse_special))
            theirs = tuple(oracle.encode(text, add_special=add_special, parse_special=parse_special))
            encodings += 1
            ids += len(theirs)
            if mine != theirs:
                mismatches.append(Mismatch(text, add_special, parse_special, mine, theirs))
        progress(1)
    return TokenIds(encodings, ids, tuple(mismatches))

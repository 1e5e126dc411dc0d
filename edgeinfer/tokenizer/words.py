"""Token ids of words that were encoded before. Text repeats its words, and merging a word takes far longer than finding it. The two encoders use this."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_MOST = 65_536
"""Words that are kept: some megabytes. One more, and all are forgotten."""
_LONGEST = 48
"""Characters of a word that is kept: longer ones hardly ever come again."""


class KnownWords:
    """The ids of words, as one encoder found them."""

    def __init__(self) -> None:
        self._ids: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str], encode_word: Callable[[str], list[int]]) -> list[int]:
        """The ids of the words, one after the other; `encode_word` is asked for those that are not known, and must always give a word the same ids."""
        known = self._ids
        encoded: list[int] = []
        for word in words:
            ids = known.get(word)
            if ids is None:
                ids = encode_word(word)
                if len(word) <= _LONGEST:
                    if len(known) >= _MOST:
                        known.clear()
                    known[word] = ids
            encoded += ids
        return encoded

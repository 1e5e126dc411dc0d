"""Known words: the same ids, with less work, and never more of them than a bound."""

from __future__ import annotations

from edgeinfer.tokenizer import words
from edgeinfer.tokenizer.words import KnownWords


def test_a_word_is_encoded_once_but_a_long_one_each_time() -> None:
    asked: list[str] = []

    def encode_word(word: str) -> list[int]:
        asked.append(word)
        return [len(word), 7]

    known, long = KnownWords(), "x" * (words._LONGEST + 1)
    assert known.encode(["a", "bc", "a", long, long], encode_word) == [1, 7, 2, 7, 1, 7, len(long), 7, len(long), 7]
    assert known.encode(["bc", "a"], encode_word) == [2, 7, 1, 7]
    assert asked == ["a", "bc", long, long]


def test_there_are_never_more_than_the_bound() -> None:
    known = KnownWords()
    ids = known.encode((str(number) for number in range(words._MOST + 10)), lambda word: [int(word)])
    assert ids == list(range(words._MOST + 10)) and len(known._ids) == 10

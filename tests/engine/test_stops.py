"""The stop matcher: nothing early, nothing late, wherever the pieces are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.stops import StopMatcher


def _feed(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece) for piece in pieces]
    shown.append(matcher.finish())
    return shown, matcher.matched


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (("nda sle",), "The red pa"),
        (("a sleep",), "The red pand"),
        (("zz", "nda sle"), "The red pa"),
        (("nda sle", "zz"), "The red pa"),
        (("The",), ""),
        (("eps",), "The red panda sle"),
        ((" red", "pa"), "The"),
        (("panda sleepx",), "The red panda sleeps"),
        ((), "The red panda sleeps"),
    ],
)
def test_the_text_before_a_stop_that_spans_tokens(stops: tuple[str, ...], text: str) -> None:
    shown, matched = _feed(stops, ["The", " red", " pa", "nda", " sle", "eps"])
    assert "".join(shown) == text
    assert matched == (text != "The red panda sleeps")


def test_a_stop_whose_start_repeats_is_found() -> None:
    assert _feed(("aab",), list("aaab"))[0] == ["", "", "a", "", ""]
    assert "".join(_feed(("abab",), list("aabaabab"))[0]) == "aaba"


def test_what_might_become_a_stop_is_held_until_it_is_known() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.push("the E") == "the "
    assert matcher.push("N") == ""
    assert matcher.push("ough") == "ENough"
    assert matcher.push("EN") == ""
    assert matcher.finish() == "EN"


def test_of_two_stops_in_one_piece_the_first_in_the_text_counts() -> None:
    shown, matched = _feed((" s", "nda sle"), ["pa", "nda", " sle"])
    assert ("".join(shown), matched) == ("pa", True)


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(("b",))
    assert matcher.push("abc") == "a"
    assert matcher.push("more") == "" and matcher.finish() == ""


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_shown_text_is_a_prefix_without_any_stop_and_complete_if_there_is_none(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, matched = _feed(tuple(stops), pieces)
    joined = "".join(shown)
    assert text.startswith(joined)
    assert matched == any(stop in text for stop in stops)
    if not matched:
        assert joined == text
    for length in range(len(shown)):
        assert not any(stop in "".join(shown[:length]) for stop in stops)
    if len(stops) == 1 and matched:
        assert joined == text[: text.index(stops[0])]

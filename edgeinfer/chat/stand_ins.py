"""Stand-ins: how the text of messages is kept apart from what a template writes.

A template mixes markers that it writes itself ('<|im_end|>') with text that a user, a tool or a model wrote, which may contain the same characters.
Before rendering, the characters of such markers in the messages are replaced by private characters, one for one, so that a template still trims,
slices and measures as before; when the rendered text is encoded, only what is not hidden in this way is read as a marker. Only `template` uses this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edgeinfer.core.errors import ChatTemplateError

_FIRST_PRIVATE = 0x100000  # plane 16; characters that the messages or the template contain themselves are passed over
_LAST_PRIVATE = 0x10FFFD


class StandIns:
    """One private character for each character that occurs in a marker.

    markers: the texts of all control tokens that occur in the messages. taken: characters that must not be used.
    """

    def __init__(self, markers: Sequence[str], hidden_characters: Iterable[str], taken: set[str]) -> None:
        characters = sorted({*hidden_characters, *(character for marker in markers for character in marker)})
        free = (chr(code) for code in range(_FIRST_PRIVATE, _LAST_PRIVATE + 1) if chr(code) not in taken)
        self._private: dict[str, str] = {}
        for character in characters:
            stand_in = next(free, None)
            if stand_in is None:
                raise ChatTemplateError("the messages use up all private characters of Unicode, which are needed to keep their text apart")
            self._private[character] = stand_in
        self.originals: dict[int, str] = {ord(stand_in): character for character, stand_in in self._private.items()}
        """A `str.translate` table from stand-ins back to what they stand for."""
        self._markers = sorted(markers, key=len, reverse=True)
        self._hidden_characters = {ord(character): self._private[character] for character in hidden_characters}

    def hide_markers(self, text: str) -> str:
        """The text with every whole marker hidden."""
        for marker in self._markers:
            if marker in text:
                text = text.replace(marker, "".join(self._private[character] for character in marker))
        return text

    def hide_beginnings(self, text: str) -> str:
        """The text with every marker hidden, and every character with which a marker could begin: no marker can arise where texts are joined."""
        return self.hide_markers(text).translate(self._hidden_characters)

    def reveal(self, text: str) -> str:
        """The text with every stand-in replaced by what it stands for."""
        return text.translate(self.originals)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of nested lists and mappings with `change` applied to every string in it, keys included. Everything else stays as it is."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_strings(item, change) for item in value]
    return value


def all_strings(value: Any) -> list[str]:
    """Every string in nested lists and mappings, keys included."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    map_strings(value, keep)
    return found

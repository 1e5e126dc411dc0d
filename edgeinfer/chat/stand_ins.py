"""Stand-ins: how the text of messages is kept apart from what a template writes.

A template mixes markers that it writes itself ('<|im_end|>') with text that a user, a tool or a model wrote, which may contain the same characters,
or parts that become a marker beside what the template writes ('<' + name + '>'). Before rendering, characters of the messages are replaced by others,
one for one, so that a template still measures and slices as before; when the rendered text is encoded, only what is not hidden in this way is read as
a marker. Only `template` uses this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Rare ideographs: printable, so that a template that writes the `repr` of something writes them as they are. Those that the messages or the template
# contain themselves are passed over.
FIRST_STAND_IN = 0x20000
LAST_STAND_IN = 0x2A6DF
_ESCAPED = re.compile(r"\\ud8[4-6][0-9a-f]\\ud[c-f][0-9a-f]{2}")

# Templates compare these with words of their own.
_STRUCTURE = frozenset({"role", "type"})
# Mappings with keys that somebody chose: names of parameters and arguments. A template writes such keys, and looks up none of them.
_NAMES_OF_OTHERS = frozenset({"properties", "arguments"})
# Templates trim white space and write JSON: hiding these characters would change what they do.
_NEVER_HIDDEN = frozenset('"\\\x7f') | {chr(code) for code in range(32)}


class StandIns:
    """Stand-ins for the characters of `texts`, those of `markers` first in case there are not enough.

    markers: the texts of control tokens that occur in the messages; beginnings: characters with which any control token begins.
    """

    def __init__(self, markers: Sequence[str], beginnings: Iterable[str], texts: Iterable[str], taken: set[str]) -> None:
        self._markers = sorted(markers, key=len, reverse=True)
        self._beginnings = set(beginnings)
        characters = dict.fromkeys(character for marker in self._markers for character in marker)
        characters |= dict.fromkeys(sorted(self._beginnings))
        characters |= dict.fromkeys(character for text in texts for character in text if not character.isspace() and character not in _NEVER_HIDDEN)
        free = (chr(code) for code in range(FIRST_STAND_IN, LAST_STAND_IN + 1) if chr(code) not in taken)
        self._stand_ins = dict(zip(characters, free, strict=False))
        self._all = {ord(character): stand_in for character, stand_in in self._stand_ins.items() if character not in _NEVER_HIDDEN}
        self._of_beginnings = {code: stand_in for code, stand_in in self._all.items() if chr(code) in self._beginnings}
        self.originals: dict[int, str] = {ord(stand_in): character for character, stand_in in self._stand_ins.items()}
        """A `str.translate` table from stand-ins back to what they stand for."""

    def hide_all(self, text: str) -> str:
        """The text with everything hidden but white space, quotes and backslashes."""
        return text.translate(self._all)

    def hide_beginnings(self, text: str) -> str:
        """The text with every marker hidden, and every character with which a marker could begin: no marker can arise where texts are joined."""
        return self.hide_markers(text).translate(self._of_beginnings)

    def hide_markers(self, text: str) -> str:
        """The text with every whole marker hidden."""
        for marker in self._markers:
            if marker in text:
                text = text.replace(marker, "".join(self._stand_ins[character] for character in marker))
        return text

    def hide(self, given: Mapping[str, Any], change: Callable[[str], str], change_keys: Callable[[str], str]) -> dict[str, Any]:
        """What the caller handed in, with `change` applied to its texts and `change_keys` to the keys that somebody chose."""
        return {name: self._hide(value, change, change_keys, False) for name, value in given.items()}

    def _hide(self, value: Any, change: Callable[[str], str], change_keys: Callable[[str], str], keys_of_others: bool) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [self._hide(item, change, change_keys, keys_of_others) for item in value]
        if not isinstance(value, dict):
            return value
        hidden: dict[Any, Any] = {}
        for key, item in value.items():
            if not keys_of_others and key in _STRUCTURE and isinstance(item, str):
                hidden[key] = self.hide_markers(item)
                continue
            new_key = key if not isinstance(key, str) else change_keys(key) if keys_of_others else self.hide_markers(key)
            hidden[new_key] = self._hide(item, change, change_keys, key in _NAMES_OF_OTHERS)
        return hidden

    def without_escapes(self, text: str) -> str:
        """The text with stand-ins that a template wrote as JSON escapes written as characters again."""

        def character(match: re.Match[str]) -> str:
            found: str = json.loads(f'"{match[0]}"')
            return found if ord(found) in self.originals else match[0]

        return _ESCAPED.sub(character, text)

    def reveal(self, text: str) -> str:
        """The text with every stand-in replaced by what it stands for."""
        return text.translate(self.originals)


def copied(value: Any) -> Any:
    """A copy of nested lists and mappings, with plain lists, dicts and strings in it. Everything else stays as it is."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {copied(key): copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return value


def all_strings(value: Any) -> list[str]:
    """Every string in nested lists and dicts, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    return [text for item in value for text in all_strings(item)] if isinstance(value, list) else []

"""Special tokens: which types they have, which of them end a generation, and how they are found in a text.

The rules are llama.cpp's (GGUF files leave half of this unsaid, and llama.cpp goes by the tokens' names). `vocabulary` and `base` use this module.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class NamedIds:
    """The ids with a role; None: the vocabulary has none."""

    KEYS: ClassVar[dict[str, tuple[str, ...]]] = {
        "bos": ("bos_token_id",),
        "eos": ("eos_token_id",),
        "eot": ("eot_token_id",),
        "eom": ("eom_token_id",),
        "unk": ("unknown_token_id",),
        "sep": ("seperator_token_id",),  # spelled so in the GGUF specification
        "pad": ("padding_token_id",),
        "mask": ("mask_token_id",),
        "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
        "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
        "fim_mid": ("fim_mid_token_id", "middle_token_id"),
        "fim_pad": ("fim_pad_token_id",),
        "fim_rep": ("fim_rep_token_id",),
        "fim_sep": ("fim_sep_token_id",),
    }

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    eom: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_pad: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None


# Where the file is silent, the first of these texts that is a token has the role (and is made a control token).
_TEXTS_OF_ROLES: dict[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}

_END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)

# Parts of an answer rather than its end (the channels of gpt-oss): shown, and found in any text.
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def correct_types_and_find_ends(ids: Mapping[str, int], types: bytearray, named: NamedIds, pieces: Sequence[str]) -> tuple[NamedIds, frozenset[int]]:
    """Complete `named` by the tokens' texts, change `types` where a name says more than the file, and collect the ids that end a generation."""
    for role, texts in _TEXTS_OF_ROLES.items():
        if getattr(named, role) is None:
            for text in texts:
                if text in ids:
                    types[ids[text]] = TokenType.CONTROL
                    named = replace(named, **{role: ids[text]})
                    break
    ends = {token for token in (named.fim_pad, named.fim_rep, named.fim_sep) if token is not None}
    for text in _END_TEXTS:
        if text in ids:
            ends.add(ids[text])
            types[ids[text]] = TokenType.CONTROL
    for text in _ALWAYS_SHOWN:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED
    ends |= {token for token in (named.eos, named.eot, named.eom) if token is not None}

    texts_of_ends = {pieces[token]: token for token in ends}
    calls = "<|call|>" in texts_of_ends or "<|calls|>" in texts_of_ends
    if "<|end|>" in texts_of_ends and calls and ("<|return|>" in texts_of_ends or "<|flush|>" in texts_of_ends):
        ends.discard(ids["<|end|>"])  # it ends a message inside an answer there, not the answer
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if "</s>" in texts_of_ends and ("<|tool_response>" in texts_of_ends or "<|plamo:eos|>" in texts_of_ends):
        ends.discard(ids["</s>"])  # an HTML tag there
        types[ids["</s>"]] = TokenType.NORMAL
    return named, frozenset(ends)


_C_SPACES = " \t\n\v\f\r"


class SpecialTokenFinder:
    """Cuts a text at special tokens: the longest token first over the whole text, then the next one in what is left."""

    def __init__(
        self, pieces: Sequence[str], token_ids: Sequence[int], strips_left: frozenset[int] = frozenset(), strips_right: frozenset[int] = frozenset()
    ) -> None:
        ordered = sorted(token_ids, key=lambda token: -len(pieces[token].encode("utf-8", "surrogateescape")))
        self._ids = {pieces[token]: token for token in ordered}  # in the order of search
        self._order = {text: place for place, text in enumerate(self._ids)}
        self._strips_left = strips_left
        self._strips_right = strips_right
        self._lengths: dict[str, list[int]] = {}
        for text in self._ids:
            lengths = self._lengths.setdefault(text[0], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        self._first_characters = re.compile("[" + re.escape("".join(self._lengths)) + "]") if self._lengths else None

    def present(self, text: str) -> list[str]:
        """The special texts that occur in `text`, in the order in which they are to be searched."""
        if self._first_characters is None:
            return []
        found: set[str] = set()
        for match in self._first_characters.finditer(text):
            start = match.start()
            for length in self._lengths[text[start]]:
                candidate = text[start : start + length]
                if candidate in self._ids:
                    found.add(candidate)
        return sorted(found, key=self._order.__getitem__)

    def cut(self, text: str) -> list[str | int]:
        """The text as a list of pieces of text (never empty) and ids of special tokens."""
        fragments: list[str | int] = [text] if text else []
        for special in self.present(text):
            token = self._ids[special]
            cut: list[str | int] = []
            for fragment in fragments:
                if isinstance(fragment, int):
                    cut.append(fragment)
                else:
                    self._cut_fragment(fragment, special, token, cut)
            fragments = cut
        return fragments

    def _cut_fragment(self, fragment: str, special: str, token: int, cut: list[str | int]) -> None:
        parts = fragment.split(special)
        for place, part in enumerate(parts):
            if place > 0 and token in self._strips_right:
                part = part.lstrip(_C_SPACES)
            if place < len(parts) - 1 and token in self._strips_left:
                part = part.rstrip(_C_SPACES)
            if part:
                cut.append(part)
            if place < len(parts) - 1:
                cut.append(token)

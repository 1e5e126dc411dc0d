"""The table of pre-tokenizers: a GGUF file's `tokenizer.ggml.pre` name -> how a text is cut into words before byte-level BPE merges inside each word.

The cuts decide the ids, so they follow llama.cpp to the character, even where its habits differ from the tokenizer that a model was trained with. As
there, a pattern with Unicode classes runs over a collapsed text in which every character beyond ASCII is replaced by a stand-in for its class
(`unicode_classes`), with white space, digits and letter case counted in ASCII; then Python's own `re` is exact and its Unicode version does not
matter. `bpe` calls `PreTokenizer.split`; adding a name is one line in `_NAMES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from edgeinfer.core.errors import TokenizerError
from edgeinfer.tokenizer.unicode_classes import (
    HAN_LETTER,
    HAN_OTHER,
    LETTER,
    MARK,
    NUMBER,
    PUNCTUATION,
    SYMBOL,
    collapse,
    replace_wide_whitespace,
)

Span = tuple[int, int]
Stage = str | Callable[[str, list[Span]], list[Span]]

# What \p{...} stands for in a collapsed text: the ASCII members and the stand-in. All kinds of letters count as one, as in llama.cpp.
_CLASSES = {
    "N": "0-9" + NUMBER,
    "L": "A-Za-z" + LETTER,
    "P": r"!-#%-*,-/:;?@\[-\]_{}" + PUNCTUATION,
    "M": MARK,
    "S": r"$+<->\^`|~" + SYMBOL,
    "Han": HAN_LETTER + HAN_OTHER,
    "HanL": HAN_LETTER,
}

_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER_THEN_LOWER = r"[^\r\n\p{L}\p{N}]?" + f"[A-Z{LETTER}]*[a-z{LETTER}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?" + f"[A-Z{LETTER}]+[a-z{LETTER}]*"

_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
_GPT4O = rf"{_UPPER_THEN_LOWER}(?:{_CONTRACTION})?|{_UPPER}(?:{_CONTRACTION})?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}"
_CJK_WORDS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CJK_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3_WORDS = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_ALPHABETS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d"
    "\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"
    "\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"
    "\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    "\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_ASIAN_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-"
    "\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How to cut a text into words, and what a pre-tokenizer's name says beyond that.

    `stages` run one after the other, each inside the pieces of the one before: a pattern (its matches and the gaps between them become pieces), or a
    function from pieces to pieces. `ignore_merges`: a word that is a token is that token, whatever the merges say. `add_bos`: the file's default.
    `byte_level`: words are merged as GPT-2's byte characters; otherwise as plain characters, with byte tokens as a last resort and U+2581 for spaces.
    `newline_tokens`: a word of line feeds alone that is a token is that token.
    """

    stages: tuple[Stage, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True
    separate_han: bool = False
    newline_tokens: bool = False

    def split(self, text: str) -> list[str]:
        """The words of the text, in order; joined they are the text."""
        if not text:
            return []
        spans: list[Span] = [(0, len(text))]
        collapsed = collapse(text, self.separate_han)
        for stage in self.stages:
            if callable(stage):
                spans = stage(collapsed, spans)
                continue
            pattern, uses_classes = _compiled(stage)
            target = collapsed if uses_classes else replace_wide_whitespace(text)
            if len(self.stages) == 1 and target is text:
                words: list[str] = pattern.findall(text)
                if sum(map(len, words)) == len(text):
                    return words
            spans = _cut_at_matches(pattern, target, spans)
        return [text[start:end] for start, end in spans]


@cache
def _compiled(pattern: str) -> tuple[re.Pattern[str], bool]:
    """The pattern for a collapsed text, and whether it needs one: `\\p{X}` becomes the members of the class."""
    expanded: list[str] = []
    inside = False
    uses_classes = False
    position = 0
    while position < len(pattern):
        if pattern.startswith(r"\p{", position):
            close = pattern.index("}", position)
            members = _CLASSES[pattern[position + 3 : close]]
            expanded.append(members if inside else f"[{members}]")
            uses_classes = True
            position = close + 1
            continue
        width = 2 if pattern[position] == "\\" else 1
        if width == 1 and pattern[position] in "[]":
            inside = pattern[position] == "["
        expanded.append(pattern[position : position + width])
        position += width
    return re.compile("".join(expanded), re.ASCII), uses_classes or LETTER in pattern


def _cut_at_matches(pattern: re.Pattern[str], text: str, spans: list[Span]) -> list[Span]:
    pieces: list[Span] = []
    for start, end in spans:
        last = start
        for match in pattern.finditer(text, start, end):
            first, after = match.span()
            if first > last:
                pieces.append((last, first))
            if after > first:
                pieces.append((first, after))
            last = after
        if last < end:
            pieces.append((last, end))
    return pieces


def _cut_trailing_whitespace(collapsed: str, spans: list[Span]) -> list[Span]:
    """White space at the end of each piece becomes a piece (a pattern `\\s+$` would be quadratic on long runs of spaces)."""
    pieces: list[Span] = []
    for start, end in spans:
        cut = start + len(collapsed[start:end].rstrip(" \t\n\r\f\v"))
        pieces += [(first, after) for first, after in ((start, cut), (cut, end)) if after > first]
    return pieces


def _cut_digits_in_threes(collapsed: str, spans: list[Span]) -> list[Span]:
    """Numbers end pieces so that groups of three digits count from the right. What stands before a number stays with its first group."""
    numbers = _compiled(r"\p{N}+")[0]
    pieces: list[Span] = []
    for start, end in spans:
        last = start
        for match in numbers.finditer(collapsed, start, end):
            first, after = match.span()
            for cut in range(first + ((after - first) % 3 or 3), after + 1, 3):
                pieces.append((last, cut))
                last = cut
        if last < end:
            pieces.append((last, end))
    return pieces


def _cut_before_threes(collapsed: str, spans: list[Span]) -> list[Span]:
    """Runs of ASCII digits are cut before each group of three that counts from the right."""
    digits = re.compile("[0-9]+")
    pieces: list[Span] = []
    for start, end in spans:
        last = start
        for match in digits.finditer(collapsed, start, end):
            first, after = match.span()
            for cut in range(first + (after - first) % 3, after, 3):
                if cut > last:
                    pieces.append((last, cut))
                    last = cut
        if last < end:
            pieces.append((last, end))
    return pieces


_DEFAULT = PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_SMOLLM = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_PLAIN_QWEN2 = PreTokenizer((_QWEN2,))
_PLAIN_LLAMA3 = PreTokenizer((_LLAMA3,))
_LLAMA3_MODELS = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_PLAIN_GPT4O = PreTokenizer((_GPT4O,))
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _CJK_AND_KANA, rf"{_DEEPSEEK3_WORDS}[\r\n]*|{_LINES_AND_SPACES}"))
_PLAIN_BLOOM = PreTokenizer((_BLOOM,))
_LETTERS_AND_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_TINY_AYA = PreTokenizer(
    (
        _cut_digits_in_threes,
        rf"{_LETTERS_AND_MARKS}(?:{_CONTRACTION})?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}",
    )
)
_BAILING = PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",))
_LINES = r"[^\n]+|\n+"
_GEMMA4 = PreTokenizer((_LINES,), byte_level=False, newline_tokens=True, add_bos=True)

_NAMES: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert"), _PLAIN_GPT2),
    **dict.fromkeys(("jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling"), _PLAIN_GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _SMOLLM),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"), _PLAIN_QWEN2),
    "qwen35": PreTokenizer((rf"{_CONTRACTION}|{_LETTERS_AND_MARKS}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}",)),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}",)),
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "seed-coder": PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES_AND_SPACES}",)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"), _LLAMA3_MODELS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _PLAIN_LLAMA3),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), ignore_merges=True)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer(
        (_LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + "|".join([rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)]) + r"|\s{1,2}(?!\S)|\s",)
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _PLAIN_GPT4O),
    "granite-embed-multi-97m": PreTokenizer(
        (_GPT4O.replace(f"A-Z{LETTER}", f"A-Z{LETTER}{MARK}").replace(f"a-z{LETTER}", f"a-z{LETTER}{MARK}"),), ignore_merges=True
    ),
    "tekken": PreTokenizer((rf"{_UPPER_THEN_LOWER}|{_UPPER}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}",), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA),
    "youtu": PreTokenizer(
        (
            "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|"
            + _CJK_AND_KANA,
            rf"{_LETTERS_AND_MARKS}(?:{_CONTRACTION})?|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}",
        ),
        ignore_merges=True,
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_ALPHABETS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            _cut_trailing_whitespace,
            _CJK_WORDS,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WORDS, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _CJK_AND_KANA, rf"{_DEEPSEEK3_WORDS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _PLAIN_BLOOM),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "chameleon": PreTokenizer(("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2), add_bos=True),
    "kimi-k2": PreTokenizer(
        (
            r"[\p{Han}]+|[^\r\n\p{L}\p{N}\p{HanL}]?\p{L}+(?:" + _CONTRACTION + r")?|\p{N}{1,3}"
            rf"| ?[^\s\p{{L}}\p{{N}}\p{{HanL}}]+[\r\n]*|{_LINES_AND_SPACES}",
        ),
        separate_han=True,
    ),
    "superbpe": PreTokenizer((r"\p{N}+", _cut_before_threes)),
    "afmoe": PreTokenizer((_cut_digits_in_threes, _ASIAN_SCRIPTS, rf"{_DEEPSEEK3_WORDS}[\r\n]*|{_LINES_AND_SPACES}")),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA4),
    "sarvam-moe": PreTokenizer((_LINES,), byte_level=False),
}


def pre_tokenizer_names() -> tuple[str, ...]:
    """Every name that `find_pre_tokenizer` knows."""
    return tuple(_NAMES)


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a GGUF name. TokenizerError: the name is unknown."""
    found = _NAMES.get(name)
    if found is None:
        raise TokenizerError(
            f"the vocabulary names the pre-tokenizer '{name}' (tokenizer.ggml.pre), which edgeinfer does not know; guessing one would give other "
            "token ids than the model was trained on. Convert the model with a known pre-tokenizer, or ask for this one to be added"
        )
    return found

"""The table of pre-tokenizers: a GGUF file's `tokenizer.ggml.pre` name -> how a text is cut into words before byte-level BPE merges inside each word.

The cuts decide the ids, so they follow llama.cpp to the character, including its habits where they differ from the tokenizer a model was trained with.
As there, a pattern with Unicode classes runs over a collapsed text in which every character beyond ASCII is replaced by a stand-in for its class
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
_UPPER_THEN_LOWER = r"[^\r\n\p{L}\p{N}]?[A-Z%s]*[a-z%s]+" % (LETTER, LETTER)
_UPPER = r"[^\r\n\p{L}\p{N}]?[A-Z%s]+[a-z%s]*" % (LETTER, LETTER)

_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
_GPT4O = (
    rf"{_UPPER_THEN_LOWER}(?:{_CONTRACTION})?|{_UPPER}(?:{_CONTRACTION})?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}"
)
_CJK_WORDS = "[一-龥ࠀ-一가-퟿]+"
_CJK_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3_WORDS = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_ALPHABETS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_ASIAN_SCRIPTS = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"


@dataclass(frozen=True)
class PreTokenizer:
    """How to cut a text into words, and what a pre-tokenizer's name says beyond that.

    `stages` run one after the other, each inside the pieces of the one before: a pattern (its matches and the gaps between them become pieces), or a
    function from pieces to pieces. `ignore_merges`: a word that is a token is that token, whatever the merges say. `add_bos`: the file's default.
    `byte_level`: words are merged as GPT-2's byte characters; otherwise as plain characters, with byte tokens as the last resort and U+2581 for spaces.
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
        (
            _LLAMA3.removesuffix(r"\s+(?!\S)|\s+")
            + "|".join([rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)])
            + r"|\s{1,2}(?!\S)|\s",
        )
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _PLAIN_GPT4O),
    "granite-embed-multi-97m": PreTokenizer(
        (_GPT4O.replace(f"A-Z{LETTER}", f"A-Z{LETTER}{MARK}").replace(f"a-z{LETTER}", f"a-z{LETTER}{MARK}"),), ignore_merges=True
    ),
    "tekken": PreTokenizer(
        (rf"{_UPPER_THEN_LOWER}|{_UPPER}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}",), ignore_merges=True, add_bos=True
    ),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA),
    "youtu": PreTokenizer(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK_AND_KANA,
            rf"{_LETTERS_AND_MARKS}(?:{_CONTRACTION})?|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}",
        ),
        ignore_merges=True,
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_ALPHABETS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
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
    "chameleon": PreTokenizer(
        ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2), add_bos=True
    ),
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
            f"the vocabulary names the pre-tokenizer '{name}' (tokenizer.ggml.pre), which edgeinfer does not know; guessing one would give other token "
            "ids than the model was trained on. Convert the model with a known pre-tokenizer, or ask for this one to be added"
        )
    return found

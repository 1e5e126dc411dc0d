"""The texts of `edgeinfer verify`: running text for teacher forcing, prompts for greedy generation, and odd strings for the tokenizer.

The running texts are files beside this module (`corpus/*.txt`), written for this purpose; they travel in the wheel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.verify.teacher_forcing import Chunk

KINDS = ("prose", "code", "languages")
"""The running texts: English prose; Python, C, SQL, TypeScript, shell and Rust; eighteen languages other than English."""

MAXIMUM_CHUNK = 768
"""Tokens fed at once: above the sliding windows of 512 that real models have, and short enough for attention in float64."""

DEFAULT_TOKENS = 2112

GREEDY_PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived",
    "def fibonacci(n):\n    ",
    "The three most important rules of good writing are",
    "Water boils at 100 degrees Celsius because",
    "SELECT name, COUNT(*) FROM orders",
    "Die Hauptstadt von Deutschland ist",
    "Il était une fois",
    "今天天气很好，",
    "1, 1, 2, 3, 5, 8, 13,",
)


def running_text(kind: str) -> str:
    """One of the running texts, by its kind."""
    return (Path(__file__).with_name("corpus") / f"{kind}.txt").read_text(encoding="utf-8")


def teacher_forcing_chunks(encode: Callable[[str], Sequence[int]], leading: Sequence[int], tokens: int) -> list[Chunk]:
    """At least `tokens` judged positions, shared equally by the kinds, in chunks of at most MAXIMUM_CHUNK that each begin with `leading` (BOS).

    `encode` gives the ids of a text without special tokens. Raises InvalidRequestError when the corpus is too short for `tokens`.
    """
    if tokens < len(KINDS):
        raise InvalidRequestError(f"{tokens} tokens were asked for; verify needs at least {len(KINDS)}, one for each kind of text")
    share = -(-tokens // len(KINDS))
    pieces = -(-share // MAXIMUM_CHUNK)
    length = -(-share // pieces)  # tokens fed in each piece; one more is read, as the last target
    chunks = []
    for kind in KINDS:
        ids = tuple(encode(running_text(kind)))
        # Without BOS the first token of a piece is only fed; with BOS it is judged too. Pieces overlap by the token that is the last target.
        step = length - len(leading)
        if step < 1:
            least = len(KINDS) * len(leading) + 1
            raise InvalidRequestError(f"{tokens} tokens were asked for; with this model's leading tokens verify needs at least {least}")
        if len(ids) < step * pieces + 1:
            most = len(KINDS) * pieces * max(0, (len(ids) - 1) // pieces + len(leading))
            raise InvalidRequestError(
                f"{tokens} tokens were asked for, but the {kind} text of the corpus has {len(ids)} with this vocabulary; ask for at most {most}"
            )
        for piece in range(pieces):
            window = ids[piece * step : (piece + 1) * step + 1]
            chunks.append(Chunk(kind, (*leading, *window[:-1]), (*leading, *window)[1:]))
    return chunks


_ODD_TEXTS = (
    "a",
    " a",
    "a ",
    "  two  spaces   three    four     five",
    "\n",
    "\n\n\n",
    "\t\ttabs\tand spaces \t \n \n\tmixed \r\n lines\r",
    " \u00a0 no-break \u2003 em space \u200b zero width \u3000 ideographic",
    "It's we're I'LL they'd you've 'tis don'T",
    "1234567890 3.14159 1,000,000 0x1F 1e-9 ½ ² ٣٤٥ १२३ ⅷ",
    "C'est l'été à Besançon; naïve façade, œuvre, ß, Straße, İstanbul, ıi",
    "e\u0301 and \u00e9, A\u030a and \u00c5, \u1112\u1161\u11ab and \ud55c",
    "Привет, мир! Γειά σου Κόσμε! שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "你好，世界！こんにちは世界。カタカナとひらがな、漢字。안녕하세요 세계 繁體中文字",
    "😀 😃😄 👩‍👩‍👧‍👦 👍🏽 🇫🇷🇩🇪 ❤️ ☃︎ 🏳️‍🌈 a😀b",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒜 𐍈 𠜎 𠜱 🜁",
    "if (x >= 10 && y != 0) { return x / y; } // divide\n\telse\n\t\tthrow;",
    "    def f(self, *args, **kwargs) -> None:\n        pass\n\n\n    # end\n",
    "https://example.org/path?query=1&other=%20#fragment user@example.org C:\\temp\\file.txt",
    "!!!???...---___===+++***///\\\\\\~~~```'''\"\"\"",
    "CamelCaseWord snake_case_word kebab-case-word SCREAMING_CASE HTTPServer2Go",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\x00\x01\x02 control \x1b[0m \x7f \ufeff bom \ufffd replacement",
    "\u2581lower one eighth block \u2581\u2581 \u0120 \u010a <0x0A> <0xFF>",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "<s>text</s> <bos><eos><unk><pad> <start_of_turn>user\nhi<end_of_turn>\n",
    "<|endoftext|> before<|endoftext|>after <|end|> <|user|> [INST] [/INST] <<SYS>>",
    "<|im_start <|im_end|>> <|im_start|><|im_start|> half <|im_ tokens |im_end|>",
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> <think></think> <|fim_prefix|>x<|fim_suffix|>',
)

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz" * 2 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "0123456789" + "        \n\t.,;:!?'\"()[]{}<>|/\\-_=+*&^%$#@~`",
    "äöüßéèêëàâçñøåæœ ÄÖÜÉÈ ",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя АБВГД ",
    "αβγδεζηθικλμνξοπρστυφχψω ",
    "的一是不了人我在有他这中大来上国说们到时 ，。",
    "あいうえおかきくけこアイウエオカキクケコー ",
    "가나다라마바사아자차카타파하 ",
    "ابتثجحخدذرزسشصضطظعغ ",
    "अआइईउऊकखगघचछजझ\u093e\u093f\u0940\u094d ",
    "😀😂🎉🚀👍🏽❤\ufe0f\u200d🌈☃ ",
)


def tokenizer_texts(random_texts: int = 300) -> list[str]:
    """Texts whose ids are compared: odd ones by hand, the running texts whole and line by line, and seeded random mixtures of scripts."""
    lines = [line for kind in KINDS for line in running_text(kind).split("\n") if line]
    chooser = random.Random(20)
    mixtures = []
    for _ in range(random_texts):
        alphabets = chooser.sample(_ALPHABETS, chooser.randint(1, 3))
        mixtures.append("".join(chooser.choice(chooser.choice(alphabets)) for _ in range(chooser.randint(1, 60))))
    return [*_ODD_TEXTS, *(running_text(kind) for kind in KINDS), *lines, *mixtures]

"""Small but valid vocabularies for tiny models: byte-level BPE and SentencePiece, as GGUF metadata that llama.cpp loads too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeinfer.gguf.writer import typed

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Each merge makes the token of its two joined halves; "Ġ" stands for the space, as in GPT-2.
_MERGES = (
    "h e", "t he", "Ġ the", "i n", "a n", "an d", "Ġ and", "e r", "o n", "r e", "Ġ t", "Ġ a", "o u", "l l", "Ġ w", "o r", "Ġw or", "l d",
    "Ġwor ld", "he ll", "hell o", "Ġ he", "Ġhe ll", "Ġhell o", "in g", "Ġ i", "Ġi s", "Ġ o", "Ġo f", "1 2", "12 3",
)  # fmt: skip
_PIECES = (
    "▁t", "he", "▁the", "in", "▁a", "an", "nd", "▁and", "er", "on", "re", "ou", "▁w", "or", "ld", "▁wor", "▁world", "ll", "lo", "▁hello", "hello",
    "ing", "▁is", "▁of", "▁▁", "▁▁▁▁", "12", "123",
)  # fmt: skip
_BPE_CONTROL = ("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<|pad|>")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens with their `tokenizer.*` metadata; `texts` are the tokens as the file spells them."""

    texts: tuple[str | bytes, ...]
    metadata: Mapping[str, Any]
    bos: int
    eos: int

    @property
    def size(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Piece:
    """A token to add to a vocabulary: what it decodes to, and its token type."""

    text: str | bytes
    token_type: int = NORMAL


def byte_characters() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself where it is printable, else the next unused one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(256 + len(characters) - len(printable))
    return characters


def bpe_text(text: str | bytes) -> str:
    """What a byte-level BPE vocabulary calls these bytes."""
    characters = byte_characters()
    return "".join(characters[byte] for byte in (text.encode() if isinstance(text, str) else text))


def bpe_vocabulary(pieces: Sequence[Piece] = (), *, pre: str = "llama-bpe", add_bos: bool = True) -> Vocabulary:
    """256 byte tokens (token b is byte b), the products of some English merges, five control tokens, then `pieces`.

    A piece of one byte, or one that is a token already, is not added again.
    """
    texts: list[str | bytes] = [character for _, character in sorted(byte_characters().items())]
    for merge in _MERGES:
        product = merge.replace(" ", "")
        if product not in texts:
            texts.append(product)
    types = [NORMAL] * len(texts) + [CONTROL] * len(_BPE_CONTROL)
    texts += _BPE_CONTROL
    for piece in pieces:
        spelled = bpe_text(piece.text) if piece.token_type == NORMAL else piece.text
        if spelled not in texts:
            texts.append(spelled)
            types.append(piece.token_type)
    bos, eos, padding = (texts.index(text) for text in ("<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"))
    return Vocabulary(
        tuple(texts),
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": typed(types, "INT32"),
            "tokenizer.ggml.merges": list(_MERGES),
            "tokenizer.ggml.bos_token_id": bos,
            "tokenizer.ggml.eos_token_id": eos,
            "tokenizer.ggml.padding_token_id": padding,
            "tokenizer.ggml.add_bos_token": add_bos,
        },
        bos,
        eos,
    )


def sentencepiece_text(text: str | bytes) -> str | bytes:
    """What a SentencePiece vocabulary calls these characters; a single byte that is no character is a byte token."""
    if isinstance(text, bytes):
        if len(text) == 1:
            return f"<0x{text[0]:02X}>"
        return text.replace(b" ", "▁".encode())
    return text.replace(" ", "▁")


def sentencepiece_vocabulary(pieces: Sequence[Piece] = (), *, add_bos: bool = True, add_space_prefix: bool = True) -> Vocabulary:
    """<unk>, <s>, </s>, 256 byte tokens (token 3 + b is byte b), some English pieces with falling scores, single characters, then `pieces`.

    A piece that is a token already is not added again; every other piece scores below all built-in ones.
    """
    texts: list[str | bytes] = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(texts)
    for text in (*_PIECES, "▁", *(chr(code) for code in range(0x21, 0x7F)), "é", "ü", "ß", "你", "好"):
        scores.append(float(-(len(texts) - 259)))
        texts.append(text)
        types.append(NORMAL)
    for piece in pieces:
        spelled = sentencepiece_text(piece.text) if piece.token_type == NORMAL else piece.text
        if spelled not in texts:
            scores.append(float(-(len(texts) - 259)))
            texts.append(spelled)
            types.append(piece.token_type)
    return Vocabulary(
        tuple(texts),
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.scores": typed(scores, "FLOAT32"),
            "tokenizer.ggml.token_type": typed(types, "INT32"),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": add_bos,
            "tokenizer.ggml.add_eos_token": False,
            "tokenizer.ggml.add_space_prefix": add_space_prefix,
        },
        1,
        2,
    )

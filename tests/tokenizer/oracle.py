"""llama.cpp's own tokenizer as an oracle, and random texts to compare with it. Needs llama-cpp-python; import it inside tests."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp


@llama_cpp.llama_log_callback
def _quiet(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """llama.cpp reports on standard error otherwise."""


class LlamaCppTokenizer:
    """The vocabulary of a GGUF file in llama.cpp; a context manager."""

    def __init__(self, path: Path) -> None:
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._model, path
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        raw = text.encode("utf-8")
        room = len(raw) + 16
        ids = (ctypes.c_int32 * room)()
        count = llama_cpp.llama_tokenize(self._vocabulary, raw, len(raw), ids, room, add_special, parse_special)
        assert count >= 0
        return list(ids[:count])

    def piece(self, token_id: int) -> bytes:
        buffer = ctypes.create_string_buffer(512)
        count = llama_cpp.llama_token_to_piece(self._vocabulary, token_id, buffer, len(buffer), 0, True)
        assert count >= 0
        return buffer.raw[:count]

    def ends_generation(self, token_id: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, token_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        llama_cpp.llama_model_free(self._model)


_SPACES = (" ", "  ", "\n", "\n\n", "\t", "\r\n", "   ", "\u00a0", "\u3000", "\u2028", "\x85", "\u200b", " \n ", "\x0b", "\x0c", "\x1c")
_APOSTROPHES = ("don't", "I'LL", "we've", "'re", " 'S", "x'ſ", "O'Reilly", "'d'", "’s")
_CODE = ("def f(x):\n    return x+1", "<html>", '{"a": [1, 2]}', "//--==++", "!!!??", "/usr/bin", "$100", "`a`", "#include <x>", "....", "___")
_PROSE = (
    "Hello world",
    "The quick brown fox",
    "これは日本語です。",
    "Привет мир",
    "你好，世界！",
    "안녕하세요",
    "ภาษาไทย",
    "हिन्दी",
    "😀👩\u200d👩\u200d👧🏽",
)
_PLANES = ((0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x110000))


def random_text(generator: random.Random, special: Sequence[str]) -> str:
    """A few parts of every kind: all planes, white space, digits, code, control characters, and special tokens, whole and cut off."""
    parts: list[str] = []
    for _ in range(generator.randint(1, 8)):
        kind = generator.randrange(12)
        if kind == 0:
            parts.append("".join(chr(generator.randrange(32, 127)) for _ in range(generator.randint(1, 12))))
        elif kind == 1:
            parts.append(generator.choice(_SPACES) * generator.randint(1, 3))
        elif kind == 2:
            parts.append("".join(generator.choice("0123456789²½٣०Ⅷ①") for _ in range(generator.randint(1, 9))))
        elif kind == 3:
            parts.append("".join(chr(generator.randrange(*generator.choice(_PLANES))) for _ in range(generator.randint(1, 6))))
        elif kind == 4:
            parts.append(generator.choice(_APOSTROPHES))
        elif kind == 5 and special:
            parts.append(generator.choice(special))
        elif kind == 6:
            parts.append(generator.choice(_CODE))
        elif kind == 7:
            parts.append("".join(generator.choice("aAbBçÇéÉßжЖقমा́中あ한ไ") for _ in range(generator.randint(1, 8))))
        elif kind == 8:
            parts.append("".join(chr(generator.randrange(1, 32)) for _ in range(generator.randint(1, 3))))
        elif kind == 9:
            parts.append(generator.choice(_PROSE))
        elif kind == 10 and special:
            token = generator.choice(special)
            parts.append(token[: generator.randint(1, len(token))])
        else:
            parts.append(generator.choice("aeiou ▁") * generator.randint(1, 20))
    return "".join(parts)


def with_pre_tokenizer(source: Path, name: str, target: Path) -> Path:
    """A copy of a vocabulary-only file that names another pre-tokenizer."""
    raw = source.read_bytes()
    key = b"tokenizer.ggml.pre"
    value = raw.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    (length,) = struct.unpack_from("<Q", raw, value)
    target.write_bytes(raw[:value] + struct.pack("<Q", len(name)) + name.encode() + raw[value + 8 + length :])
    return target

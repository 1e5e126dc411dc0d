"""Bar 5: the ids that llama.cpp's own tests expect, for llama-spm, llama-bpe, gpt-2, qwen2 and phi-3: all equal.

    EDGEINFER_LLAMACPP_MODELS=.../vendor/llama.cpp/models python bench/bars/05_vocabularies.py

The folder of llama-cpp-python's source archive; without the variable, where `make test` unpacks it.
"""

from __future__ import annotations

import time
from pathlib import Path

from common import ROOT, bar, finish, unable

from edgeinfer.core import env
from edgeinfer.tokenizer import load_tokenizer

NAMES = ("llama-spm", "llama-bpe", "gpt-2", "qwen2", "phi-3")
SEPARATOR = "\n__ggml_vocab_test__\n"


def folder() -> Path:
    """Where the vocabularies and the expected ids are."""
    given = env.value("EDGEINFER_LLAMACPP_MODELS")
    found = [Path(given)] if given else sorted((ROOT / ".cache" / "llama-cpp-python").glob("*/vendor/llama.cpp/models"))
    if not found or not found[-1].is_dir():
        unable("no vocabularies of llama.cpp: set EDGEINFER_LLAMACPP_MODELS to vendor/llama.cpp/models, or let `make test` unpack them")
    return found[-1]


def main() -> None:
    source = folder()
    for name in NAMES:
        base = source / f"ggml-vocab-{name}.gguf"
        texts = base.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
        expected = [[int(part) for part in line.split()] for line in base.with_suffix(".gguf.out").read_text(encoding="ascii").splitlines()]
        began = time.perf_counter()
        tokenizer = load_tokenizer(base)
        opened = time.perf_counter() - began
        wrong = [text for text, ids in zip(texts, expected) if tokenizer.encode(text) != ids]
        for text in wrong[:3]:
            print(f"  differs: {text[:60]!r}")
        compared = min(len(texts), len(expected))
        figures = f"{compared - len(wrong)} of {compared} texts, {sum(map(len, expected))} ids, opened in {opened:.3f} s"
        bar(f"{name}: ids equal", not wrong and compared > 0 and len(texts) - len(expected) in (0, 1), figures)
    finish()


main()

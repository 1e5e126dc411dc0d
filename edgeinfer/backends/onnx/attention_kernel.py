"""Which of its two kernels ONNX Runtime's attention takes on the CPU provider. Called while a session is made.

Its default goes through keys and values in tiles, so that little memory is needed. The other one computes the scores of all rows with all positions as
one product a head, which the memory plan has room for. It took 0.65 of the other's processor time in prompts of 512 tokens with the heads of SmolLM2-135M
(0.73 with those of Qwen2.5-Coder-0.5B, 0.6 to 0.9 with those of Gemma 3), 0.8 in decoding at 2,000 positions, and about the same in the worst case.
It shares heads out, the default shares tiles: with more threads than heads some would have nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

VARIABLE = "ORT_GQA_DISABLE_FLASH_ATTENTION"
"""ONNX Runtime has no option of a session for it. It looks at the variable when it makes a node's kernel, and never again."""

_lock = Lock()


@contextmanager
def attention_kernel(threads: int, heads: int) -> Iterator[None]:
    """Sessions that are made meanwhile take the faster kernel for so many threads and query heads; whoever sets the variable decides instead."""
    if threads > heads:
        yield
        return
    with _lock:
        given = VARIABLE in os.environ
        os.environ.setdefault(VARIABLE, "1")
        try:
            yield
        finally:
            if not given:
                del os.environ[VARIABLE]

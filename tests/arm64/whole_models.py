"""Small models with every weight format, and the digest of their logits: what must be the same bits on every CPU."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import BackendOptions
from tests.backends.support import Driver, Rows
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

CONTEXT = 96
LENGTH = 40
SMALL_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_BLOCKS = ("Q4_K", "Q5_K", "Q6_K")


def write_models(folder: Path) -> list[Path]:
    """One model for each format, and one for each architecture."""
    paths = [tiny_llama(folder / f"llama-{name}.gguf", weight_format=name) for name in ("F16", "BF16", *SMALL_BLOCKS)]
    paths += [tiny_llama(folder / f"llama-{name}.gguf", width=256, heads=8, feed_forward=256, layers=1, weight_format=name) for name in K_BLOCKS]
    paths += [tiny_qwen2(folder / "qwen2.gguf", weight_format="Q8_0"), tiny_gemma3(folder / "gemma3.gguf", weight_format="Q8_0")]
    return paths


def options(instruction_set: str | None, threads: int = 2) -> BackendOptions:
    return BackendOptions(
        context=CONTEXT, threads=threads, cache_tokens=4 * CONTEXT, maximum_step_rows=64, instruction_set=instruction_set, prewarm=True
    )


def logits_digest(path: Path, instruction_set: str | None) -> str:
    """SHA-256 of the logits of all positions of one prompt: in one chunk, and in chunks of 7 down to single tokens beside another sequence."""
    from edgeinfer.backends.numba.backend import NumbaBackend

    backend = NumbaBackend.load(path, options(instruction_set))
    try:
        random = np.random.default_rng(11)
        tokens = random.integers(0, backend.capabilities.vocabulary, LENGTH).tolist()
        driver = Driver(backend)
        whole = driver.whole(1, tokens)
        cuts = [0, 7, 14, 21, *range(22, LENGTH + 1)]
        parts = [driver.run(Rows(2, start, tokens[start:end]), Rows(3, start, tokens[start:end]))[0] for start, end in pairwise(cuts)]
        assert np.array_equal(np.concatenate(parts).view(np.int32), whole.view(np.int32))
        assert driver.burst(4, Rows(2, LENGTH - 1, tokens[-1:])) == [driver.greedy(2, tokens, 4)]  # by bounds, where there are any, and without
        return hashlib.sha256(whole.tobytes()).hexdigest()
    finally:
        backend.close()

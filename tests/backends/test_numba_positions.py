"""What the numba backend makes of positions: scaled rope far beyond the original context, and the exact reach of a window, in every mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer import Engine
from tests.model.plain_forward import plain_llama_logits
from tests.support.tiny_models import tiny_gemma3, tiny_llama

WINDOW = 8
LINEAR = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 64}


def logits(path: Path, ids: list[int], chunk: int | None = None) -> NDArray[np.float32]:
    with Engine.load(path, context=256, threads=2, cache_type="f32", chunk=chunk) as engine:
        return engine.logits(ids)


@pytest.mark.parametrize("scaled", ["factors", "linear"])
def test_scaled_rope_is_that_of_a_plain_forward_pass(scaled: str, tmp_path: Path) -> None:
    if scaled == "factors":
        path = tiny_llama(tmp_path / "scaled.gguf", tensors={"rope_freqs.weight": np.geomspace(1, 30, 8).astype(np.float32)})
    else:
        path = tiny_llama(tmp_path / "scaled.gguf", metadata=LINEAR)
    ids = [int(token) for token in np.random.default_rng(8).integers(0, 292, 201)]
    ours, plain = logits(path, ids), plain_llama_logits(path, ids, rope_divisor=4.0 if scaled == "linear" else 1.0)
    for position in (1, 63, 64, 200):
        assert np.abs(ours[position] - plain[position]).max() < 1e-4


@pytest.mark.parametrize("chunk", [64, 5, 1], ids=["whole prompt", "chunks", "one by one"])
def test_a_position_sees_itself_and_those_that_its_window_reaches(chunk: int, tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "window.gguf", layers=1, sliding_window=WINDOW)
    ids = [int(token) for token in np.random.default_rng(9).integers(3, 250, 24)]
    before = logits(path, ids, chunk)
    for changed in (0, 7, 15):
        others = [*ids[:changed], ids[changed] + 1, *ids[changed + 1 :]]
        seen = np.flatnonzero((logits(path, others, chunk) != before).any(axis=1))
        assert seen.tolist() == list(range(changed, changed + WINDOW))

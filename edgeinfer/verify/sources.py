"""The real sources of logits: an engine (ours, or llama.cpp behind the same class) and the NumPy reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.core.requests import SamplingParams
from edgeinfer.verify.metrics import Logits

if TYPE_CHECKING:
    from edgeinfer import Engine

REFERENCE_BLOCK_BYTES = 300_000_000
"""Bytes of a block of the reference's float64 logits. Every block dequantizes the output matrix anew, so blocks are as large as memory may bear."""


class EngineSource:
    """Any `Engine`: teacher forcing with its own kernels, and greedy generation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def logits(self, token_ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        return self._engine.iterate_logits(list(token_ids))

    def greedy(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        return self._engine.generate(list(token_ids), SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)).token_ids


class ReferenceSource:
    """The NumPy reference over one GGUF file. Slow: every call runs the whole model in float64."""

    def __init__(self, model: Path) -> None:
        from edgeinfer.gguf.reader import GGUFFile
        from edgeinfer.model.build import build_program

        self._file = GGUFFile.open(model)
        self._program = build_program(self._file)

    def logits(self, token_ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        from edgeinfer.model.reference import reference_logit_blocks

        position = 0
        rows = max(1, REFERENCE_BLOCK_BYTES // (8 * self._program.vocabulary))
        for block in reference_logit_blocks(self._file, token_ids, block=rows, program=self._program):
            yield position, block
            position += len(block)

    def close(self) -> None:
        """Gives the mapped file back."""
        self._file.close()

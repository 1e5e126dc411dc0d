"""A backend without a model: the null device on which scheduler and engine are tested in milliseconds.

It takes paging seriously: token ids are stored in pages, and every output is computed from what the sequence's page tables lead to, so that a wrong
table, a page shared by mistake or a step left out changes the output. With a GGUF file it takes the vocabulary's size from it; the weights are not
looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions, CacheGroup, Capabilities, refuse_undeclared
from edgeinfer.core.errors import EngineClosedError
from edgeinfer.core.memory_plan import MemoryPlan
from edgeinfer.core.steps import OutputKind, Step, StepOutputs

DEFAULT_VOCABULARY = 512
PAGE_SIZE = 16
MAXIMUM_PASSES = 8
_EMPTY = -1

Rule = Callable[[Sequence[int]], int]


class FakeBackend:
    """Deterministic logits from the tokens of a sequence.

    `rule` gives the next token for the tokens so far (default: a hash of them); its logit is the largest of the row, the others are small and
    depend on the tokens too. Cache groups: one that keeps everything, and one with a window for each entry of `windows`.
    """

    def __init__(self, options: BackendOptions, vocabulary: int = DEFAULT_VOCABULARY, rule: Rule | None = None, windows: Sequence[int] = ()) -> None:
        tokens = options.cache_tokens or options.context * options.maximum_sequences
        pages = max(1, tokens // PAGE_SIZE)
        groups = tuple(CacheGroup(f"fake.{index}", PAGE_SIZE, pages, window) for index, window in enumerate([0, *windows]))
        self._vocabulary = vocabulary
        self._rule = rule or _hashed(vocabulary)
        self._pages = [np.full((group.pages, PAGE_SIZE), _EMPTY, dtype=np.int32) for group in groups]
        self._closed = False
        self.released: list[int] = []
        self.capabilities = Capabilities(
            uses_block_tables=True,
            cache_groups=groups,
            bit_exact_batches=True,
            bit_exact_chunks=True,
            vocabulary=vocabulary,
            context=options.context,
            maximum_step_rows=options.maximum_step_rows,
            maximum_sequences=options.maximum_sequences,
            threads=1,
            description="fake: no model, tokens are a hash of the tokens before",
            maximum_passes=MAXIMUM_PASSES,
        )
        self.memory_plan = MemoryPlan(0, sum(pages.nbytes for pages in self._pages), 0, 0, 0, 0, 2**40, "not measured")

    @classmethod
    def load(cls, model: Path, options: BackendOptions) -> FakeBackend:
        """`model` may be any GGUF file with a vocabulary, or a path at which there is no file."""
        if not model.is_file():
            return cls(options)
        from edgeinfer.gguf.reader import GGUFFile
        from edgeinfer.gguf.values import StringArray

        with GGUFFile.open(model) as file:
            tokens = file.metadata.get("tokenizer.ggml.tokens")
            return cls(options, vocabulary=len(tokens) if isinstance(tokens, StringArray) else DEFAULT_VOCABULARY)

    def step(self, step: Step) -> StepOutputs:
        if self._closed:
            raise EngineClosedError("the fake backend was closed")
        refuse_undeclared(step, self.capabilities)
        rows = np.flatnonzero(step.outputs == OutputKind.LOGITS).astype(np.int32)
        logits = self._pass(step, rows)
        if step.burst is None:
            return StepOutputs(logits, rows)
        largest = [logits.argmax(axis=1).astype(np.int32)]
        while len(largest) < step.burst.passes and not np.isin(largest[-1], step.burst.end_ids).any() and not step.burst.interrupt[0]:
            step = dataclasses.replace(step, token_ids=largest[-1], slots=step.slots + 1, rope_positions=step.rope_positions + 1)
            logits = self._pass(step, rows)
            largest.append(logits.argmax(axis=1).astype(np.int32))
        return StepOutputs(logits, rows, np.array(largest))

    def release(self, sequence_ids: Sequence[int]) -> None:
        self.released.extend(sequence_ids)

    def close(self) -> None:
        self._closed = True

    def _pass(self, step: Step, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        for row in range(step.rows):
            table = step.sequences[step.sequence[row]]
            slot = int(step.slots[row])
            for pages, ids in zip(self._pages, table.pages, strict=True):
                pages[ids[slot // PAGE_SIZE], slot % PAGE_SIZE] = step.token_ids[row]
        return np.array([self._logits(step, int(row)) for row in rows], dtype=np.float32).reshape(len(rows), self._vocabulary)

    def _logits(self, step: Step, row: int) -> NDArray[np.float32]:
        table = step.sequences[step.sequence[row]]
        slot = int(step.slots[row])
        history = self._read(0, table.pages[0], 0, slot)
        for index, group in enumerate(self.capabilities.cache_groups[1:], start=1):
            first = max(0, slot - group.window + 1)
            if self._read(index, table.pages[index], first, slot) != history[first:]:
                raise AssertionError(f"cache group {group.name} does not hold the tokens of positions {first} to {slot}")
        logits = np.full(self._vocabulary, -float(sum(history) % 7), dtype=np.float32)
        logits[:: 1 + len(history) % 5] += np.float32(0.5)
        logits[self._rule(history)] = np.float32(8.0)
        return logits

    def _read(self, group: int, ids: NDArray[np.int32], first: int, last: int) -> list[int]:
        tokens = []
        for position in range(first, last + 1):
            page = int(ids[position // PAGE_SIZE])
            token = int(self._pages[group][page, position % PAGE_SIZE])
            if page < 0 or token == _EMPTY:
                raise AssertionError(f"position {position} of cache group {group} lies in page {page}, where nothing was written")
            tokens.append(token)
        return tokens


def _hashed(vocabulary: int) -> Rule:
    def next_token(tokens: Sequence[int]) -> int:
        value = 0
        for token in tokens:
            value = (value * 1_000_003 + token + 1) % 2_147_483_647
        return value % vocabulary

    return next_token

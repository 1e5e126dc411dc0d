"""Embeddings: the final hidden states of a prompt, and what pooling makes of them. `Engine.embed` calls this; the engine's thread fills it.

Every pooling sees the hidden states of the whole prompt at once, so that its sums do not depend on how the prompt was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.errors import InvalidRequestError, UnsupportedModelError
from edgeinfer.scheduler import Sequence, Verdict

POOLINGS = ("mean", "last", "cls", "none")
"""mean: of all tokens; last and cls: the last and the first token's; none: every token's."""

_BY_NUMBER = {0: None, 1: "mean", 2: "cls", 3: "last"}  # llama_pooling_type; 0 is what converters write where nothing is said


class Embedding:
    """Consumer of a sequence's hidden states: puts the pooled embedding into `queue`, or the error that ended the sequence."""

    unseen_tokens = 0  # nothing is chosen here

    def __init__(self, tokens: int, pooling: str, normalize: bool) -> None:
        self.queue: SimpleQueue[NDArray[np.float32] | BaseException] = SimpleQueue()
        self._tokens = tokens
        self._pooling = pooling
        self._normalize = normalize
        self._blocks: list[NDArray[np.float32]] = []

    @property
    def first_position(self) -> int:
        """The first position whose hidden state is needed."""
        return self._tokens - 1 if self._pooling == "last" else 0

    @property
    def paused(self) -> bool:
        """The rows of a prompt are small: nobody waits for a reader."""
        return False

    def rows(self, sequence: Sequence, first_position: int, hidden: NDArray[np.float32], largest: NDArray[np.int32] | None) -> Verdict:
        self._blocks.append(hidden.copy())
        finished = first_position + len(hidden) == self._tokens
        if finished:
            self.queue.put(pooled(np.concatenate(self._blocks), self._pooling, self._normalize))
        return Verdict(finished=finished)

    def failed(self, error: BaseException) -> None:
        self.queue.put(error)


def pooled(hidden: NDArray[np.float32], pooling: str, normalize: bool) -> NDArray[np.float32]:
    """float32[width] from hidden states float32[tokens, width], or float32[tokens, width] for none; `normalize`: of length 1 (zeros stay zeros)."""
    values = hidden.astype(np.float64)
    if pooling == "mean":
        values = values.mean(axis=0)
    elif pooling != "none":
        values = values[-1 if pooling == "last" else 0]
    if normalize:
        lengths = np.sqrt((values * values).sum(axis=-1, keepdims=True))
        values = values / np.where(lengths > 0, lengths, 1.0)
    return values.astype(np.float32)


def chosen_pooling(wanted: str | None, metadata: Mapping[str, Any]) -> str:
    """The pooling asked for, else the file's, else mean.

    Raises InvalidRequestError for one that there is not, UnsupportedModelError for a file whose own pooling is none of these: a reranker's (4).
    """
    if wanted is not None:
        if wanted not in POOLINGS:
            raise InvalidRequestError(f"pooling is {wanted!r}; it must be one of {', '.join(POOLINGS)}, or None for what the file says")
        return wanted
    key = f"{metadata.get('general.architecture')}.pooling_type"
    number = metadata.get(key, 0)
    if not isinstance(number, int | np.integer) or number not in _BY_NUMBER:
        raise UnsupportedModelError(
            f"the file's {key} is {number}, which edgeinfer does not have (it has {', '.join(POOLINGS)}; 4 is a reranker's); name one of them to use the "
            "hidden states all the same"
        )
    return _BY_NUMBER[int(number)] or "mean"

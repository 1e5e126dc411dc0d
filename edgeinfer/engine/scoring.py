"""Teacher forcing: the logits of every position of given tokens, block by block. The same rows, kernels and bits as in generation.

The engine's thread fills blocks; the caller's thread takes them. At most one block waits, so that 2,048 rows of 262,144 logits never sit in memory.
"""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from edgeinfer.scheduler import Sequence, Verdict

Block = tuple[int, NDArray[np.float32]]


class Scoring:
    """Consumer of a sequence's rows that copies them to `queue` as (first position, float32[rows, vocabulary]); an error ends the queue."""

    unseen_tokens = 0  # nothing is chosen here

    def __init__(self, tokens: int) -> None:
        self.queue: SimpleQueue[Block | BaseException] = SimpleQueue()
        self._tokens = tokens

    @property
    def paused(self) -> bool:
        return not self.queue.empty()

    def rows(self, sequence: Sequence, first_position: int, logits: NDArray[np.float32], largest: NDArray[np.int32] | None) -> Verdict:
        self.queue.put((first_position, np.array(logits, dtype=np.float32)))
        return Verdict(finished=first_position + len(logits) == self._tokens)

    def failed(self, error: BaseException) -> None:
        self.queue.put(error)

"""What callers iterate over while the engine's thread computes: events of a generation, blocks of logits. Made by `Engine`.

Each holds the engine, so that an iterator keeps it alive, and ends what it iterates over when it is dropped or closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import TypeVar

from edgeinfer.core.results import StreamEvent
from edgeinfer.engine.generation import Generation
from edgeinfer.engine.loop import EngineLoop
from edgeinfer.engine.scoring import Block, Scoring
from edgeinfer.scheduler import Sequence

Item = TypeVar("Item")


def taken(queue: SimpleQueue[Item | BaseException]) -> Item:
    """The next item of a consumer's queue; waits for it. Raises the error that ended the sequence."""
    item = queue.get()
    if isinstance(item, BaseException):
        raise item
    return item


class Stream(Iterator[StreamEvent]):
    """Events of a generation; the last one carries the completion. Its own end, however it comes, ends the generation."""

    def __init__(self, engine: object, loop: EngineLoop, generation: Generation, sequence: Sequence) -> None:
        self._engine = engine
        self._loop = loop
        self._generation = generation
        self._sequence = sequence
        self._ended = False

    def __next__(self) -> StreamEvent:
        if self._ended:
            raise StopIteration
        event = self._generation.queue.get()
        if isinstance(event, BaseException):
            self._ended = True
            raise event
        self._ended = event.completion is not None
        return event

    def close(self) -> None:
        """Ends the generation early, like the `close` of a generator."""
        if not self._ended:
            self._ended = True
            self._loop.cancel(self._sequence)

    def __del__(self) -> None:
        self.close()


class Blocks(Iterator[Block]):
    """Blocks of logits, of so many tokens in all. The engine computes one ahead; dropping the iterator ends the computation."""

    def __init__(self, engine: object, loop: EngineLoop, scoring: Scoring, sequence: Sequence, tokens: int) -> None:
        self._engine = engine
        self._loop = loop
        self._scoring = scoring
        self._sequence = sequence
        self._tokens_left = tokens

    def __next__(self) -> Block:
        if self._tokens_left <= 0:
            raise StopIteration
        block = self._scoring.queue.get()
        if isinstance(block, BaseException):
            self._tokens_left = 0
            raise block
        self._tokens_left -= len(block[1])
        self._loop.wake()
        return block

    def close(self) -> None:
        """Ends the computation early, like the `close` of a generator."""
        if self._tokens_left > 0:
            self._tokens_left = 0
            self._loop.cancel(self._sequence)

    def __del__(self) -> None:
        self.close()

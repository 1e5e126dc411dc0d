"""A sequence as the scheduler sees it, and who consumes its output rows. The engine makes sequences; the scheduler owns their state from then on."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.requests import SamplingParams


@dataclass(frozen=True)
class Verdict:
    """What a consumer makes of output rows: tokens that continue the sequence, and whether it has ended. What was computed for other tokens than these
    does not count."""

    tokens: tuple[int, ...] = ()
    finished: bool = False


class RowConsumer(Protocol):
    """Gets the outputs that a sequence asked for. Called by the thread that steps; may raise, which ends its own sequence alone."""

    @property
    def paused(self) -> bool:
        """True while no more rows are wanted; whoever makes it False wakes the engine."""
        ...

    @property
    def unseen_tokens(self) -> int:
        """How many of the next tokens a backend may choose, so that the logits need not be shown. 0: they must be. Above 0 it is a `BurstConsumer`."""
        ...

    def rows(self, sequence: Sequence, first_position: int, outputs: NDArray[np.float32], largest: NDArray[np.int32] | None, /) -> Verdict:
        """Of consecutive positions from `first_position`: logits float32[rows, vocabulary], or hidden states float32[rows, width] where the sequence asks
        for those. Valid until this returns. `largest` int32[rows]: of logits the largest, where the backend found them."""
        ...

    def failed(self, error: BaseException) -> None:
        """The sequence ended with an error; nothing follows."""
        ...


class BurstConsumer(RowConsumer, Protocol):
    """A consumer that may take tokens without a look at the logits: those of the largest, or those that `drawn_with` gives."""

    @property
    def end_ids(self) -> Collection[int]:
        """Tokens after which nothing more is wanted."""
        ...

    @property
    def drawn_with(self) -> SamplingParams | None:
        """How tokens are drawn; None: they are those of the largest logits."""
        ...

    def uniforms(self, count: int) -> Items[float]:
        """The points at which the next `count` tokens are drawn. Asked for where `drawn_with` is not None."""
        ...

    def chosen(self, sequence: Sequence, tokens: Items[int]) -> Verdict:
        """In place of rows: the next tokens, at most `unseen_tokens`, none after one of `end_ids`. It may end before the last of them, for reasons of its
        own."""
        ...


@dataclass(eq=False)
class PageTable:
    """The pages of one sequence in one cache group: ids[:count] in order of positions; those before `first` were released (their entries are -1)."""

    ids: NDArray[np.int32]
    count: int = 0
    first: int = 0

    def held(self) -> list[int]:
        """The page ids held, in order of positions."""
        return self.ids[self.first : self.count].tolist()

    def append(self, pages: Items[int]) -> None:
        """More pages at the end; the array grows by doubling."""
        wanted = self.count + len(pages)
        if wanted > len(self.ids):
            grown = np.full(max(wanted, 2 * len(self.ids)), -1, dtype=np.int32)
            grown[: self.count] = self.ids[: self.count]
            self.ids = grown
        self.ids[self.count : wanted] = pages
        self.count = wanted

    def drop_before(self, first: int) -> list[int]:
        """Gives up the pages before index `first` and returns those that were still held."""
        dropped = self.ids[self.first : first].tolist() if first > self.first else []
        self.ids[self.first : first] = -1
        self.first = max(self.first, first)
        return dropped

    def clear(self) -> list[int]:
        """Gives up every page; returns those held, the last position's first."""
        held = self.held()[::-1]
        self.count = self.first = 0
        return held


@dataclass(eq=False)
class Sequence:
    """Known tokens, how many of them are computed, and the first position whose outputs are still to be delivered.

    `next_output` is all that tells a generation (it starts at the last prompt token) from teacher forcing (it starts at 0). Identity is equality.
    """

    identifier: int
    tokens: list[int]
    next_output: int
    consumer: RowConsumer
    computed: int = 0
    cached_tokens: int | None = None  # set when first admitted: prompt tokens that a prefix hit spared
    tables: tuple[PageTable, ...] = ()
    page_keys: list[bytes] = field(default_factory=list)
    preemptions: int = 0
    wants_hidden: bool = False  # its outputs are hidden states instead of logits

    @property
    def behind(self) -> int:
        """Known tokens that are not computed."""
        return len(self.tokens) - self.computed

"""The step record: one forward pass over tokens of any number of sequences. The scheduler fills it, a backend runs it; frozen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.requests import SamplingParams

MAXIMUM_OUTPUT_ROWS = 64
"""Rows of a step that may ask for an output: 64 rows of 262,144 float32 logits are 67 MB."""


class OutputKind(IntEnum):
    """What a row of a step gives back. HIDDEN is the state that the output matrix multiplies: that of the last layer, normalized."""

    NONE = 0
    LOGITS = 1
    HIDDEN = 2
    POOLED = 3


@dataclass(frozen=True)
class SequenceTable:
    """A sequence of the step: its id (stable while it lives) and, per cache group, the page ids that hold its positions in order.

    `pages[group]` is int32[pages]; position p lies in page pages[group][p // page_size] at p % page_size. Backends that keep their own cache use the id.
    Of a group with a window, the entries of pages that lie wholly behind it are -1: they were given up, and no row may look there.
    `start` is the first position that this step computes: a backend with its own cache forgets what it holds from there on.
    """

    sequence_id: int
    start: int
    pages: tuple[NDArray[np.int32], ...]


@dataclass(frozen=True)
class Draws:
    """How rows of a burst choose their tokens: as the sampler does with `params` (None: the largest logit) at the point `uniforms[pass, row]`.

    `params` has an entry a row, which `can_be_drawn`; `uniforms` is float64[passes, rows] in [0, 1). The sampler is that of `edgeinfer.sampling`, and no
    other token than the one that it would choose counts.
    """

    params: tuple[SamplingParams | None, ...]
    uniforms: NDArray[np.float64]


UNDECIDED = -1
"""In place of a drawn token: see `StepOutputs.largest`."""


def can_be_drawn(params: SamplingParams) -> bool:
    """Whether a burst may draw so. The bounds are those of kernels; beyond them nobody samples on purpose, and the sampler itself has none."""
    return 0.05 <= params.temperature <= 20.0 and params.top_k <= 100 and (params.min_p == 0.0 or params.min_p >= 1e-12)


@dataclass(frozen=True)
class Burst:
    """Makes a step several forward passes, between which nobody is asked: after each, every row goes on with the token of its largest logit (ties: the
    lower id), or the one that `draws` give, at the next position.

    Every row must have a sequence of its own and ask for LOGITS, and pages must be there for the positions of all passes. There are at most `passes`, at
    least 1. A burst ends early after the pass in which a row chose one of `end_ids` (int32), and after the one during which somebody, from whatever thread,
    made `interrupt` (int64[1]) other than 0.
    """

    passes: int
    end_ids: NDArray[np.int32]
    interrupt: NDArray[np.int64]
    draws: Draws | None = None


@dataclass(frozen=True)
class Step:
    """Rows of a forward pass; the rows of one sequence are consecutive and in ascending slot order.

    All arrays have one entry per row. `sequence` indexes `sequences`. `slots` are positions in the sequence's cache; `rope_positions` are a separate input.
    `adapters` is reserved (0: none). `outputs` holds OutputKind; at most MAXIMUM_OUTPUT_ROWS rows are not NONE. `burst` is for backends that declare it.

    `abort` (int64[1]) goes from 0 to 1, by whatever thread, when nobody wants the step any more. A backend that can end a step early raises
    StepAbortedError then, and its sequences are as they were before; one that cannot need not look.
    """

    token_ids: NDArray[np.int32]
    sequence: NDArray[np.int32]
    slots: NDArray[np.int32]
    rope_positions: NDArray[np.int32]
    adapters: NDArray[np.int32]
    outputs: NDArray[np.uint8]
    sequences: tuple[SequenceTable, ...]
    burst: Burst | None = None
    abort: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class StepOutputs:
    """`logits` float32[output rows, vocabulary], for the rows of the step whose output is LOGITS, in order; of a burst that draws tokens those of its
    last pass, while one without draws need not give any. Valid until the next step, as is all that follows.

    `largest` int32[passes that ran, output rows]: the lowest id of each row's largest logit, where the backend finds it on its way, as it must in a burst;
    of rows that are drawn, the drawn tokens. One that rounding might decide, or that takes too much, a backend may leave to its caller: it is UNDECIDED, and
    the burst has ended with that pass.
    `hidden` float32[hidden rows, width] and `hidden_rows`, the same for HIDDEN; None if no row asked for it.
    """

    logits: NDArray[np.float32]
    rows: NDArray[np.int32]
    largest: NDArray[np.int32] | None = None
    hidden: NDArray[np.float32] | None = None
    hidden_rows: NDArray[np.int32] | None = None

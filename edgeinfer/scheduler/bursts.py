"""How long a burst may be: tokens that sequences choose greedily in one step, without Python between them. The scheduler plans with this.

A burst saves what lies between two steps, which is the more the smaller the model is. But a burst is also how long a stream shows nothing and, where
nobody interrupts it, how long a new sequence waits; so it has a time, and its tokens follow from how long the last ones took.
"""

from __future__ import annotations

BURST_SECONDS = 0.05
"""What a burst may take: no reader notices, and a pass of a model that is worth bursts fits in several times."""


class Pace:
    """How many passes a burst may have, by the time that the last step of as many sequences took. `limit`: what the backend declares."""

    def __init__(self, limit: int, seconds: float = BURST_SECONDS) -> None:
        self._limit = limit
        self._seconds = seconds
        self._sequences = 0
        self._pass_seconds = 0.0

    def note(self, sequences: int, seconds: float, passes: int) -> None:
        """So many sequences decoded `passes` tokens each."""
        self._sequences = sequences
        self._pass_seconds = seconds / passes

    def passes(self, sequences: int) -> int:
        """At least 1, if the backend has bursts at all, else 0; 1 for another number of sequences than decoded last."""
        if self._limit < 2:
            return 0
        if sequences != self._sequences:
            return 1
        return max(1, min(self._limit, int(self._seconds / max(self._pass_seconds, 1e-9))))

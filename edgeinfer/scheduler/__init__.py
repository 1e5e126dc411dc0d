"""Continuous batching over any backend: sequences whose computed tokens chase their known tokens. The engine's thread is the only caller."""

from edgeinfer.scheduler.scheduler import Scheduler
from edgeinfer.scheduler.sequence import RowConsumer, Sequence, Verdict

__all__ = ["RowConsumer", "Scheduler", "Sequence", "Verdict"]

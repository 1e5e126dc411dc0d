"""Tapes that only some bursts take, whose kernels need not be there when a model is loaded: they are compiled beside the first work that could use them.
For `backend`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeinfer.core.announcements import going_on
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.tape import Tape, TapeEntry


class LateTape:
    """A tape that waits for its kernels. `addresses` are those that loading has found; `entries` gives the tape's entries, and is called once."""

    def __init__(self, store: KernelStore, kernels: Sequence[KernelName], addresses: dict[KernelName, int], entries: Callable[[], Sequence[TapeEntry]]) -> None:
        self._store = store
        self._kernels = kernels
        self._addresses = addresses
        self._entries = entries
        self._tape: Tape | None = None

    def get(self) -> Tape | None:
        """The tape, or None while kernels of it are being compiled, which the first call begins, and where they cannot be."""
        if self._tape is None:
            level = self._store.level.name
            found = self._store.load_or_begin(self._kernels, lambda count: going_on(f"compiling {count} more kernels for {level}"))
            if found is not None:
                self._tape = Tape.build(self._entries(), {**self._addresses, **found})
        return self._tape

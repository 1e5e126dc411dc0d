"""The peak of another process's private memory, by looking often. The kernel keeps a high-water mark of everything that is resident, mapped pages of files
included, but none of private memory alone, which is what an engine takes that copies weights out of a mapped file.
"""

from __future__ import annotations

import threading
from types import TracebackType

INTERVAL_SECONDS = 0.01


def private_bytes(process: int) -> int:
    """Anonymous and shared memory of a process now, by /proc/PID/status; 0 when it is gone."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:
            found = dict(line.split(":", 1) for line in lines)
    except OSError:
        return 0
    return sum(int(found[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem") if name in found)


class PrivateMemory:
    """Looks at a process every few milliseconds while it is entered; `peak` is the most that was seen."""

    def __init__(self, process: int) -> None:
        self.peak = 0
        self._process = process
        self._left = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PrivateMemory:
        self._left.clear()
        self._thread = threading.Thread(target=self._watch, name="private-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        assert self._thread is not None
        self._thread.join()

    def _watch(self) -> None:
        while not self._left.is_set():
            self.peak = max(self.peak, private_bytes(self._process))
            self._left.wait(INTERVAL_SECONDS)

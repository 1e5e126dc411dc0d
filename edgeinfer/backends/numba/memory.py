"""Anonymous memory for weights, caches and the arena: page aligned, zero, given back to the system when closed."""

from __future__ import annotations

import mmap

import numpy as np

from edgeinfer.core.errors import MemoryPlanError
from edgeinfer.core.memory_plan import megabytes


class Region:
    """`size` bytes at `address`. Pages that were never touched take no memory.

    `dense`: all of it will be used, so ask for huge pages (fewer address translations). Not for caches: a huge page per layer would be 2 MB each for the
    first token of a conversation.
    """

    def __init__(self, size: int, purpose: str, *, dense: bool = False) -> None:
        self.size = max(size, 1)
        try:
            self._mapping = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryPlanError(
                f"the system refused {megabytes(size)} for the {purpose} ({error}); free memory, raise the limit (ulimit -v, cgroup), or use a smaller "
                "context or model"
            ) from None
        if dense and hasattr(mmap, "MADV_HUGEPAGE") and self.size >= 4 << 20:
            try:
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages: slower, not wrong
        self.bytes = np.frombuffer(self._mapping, dtype=np.uint8)
        self.address = int(self.bytes.ctypes.data)

    def discard(self, offset: int, size: int) -> None:
        """Gives the whole pages inside a range back to the system; they read as zero from then on."""
        start, end = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE, (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Gives the memory back, unless a view of it is still alive (then it goes with the view)."""
        self.bytes = np.empty(0, np.uint8)
        try:
            self._mapping.close()
        except BufferError:
            pass

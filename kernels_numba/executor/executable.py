"""Machine code in memory: images of kernels, mapped so that they can run. Called by the store."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from kernels_numba.executor.aligned import address_of


class MappedCode:
    """Images of kernels in executable memory. `addresses[i]` is where image i starts: at a page. Nothing unmaps them: whoever holds an address may call it.

    The pages belong to an anonymous file that nobody else can open. They are never writable and executable at once, and the system makes sure that the
    instruction cache agrees with them, as for every program. Raises OSError where the system lets nobody make code.
    """

    def __init__(self, images: Sequence[bytes]) -> None:
        self.addresses: list[int] = []
        starts, size = [], 0
        for image in images:
            starts.append(size)
            size += -(-len(image) // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = os.memfd_create("edgeinfer-kernels", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            for start, image in zip(starts, images, strict=True):
                if os.pwrite(descriptor, image, start) != len(image):
                    raise OSError("the system did not take the whole of a kernel")
            self._mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        finally:
            os.close(descriptor)
        base = address_of(np.frombuffer(self._mapping, np.uint8))
        self.addresses = [base + start for start in starts]

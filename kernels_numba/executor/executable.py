"""Machine code in memory: images of kernels, mapped so that they can run. Called by the store."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from kernels_numba.executor.aligned import address_of

_mappings: list[mmap.mmap] = []
"""All that were ever made: worker threads stay in the code of the first store for the life of the process, and addresses know no owners."""


def map_code(images: Sequence[bytes]) -> list[int]:
    """Puts images of kernels into executable memory: where each starts, at a page. Nothing unmaps them.

    The pages belong to an anonymous file that nobody else can open. They are never writable and executable at once, and the system makes sure that the
    instruction cache agrees with them, as for every program. Raises OSError where the system lets nobody make code.
    """
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
        mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(descriptor)
    _mappings.append(mapping)
    base = address_of(np.frombuffer(mapping, np.uint8))
    return [base + start for start in starts]

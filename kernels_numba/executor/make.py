"""A process that compiles kernels into a store's folder: `python -m kernels_numba.executor.make LEVEL FOLDER KERNELS` (a JSON list of KernelName fields).

The store starts it for kernels that are missing; whoever prepares a folder for other machines may start it by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.simd.levels import level_by_name


def main(arguments: list[str]) -> None:
    level, directory, request = arguments
    store = KernelStore(level_by_name(level), Path(directory))
    for module, function, tags, integers in json.loads(request):
        store.make(KernelName(module, function, tuple(tags), integers))


if __name__ == "__main__":
    main(sys.argv[1:])

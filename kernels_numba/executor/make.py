"""A process that compiles kernels into a store's folder: `python -m kernels_numba.executor.make LEVEL FOLDER`. It reads kernels from standard input, a line
of JSON (the fields of KernelName) each, and answers each with a line when it is there.

The store starts it for kernels that are missing; whoever prepares a folder for other machines may start it by hand.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.simd.levels import level_by_name


def main(arguments: list[str]) -> None:
    level, directory = arguments
    gc.disable()  # it lives for seconds, and makes millions of objects that stay
    store = KernelStore(level_by_name(level), Path(directory))
    for line in sys.stdin:
        module, function, tags, integers = json.loads(line)
        name = KernelName(module, function, tuple(tags), integers)
        store.make(name)
        print(name.symbol, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

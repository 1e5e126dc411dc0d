"""What this machine can do at best with our worker pool: bytes read from memory a second, int8 operations a second. Kernels: `kernels_numba.ops.roofline`.

The read bandwidth is measured in several patterns, one of them our own matvec over the buffer as a packed matrix, because no single pattern is the best
on every machine. The buffer is eight times the last cache, in huge pages like packed weights.
"""

from __future__ import annotations

import statistics
import time
from types import TracebackType

from edgeinfer.backends.numba.backend import choose_level, kernel_store
from edgeinfer.backends.numba.memory import Region
from edgeinfer.core import host
from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.executor.step import StepRecord
from kernels_numba.executor.store import KernelName
from kernels_numba.executor.tape import Tape, TapeEntry
from kernels_numba.executor.workers import RUN_KERNELS, WorkerPool
from kernels_numba.layouts import TILE_ROWS, packed_bytes
from kernels_numba.ops import roofline
from kernels_numba.ops.linear import LINEAR_OPERANDS

CACHE_MULTIPLE = 8
DEFAULT_CACHE_BYTES = 32 << 20  # where the system does not say
PASSES = 5
"""Times that the buffer is read in each pattern for one sample, after one that is not counted; the median counts."""

INT8_SECONDS = 0.01
"""About how long a measurement of the int8 peak lasts."""

_READS = {
    "one stream a thread": "read_one_stream",
    "one stream a thread, prefetched": "read_one_stream_prefetched",
    "four streams a thread": "read_four_streams",
    "four streams a thread, prefetched": "read_four_streams_prefetched",
}
_PEAKS = {"int8_peak_small": 4, "int8_peak_large": 12}  # kernel -> dot products a round
_MATVEC = "our matvec"
_MATVEC_FORMAT = "Q8_0"  # the format with the fewest instructions a byte
_MATVEC_COLUMNS = 1024


class MachineLimits:
    """The kernels, a worker pool of `threads` and the buffer; a context manager. Raises MemoryPlanError when there is no memory for the buffer."""

    def __init__(self, threads: int, instruction_set: str | None = None) -> None:
        level = choose_level(instruction_set)
        self.level = level.name
        store = kernel_store(level)
        names = [KernelName("ops.roofline", function) for function in (*_READS.values(), *_PEAKS)]
        matvec = KernelName("ops.linear", "linear", (_MATVEC_FORMAT,))
        addresses = store.load([*RUN_KERNELS, *names, matvec])
        cores = host.worker_threads(threads)
        self._pool = WorkerPool(threads, cores.cpus if len(cores.cpus) == threads else None, store)
        last_cache = max((cache.size for cache in host.caches()), default=DEFAULT_CACHE_BYTES)
        wanted = min(CACHE_MULTIPLE * last_cache, host.available_memory().size // 4)
        unit = 16 * packed_bytes(_MATVEC_FORMAT, TILE_ROWS, _MATVEC_COLUMNS)  # whole row tiles, and whole units of four streams
        self.buffer_bytes = max(1, wanted // unit) * unit
        self._buffer = Region(self.buffer_bytes, "buffer of the roofline", dense=True)
        self._buffer.bytes[:] = 1  # pages that were never written are all the same page of zeros
        row_tiles = self.buffer_bytes // packed_bytes(_MATVEC_FORMAT, TILE_ROWS, _MATVEC_COLUMNS)
        self._small = aligned_zeros(4096 + 64 * threads + _MATVEC_COLUMNS // 32 * 48 + row_tiles * 64, "uint8")
        base = address_of(self._small)
        results = base + 4096
        blocks = results + 64 * threads
        output = blocks + _MATVEC_COLUMNS // 32 * 48
        self._step = StepRecord(1, 1, 0)
        self._step.words[0] = 1
        read = (self._buffer.address, self.buffer_bytes, results)
        self._reads = {title: Tape.build([TapeEntry(KernelName("ops.roofline", name), read)], addresses) for title, name in _READS.items()}
        operands = dict.fromkeys(LINEAR_OPERANDS, 0) | {
            "weights": self._buffer.address, "row_tiles": row_tiles, "columns": _MATVEC_COLUMNS, "input": blocks, "output": output,
        }  # fmt: skip
        self._reads[_MATVEC] = Tape.build([TapeEntry(matvec, tuple(operands.values()))], addresses)
        self._peaks: dict[Tape, int] = {}
        for name, dots in _PEAKS.items():
            rounds = self._rounds(Tape.build([TapeEntry(KernelName("ops.roofline", name), (4096, base, results))], addresses), 4096)
            tape = Tape.build([TapeEntry(KernelName("ops.roofline", name), (rounds, base, results))], addresses)
            self._peaks[tape] = 2 * rounds * dots * roofline.MULTIPLY_ADDS_PER_DOT

    def _rounds(self, tape: Tape, rounds: int) -> int:
        """Rounds that last about INT8_SECONDS, by a tape of `rounds` rounds."""
        self._seconds(tape, 1)
        return max(rounds, int(rounds * INT8_SECONDS / min(self._seconds(tape, 1) for _ in range(3))))

    def _seconds(self, tape: Tape, workers: int) -> float:
        began = time.perf_counter()
        self._pool.run(tape, self._step, workers)
        return time.perf_counter() - began

    def read(self) -> dict[str, float]:
        """Bytes a second with all threads, by read pattern: the median of some passes over the buffer."""
        found = {}
        for title, tape in self._reads.items():
            seconds = [self._seconds(tape, self._pool.count) for _ in range(1 + PASSES)]
            found[title] = self.buffer_bytes / statistics.median(seconds[1:])
        return found

    def int8(self, workers: int | None = None) -> float:
        """int8 operations a second (a multiply-add is two) with `workers` threads (None: all), by the faster of two kernels."""
        workers = self._pool.count if workers is None else workers
        return max(workers * operations / min(self._seconds(tape, workers) for _ in range(3)) for tape, operations in self._peaks.items())

    def close(self) -> None:
        self._pool.close()
        self._buffer.close()

    def __enter__(self) -> MachineLimits:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

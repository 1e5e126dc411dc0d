"""The worker threads that run tapes: one crew per process, shared by the pools that engines hold. Free of Numba.

A worker is a Python thread that makes one call into `run.work` and stays there, without the interpreter lock, until it is dismissed. The thread
that calls `WorkerPool.run` is worker 0. One run at a time: engines of one process take turns, for the cores are the same. Between runs workers sleep
in the kernel. Each thread is bound to a core of its own, the caller for the time of a run; which of them take part is `placement`'s choice where the
pool is asked to adapt.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels_numba.executor import run as run_kernels
from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.executor.placement import Placement, waiting_seconds
from kernels_numba.executor.step import ROW_BLOCKS, StepRecord, row_blocks
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.tape import Tape

SPIN_NANOSECONDS = 30_000
"""How long a worker spins at a barrier before it sleeps; see `run`."""

IDLE_SPIN_NANOSECONDS = 500_000
"""How long a worker spins between runs: somewhat longer than what a caller does between two steps. Being woken costs it 15 microseconds."""

MAXIMUM_WORKERS = run_kernels.MAXIMUM_WORKERS
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_RUN = KernelName("executor.run", "run", (), 6)
_WORK = KernelName("executor.run", "work", (), 2)
_DISMISS = KernelName("executor.run", "dismiss", (), 2)
RUN_KERNELS = (_RUN, _WORK, _DISMISS)
"""The kernels that a pool needs, for whoever compiles everything ahead."""


class WorkerPoolError(RuntimeError):
    """The pool cannot be used: it is closed, or this process was forked from the one that owns its threads."""


@dataclass(frozen=True)
class Stopped:
    """A run that did not end well. `entry` is the index of the last tape entry that ran, `status` the step's fault (0: none)."""

    entry: int
    label: str
    status: int
    cancelled: bool


class _Crew:
    """The threads of this process and the control block through which they meet. Every method is called with `lock` held."""

    def __init__(self, store: KernelStore) -> None:
        self.process = os.getpid()
        self.pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
        self.threads: list[threading.Thread] = []
        self.pinned: dict[int, int] = {}  # thread -> core
        self._taking_part: tuple[int, ...] = ()
        addresses = store.load(RUN_KERNELS)
        self.run = _function(addresses[_RUN], _RUN)
        self._work = _function(addresses[_WORK], _WORK)
        self._dismiss = _function(addresses[_DISMISS], _DISMISS)
        self.words = aligned_zeros(run_kernels.control_bytes(MAXIMUM_WORKERS) // 8, "int64")
        self.control = address_of(self.words)
        library = ctypes.CDLL(None)
        self._set(run_kernels.SYSTEM_CALL, ctypes.cast(library.syscall, ctypes.c_void_p).value or 0)
        self._set(run_kernels.CLOCK, ctypes.cast(library.clock_gettime, ctypes.c_void_p).value or 0)
        self._set(run_kernels.FUTEX_NUMBER, _FUTEX_NUMBERS[store.level.architecture])
        self.set_spin(SPIN_NANOSECONDS)

    def _set(self, offset: int, value: int) -> None:
        self.words[offset // 8] = value

    def set_spin(self, nanoseconds: int) -> None:
        idle = min(nanoseconds * IDLE_SPIN_NANOSECONDS // SPIN_NANOSECONDS, IDLE_SPIN_NANOSECONDS)
        self._set(run_kernels.SPIN, nanoseconds)
        self._set(run_kernels.IDLE_SPIN, idle)
        for thread in range(MAXIMUM_WORKERS):
            self._set(run_kernels.thread_line(thread) + run_kernels.BUDGET, nanoseconds)
            self._set(run_kernels.thread_line(thread) + run_kernels.IDLE_BUDGET, idle)

    def resize(self, count: int) -> None:
        """Starts or dismisses threads until there are `count`, thread 0 (the caller) included."""
        while len(self.threads) + 1 > count:
            number = len(self.threads)
            self._dismiss(self.control, self.control + run_kernels.thread_line(number))
            self.threads.pop().join()
            self.pinned.pop(number, None)
        while len(self.threads) + 1 < count:
            number = len(self.threads) + 1
            self._set(run_kernels.thread_line(number) + run_kernels.COMMAND, 0)
            # a daemon, so that an exit that skips our handler does not wait for it; it holds the words through its arguments
            arguments = (self._work, self.words, run_kernels.thread_line(number))
            thread = threading.Thread(target=_live, args=arguments, name=f"edgeinfer-worker-{number}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def pin(self, cores: Sequence[int]) -> None:
        """Binds each thread but the caller's to its core. Raises ValueError for a core that this process may not use."""
        for number, thread in enumerate(self.threads, start=1):
            if number < len(cores) and self.pinned.get(number) != cores[number]:
                assert thread.native_id is not None
                _bind(thread.native_id, cores[number])
                self.pinned[number] = cores[number]

    def take_part(self, threads: tuple[int, ...]) -> None:
        """Makes these threads, after the caller, the workers 1, 2, ... of the runs that follow."""
        if threads != self._taking_part:
            for worker, thread in enumerate((0, *threads)):
                line = run_kernels.thread_line(thread)
                self._set(run_kernels.JOB_LINES + 8 * worker, self.control + line)
                self._set(line + run_kernels.COMMAND_WORKER, worker)
            self._taking_part = threads

    def waited(self, thread: int) -> float | None:
        """Seconds that a thread has waited for its core; the caller's for 0."""
        native = threading.get_native_id() if thread == 0 else self.threads[thread - 1].native_id
        return waiting_seconds(native) if native is not None else None


_lock = threading.RLock()
_crew: _Crew | None = None


class WorkerPool:
    """An engine's hold on the process's worker threads. A context manager; `close` gives it back.

    `count` is the number of workers, the calling thread included. `cores` (as many as workers, or None) are the cores that they are bound to: the
    caller, to cores[0], only while it runs with others. With `adapt`, workers are left out while the operating system gives their cores to other
    processes and fewer are faster. `spin_nanoseconds` is for the whole crew. Results of kernels do not depend on any of these.
    """

    def __init__(
        self,
        count: int,
        cores: Sequence[int] | None,
        store: KernelStore,
        *,
        adapt: bool = False,
        spin_nanoseconds: int = SPIN_NANOSECONDS,
    ) -> None:
        global _crew
        self.count = _checked_count(count, cores)
        self.cores = tuple(cores) if cores is not None else None
        self.closed = False
        self._adapt = adapt
        with _lock:
            if _crew is None or _crew.process != os.getpid():
                _crew = _Crew(store)
            self._crew = _crew
            if spin_nanoseconds != self._crew.words[run_kernels.SPIN // 8]:
                self._crew.set_spin(spin_nanoseconds)
            self._crew.pools.add(self)
            try:
                self._fit()
            except BaseException:
                self.close()
                raise

    def run(self, tape: Tape, step: StepRecord, workers: int | None = None) -> Stopped | None:
        """Runs the tape over the step with `workers` of this pool's workers (None: all, or as many as are fastest with `adapt`). None if every entry of
        every pass ran (of a burst, `step.passes_done` passes) and no kernel reported a fault.

        Waits while another thread runs. Raises WorkerPoolError for a closed pool or in a forked child, ValueError for too many workers.
        """
        if workers is not None and not 1 <= workers <= self.count:
            raise ValueError(f"a run with {workers} workers; this pool has {self.count}")
        with _lock:
            self._check_usable()
            crew = self._crew
            if len(crew.threads) + 1 < (workers or self.count):  # after the exit handler; Python refuses to start threads then, which beats waiting
                self._fit()
            if self.cores is not None:
                crew.pin(self.cores)
            if workers is not None or not self._adapt:
                done = self._run_with(tuple(range(workers or self.count)), tape, step)
            else:
                places = self._placement.before_run()
                began = time.perf_counter()
                done = self._run_with(places, tape, step)
                self._placement.after_run(step.rows, time.perf_counter() - began, max(1, step.passes_done))
        status, cancelled = step.status, step.cancelled
        if status == 0 and done == len(tape):
            return None
        return Stopped(done - 1, tape.entries[done - 1].label, status, cancelled)

    def _run_with(self, places: tuple[int, ...], tape: Tape, step: StepRecord) -> int:
        """Runs on these places, of which the caller takes the first. Returns the number of entries run."""
        crew = self._crew
        crew.take_part(places[1:])
        step.words[ROW_BLOCKS // 8] = row_blocks(step.rows, len(places))
        before = _bind_caller(self.cores[places[0]]) if self.cores is not None and len(places) > 1 else None
        try:
            return int(crew.run(crew.control, tape.address, len(tape), tape.counters_address, step.address, len(places)))
        finally:
            if before is not None:
                with contextlib.suppress(OSError):  # none of them is left to this process: then it stays where it is
                    os.sched_setaffinity(0, before)

    def resize(self, count: int, cores: Sequence[int] | None = None) -> None:
        """Changes the number of workers, and their cores: None keeps them, which needs as many as before."""
        with _lock:
            self._check_usable()
            cores = self.cores if cores is None else tuple(cores)
            self.count = _checked_count(count, cores)
            self.cores = tuple(cores) if cores is not None else None
            self._fit()

    def close(self) -> None:
        """Gives the pool back; the last one to close ends the threads. May be called again, and by a forked child (where it does nothing)."""
        with _lock:
            if self.closed:
                return
            self.closed = True
            if self._crew.process != os.getpid():
                return
            self._crew.pools.discard(self)
            self._crew.resize(max((pool.count for pool in self._crew.pools), default=1))

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _fit(self) -> None:
        self._crew.resize(max(pool.count for pool in self._crew.pools))
        if self.cores is not None:
            self._crew.pin(self.cores)
        self._placement = Placement(self.count, self._crew.waited)

    def _check_usable(self) -> None:
        if self._crew.process != os.getpid():
            raise WorkerPoolError(
                "this process was forked from the one that loaded the model, and threads do not survive a fork; "
                "load the model in the child, or start processes with the spawn method"
            )
        if self.closed:
            raise WorkerPoolError("the worker pool is closed")


def _checked_count(count: int, cores: Sequence[int] | None) -> int:
    if not 1 <= count <= MAXIMUM_WORKERS:
        raise ValueError(f"a pool of {count} workers; 1 to {MAXIMUM_WORKERS} are possible")
    if cores is not None and len(cores) < count:
        raise ValueError(f"{len(cores)} cores for {count} workers; each worker needs one of its own")
    return count


def _bind(thread: int, core: int) -> None:
    try:
        os.sched_setaffinity(thread, {core})
    except OSError as error:
        usable = sorted(os.sched_getaffinity(0))
        raise ValueError(f"a worker cannot be bound to core {core}: {error.strerror}; this process may use {usable}") from error


def _bind_caller(core: int) -> set[int] | None:
    """Binds the calling thread, so that it does not share the core of another worker. Returns where it was allowed to run, None if it stays so."""
    before = os.sched_getaffinity(0)
    if core not in before:  # whoever restricted this thread since the pool was made has the say
        return None
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # the container's set of processors has become smaller
        return None
    return before


def _function(address: int, kernel: KernelName) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * kernel.integers)(address)


def _live(work: Any, words: Any, line: int) -> None:
    control = address_of(words)
    work(control, control + line)


def _end() -> None:
    """At the interpreter's exit: threads that return into an interpreter which is going away are a hazard, so they are joined before."""
    with _lock:
        if _crew is not None and _crew.process == os.getpid():
            _crew.resize(1)


def _after_fork() -> None:
    """In a forked child: the lock may have been held by a thread that no longer exists."""
    global _lock
    _lock = threading.RLock()


atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)

"""The worker threads that run tapes: one crew per process, shared by the pools that engines hold. Free of Numba.

A worker is a Python thread that makes one call into `run.work` and stays there, without the interpreter lock, until it is dismissed. The thread
that calls `WorkerPool.run` is worker 0. One run at a time: engines of one process take turns, for the cores are the same. Between runs workers sleep
in the kernel.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels_numba.executor import run as run_kernels
from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.executor.step import StepRecord
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.tape import Tape

SPIN_NANOSECONDS = 30_000
"""How long a worker spins at a barrier before it sleeps; see `run`."""

MAXIMUM_WORKERS = 256
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
        self.pinned: dict[int, int] = {}  # worker -> core
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
        self._set(run_kernels.SPIN, nanoseconds)
        self._set(run_kernels.IDLE_SPIN, nanoseconds)
        for worker in range(MAXIMUM_WORKERS):
            line = run_kernels.WORKER_LINES + run_kernels.WORKER_BYTES * worker
            self._set(line + run_kernels.BUDGET, nanoseconds)
            self._set(line + run_kernels.IDLE_BUDGET, nanoseconds)

    def resize(self, count: int) -> None:
        """Starts or dismisses threads until there are `count` workers, worker 0 (the caller) included."""
        while len(self.threads) + 1 > count:
            worker = len(self.threads)
            self._dismiss(self.control, worker)
            self.threads.pop().join()
            self.pinned.pop(worker, None)
        while len(self.threads) + 1 < count:
            worker = len(self.threads) + 1
            self._set(run_kernels.WORKER_LINES + run_kernels.WORKER_BYTES * worker + run_kernels.COMMAND, 0)
            # a daemon, so that an exit that skips our handler does not wait for it; it holds the words through its arguments
            thread = threading.Thread(target=_live, args=(self._work, self.words, worker), name=f"edgeinfer-worker-{worker}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def pin(self, cores: Sequence[int]) -> None:
        """Binds each worker but 0 to its core. Raises ValueError for a core that this process may not use."""
        for worker, thread in enumerate(self.threads, start=1):
            if worker < len(cores) and self.pinned.get(worker) != cores[worker]:
                assert thread.native_id is not None
                _bind(thread.native_id, {cores[worker]})
                self.pinned[worker] = cores[worker]


_lock = threading.RLock()
_crew: _Crew | None = None


class WorkerPool:
    """An engine's hold on the process's worker threads. A context manager; `close` gives it back.

    `count` is the number of workers, the calling thread included. `cores` (as many as workers, or None) are the cores that they are bound to: the
    caller's, cores[0], only with `pin_caller`. `spin_nanoseconds` is for the whole crew. Results of kernels do not depend on any of these.
    """

    def __init__(
        self,
        count: int,
        cores: Sequence[int] | None,
        store: KernelStore,
        *,
        pin_caller: bool = False,
        spin_nanoseconds: int = SPIN_NANOSECONDS,
    ) -> None:
        global _crew
        self.count = _checked_count(count, cores)
        self.cores = tuple(cores) if cores is not None else None
        self.closed = False
        self._pin_caller = pin_caller
        self._bound_caller: tuple[int, set[int]] | None = None
        with _lock:
            if _crew is None or _crew.process != os.getpid():
                _crew = _Crew(store)
            self._crew = _crew
            if spin_nanoseconds != self._crew.words[run_kernels.SPIN // 8]:
                self._crew.resize(1)  # spinning times are read when a worker starts
                self._crew.set_spin(spin_nanoseconds)
            self._crew.pools.add(self)
            try:
                self._fit()
            except BaseException:
                self.close()
                raise

    def run(self, tape: Tape, step: StepRecord, workers: int | None = None) -> Stopped | None:
        """Runs the tape over the step with `workers` of this pool's workers (None: all). None if every entry ran and no kernel reported a fault.

        Waits while another thread runs. Raises WorkerPoolError for a closed pool or in a forked child, ValueError for too many workers.
        """
        if workers is None:
            workers = self.count
        elif not 1 <= workers <= self.count:
            raise ValueError(f"a run with {workers} workers; this pool has {self.count}")
        with _lock:
            self._check_usable()
            crew = self._crew
            if len(crew.threads) + 1 < workers:  # after the exit handler; Python refuses to start threads then, which beats waiting for them
                self._fit()
            if self.cores is not None:
                crew.pin(self.cores)
                if self._pin_caller:
                    self._bind_caller()
            done = crew.run(crew.control, tape.address, len(tape), tape.counters_address, step.address, workers)
        status, cancelled = step.status, step.cancelled
        if status == 0 and done == len(tape):
            return None
        return Stopped(done - 1, tape.entries[done - 1].label, status, cancelled)

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
            if self._bound_caller is not None:
                thread, before = self._bound_caller
                try:
                    os.sched_setaffinity(thread, before)
                except OSError:  # the thread has ended
                    pass

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _fit(self) -> None:
        self._crew.resize(max(pool.count for pool in self._crew.pools))
        if self.cores is not None:
            self._crew.pin(self.cores)

    def _bind_caller(self) -> None:
        assert self.cores is not None
        thread = threading.get_native_id()
        if self._bound_caller is None or self._bound_caller[0] != thread:
            before = os.sched_getaffinity(0)
            _bind(thread, {self.cores[0]})
            self._bound_caller = (thread, before)

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


def _bind(thread: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except OSError as error:
        usable = sorted(os.sched_getaffinity(0))
        raise ValueError(f"a worker cannot be bound to core {min(cores)}: {error.strerror}; this process may use {usable}") from error


def _function(address: int, kernel: KernelName) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * kernel.integers)(address)


def _live(work: Any, words: Any, worker: int) -> None:
    work(address_of(words), worker)


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

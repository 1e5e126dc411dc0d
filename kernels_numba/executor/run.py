"""The run loop as kernels: `run` (worker 0, the caller), `work` (the life of every other worker), and the barrier between operations.

Called by `workers` alone, which owns the control block: the memory described by the offsets below, through which the workers of one process
meet. Words that different workers write lie on different pairs of cache lines. A waiter spins by time, because how long an iteration takes differs
a hundredfold between CPUs, and then sleeps in a futex: beside a busy process a pure spin, or one that yields, keeps a few per cent of its speed.

No worker can run ahead or behind: whether to go on is decided by the last worker to reach a barrier and published with it, and `run` returns only
when every worker that took part has left the tape. So the words of a job, and the tape's memory, are free to change once `run` has returned.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.executor.step import CANCEL, STATUS
from kernels_numba.executor.tape import ENTRY_BYTES, ENTRY_FLAGS, ENTRY_KERNEL, ENTRY_OPERANDS, FLAG_BARRIER
from kernels_numba.simd.function import kernel_function

# Constants of the process, written once.
SYSTEM_CALL = 0  # address of the C library's `syscall`
FUTEX_NUMBER = 8  # of this CPU family
CLOCK = 16  # address of the C library's `clock_gettime`
SPIN = 24  # nanoseconds of spinning before a wait sleeps, at most
IDLE_SPIN = 32  # the same while waiting for a job

# The barrier.
ARRIVALS = 128
PHASE = 256
DECISION = 264  # 1: stop after this phase. On PHASE's line: written before it, read after it
SLEEPERS = 384

# The job: stable while any worker takes part in it.
JOB_TAPE = 512
JOB_ENTRIES = 520
JOB_STEP = 528
JOB_WORKERS = 536
JOB_COUNTERS = 544  # address of int64[entries], or 0

# The end of a job: the last of the other workers tells worker 0.
FINISHED = 640
JOINED = 768
JOIN_SLEEPERS = 896

# Per worker: words that worker 0 writes (the command), and words of its own.
WORKER_LINES = 1024
WORKER_BYTES = 384
COMMAND = 0  # counts up for each job; QUIT ends the worker
COMMAND_SLEEPERS = 8
BUDGET = 128  # nanoseconds that the next wait spins: adapted between SPIN / 8 and SPIN
IDLE_BUDGET = 136
CLOCK_SCRATCH = 144

QUIT = -1
FUTEX_WAIT = 128  # FUTEX_WAIT | FUTEX_PRIVATE_FLAG
FUTEX_WAKE = 129  # FUTEX_WAKE | FUTEX_PRIVATE_FLAG
CHECKS_PER_CLOCK = 16  # looks at the word between two looks at the clock, which costs some 25 ns


def control_bytes(workers: int) -> int:
    """The size of a control block."""
    return WORKER_LINES + WORKER_BYTES * workers


@kernel_function
def worker_line(simd: Any, control: int, worker: int) -> int:
    return control + WORKER_LINES + WORKER_BYTES * worker


@kernel_function
def now(simd: Any, control: int, line: int) -> int:
    """Nanoseconds of the monotonic clock. `line` is the calling worker's."""
    return simd.call_clock(simd.load_i64(control + CLOCK), line + CLOCK_SCRATCH)


@kernel_function
def wake(simd: Any, control: int, word: int, sleepers: int) -> None:
    """Wakes those who sleep until `word`, which has just been stored, changes."""
    if simd.atomic_load(sleepers) != 0:
        simd.call_system(simd.load_i64(control + SYSTEM_CALL), simd.load_i64(control + FUTEX_NUMBER), word, FUTEX_WAKE, 0x7FFFFFFF, 0)


@kernel_function
def spin(simd: Any, control: int, line: int, word: int, old: int, start: int, budget: int) -> int:
    """1 if the word changed while spinning for `budget` nanoseconds from `start`, else 0."""
    while True:
        for _ in range(CHECKS_PER_CLOCK):
            if simd.atomic_load(word) != old:
                return 1
            simd.pause()
        if now(simd, control, line) - start >= budget:
            return 0


@kernel_function
def wait_for_change(simd: Any, control: int, line: int, budget_word: int, longest: int, word: int, sleepers: int, old: int) -> None:
    """Returns when the int64 at `word` is not `old`. `budget_word` holds how long to spin; it shrinks when waits are longer than `longest` and
    grows back when they are not. A sleeper counts itself before its last look at the word, a waker stores the word before it looks at the count: one
    of them sees the other."""
    if simd.atomic_load(word) != old:
        return
    start = now(simd, control, line)
    budget = simd.load_i64(budget_word)
    if budget > 0 and spin(simd, control, line, word, old, start, budget) != 0:
        simd.store_i64(budget_word, min(longest, budget + longest // 8))
        return
    simd.atomic_add(sleepers, 1)
    while simd.atomic_load(word) == old:
        # returns at once if the low half of the word is no longer that of `old`
        simd.call_system(simd.load_i64(control + SYSTEM_CALL), simd.load_i64(control + FUTEX_NUMBER), word, FUTEX_WAIT, old, 0)
    simd.atomic_add(sleepers, -1)
    if now(simd, control, line) - start > longest:
        simd.store_i64(budget_word, max(longest // 8, budget // 2))
    else:
        simd.store_i64(budget_word, min(longest, 2 * budget))


@kernel_function
def wake_worker(simd: Any, control: int, worker: int) -> None:
    """Wakes a worker whose command has just been stored, if it sleeps."""
    line = worker_line(simd, control, worker)
    wake(simd, control, line + COMMAND, line + COMMAND_SLEEPERS)


@kernel_function
def must_stop(simd: Any, step: int) -> int:
    """1 if a kernel found a fault or somebody cancelled the step."""
    if simd.atomic_load(step + STATUS) != 0 or simd.atomic_load(step + CANCEL) != 0:
        return 1
    return 0


@kernel_function
def barrier(simd: Any, control: int, line: int, workers: int, phase: int, step: int) -> int:
    """Waits until all workers are here; 1 if the step must stop: the same answer for all. `phase` is the word's value before."""
    if workers == 1:
        return must_stop(simd, step)
    if simd.atomic_add(control + ARRIVALS, 1) == workers - 1:
        decision = must_stop(simd, step)
        simd.atomic_store(control + ARRIVALS, 0)
        simd.store_i64(control + DECISION, decision)
        simd.atomic_store(control + PHASE, phase + 1)
        wake(simd, control, control + PHASE, control + SLEEPERS)
        return decision
    wait_for_change(simd, control, line, line + BUDGET, simd.load_i64(control + SPIN), control + PHASE, control + SLEEPERS, phase)
    return simd.load_i64(control + DECISION)


@kernel_function
def execute(simd: Any, control: int, worker: int, workers: int) -> int:
    """This worker's part of the job, in IEEE arithmetic whatever mode the thread was in. Returns the number of entries run, the same for all."""
    line = worker_line(simd, control, worker)
    entries = simd.load_i64(control + JOB_ENTRIES)
    step = simd.load_i64(control + JOB_STEP)
    counters = simd.load_i64(control + JOB_COUNTERS)
    entry = simd.load_i64(control + JOB_TAPE)
    profiled = worker == 0 and counters != 0
    mode = simd.floating_point_mode()
    simd.set_floating_point_mode(simd.plain_floating_point_mode())
    phase = simd.atomic_load(control + PHASE)
    before = 0
    if profiled:
        before = now(simd, control, line)
    done = 0
    stop = 0
    while done < entries and stop == 0:
        simd.call_kernel(simd.load_i64(entry + ENTRY_KERNEL), simd.load_i64(entry + ENTRY_OPERANDS), step, worker, workers)
        done += 1
        if simd.load_i64(entry + ENTRY_FLAGS) & FLAG_BARRIER != 0 and done < entries:
            stop = barrier(simd, control, line, workers, phase, step)
            phase += 1
        if profiled:
            after = now(simd, control, line)
            simd.store_i64(counters, simd.load_i64(counters) + after - before)
            counters += 8
            before = after
        entry += ENTRY_BYTES
    simd.set_floating_point_mode(mode)
    return done


@kernel_function
def run(simd: Any, control: int, tape: int, entries: int, counters: int, step: int, workers: int) -> int:
    """Runs a tape as worker 0 of `workers`, of which the others are in `work`. Returns the number of entries run, when all have left the tape."""
    simd.store_i64(control + JOB_TAPE, tape)
    simd.store_i64(control + JOB_ENTRIES, entries)
    simd.store_i64(control + JOB_COUNTERS, counters)
    simd.store_i64(control + JOB_STEP, step)
    simd.store_i64(control + JOB_WORKERS, workers)
    joined = simd.atomic_load(control + JOINED)
    for worker in range(1, workers):  # the spinning ones start before anybody is woken
        word = worker_line(simd, control, worker) + COMMAND
        simd.atomic_store(word, simd.atomic_load(word) + 1)
    for worker in range(1, workers):
        wake_worker(simd, control, worker)
    done = execute(simd, control, 0, workers)
    if workers > 1:
        line = worker_line(simd, control, 0)
        wait_for_change(simd, control, line, line + BUDGET, simd.load_i64(control + SPIN), control + JOINED, control + JOIN_SLEEPERS, joined)
    return done


@kernel_function
def dismiss(simd: Any, control: int, worker: int) -> int:
    """Ends a worker that is between jobs."""
    simd.atomic_store(worker_line(simd, control, worker) + COMMAND, QUIT)
    wake_worker(simd, control, worker)
    return 0


@kernel_function
def work(simd: Any, control: int, worker: int) -> int:
    """The life of a worker other than 0: waits for a job, does its part, tells worker 0 if it is the last to finish; until dismissed."""
    line = worker_line(simd, control, worker)
    longest = simd.load_i64(control + IDLE_SPIN)
    seen = 0
    while True:
        wait_for_change(simd, control, line, line + IDLE_BUDGET, longest, line + COMMAND, line + COMMAND_SLEEPERS, seen)
        seen = simd.atomic_load(line + COMMAND)
        if seen == QUIT:
            return 0
        workers = simd.load_i64(control + JOB_WORKERS)
        execute(simd, control, worker, workers)
        if simd.atomic_add(control + FINISHED, 1) == workers - 2:
            simd.atomic_store(control + FINISHED, 0)
            simd.atomic_add(control + JOINED, 1)
            wake(simd, control, control + JOINED, control + JOIN_SLEEPERS)

"""The run loop as kernels: `run` (worker 0, the caller), `work` (the life of every other thread), and the barrier between operations.

Called by `workers` alone, which owns the control block: the memory described by the offsets below, through which the workers of one process
meet. Words that different threads write lie on different pairs of cache lines. A waiter spins by time, because how long an iteration takes differs
a hundredfold between CPUs, and then sleeps in a futex: beside a busy process a pure spin, or one that yields, keeps a few per cent of its speed.

The barrier has no counter that all would fight for: a worker writes the number of the phase that it has finished to a line of its own and reads the
lines of the others, so that between two workers it costs one transfer of a cache line. Nobody can run ahead or behind: a worker that sees a reason
to stop writes down at which phase, before it arrives there, and whoever leaves a phase has seen the lines of all, so all stop at the same entry.
`run` returns only when every worker that took part has left the tape. So the words of a job, and the tape's memory, are free to change once
`run` has returned.

A step may ask for several passes over the tape (a burst): then its last entry counts them down, and all workers wait for each other after it.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.executor.step import CANCEL, PASSES_LEFT, ROW_BLOCKS, STATUS
from kernels_numba.executor.tape import ENTRY_BYTES, ENTRY_FLAGS, ENTRY_KERNEL, ENTRY_OPERANDS, FLAG_BARRIER, FLAG_ROW_WISE
from kernels_numba.simd.function import kernel_function

# Constants of the process, written once.
SYSTEM_CALL = 0  # address of the C library's `syscall`
FUTEX_NUMBER = 8  # of this CPU family
CLOCK = 16  # address of the C library's `clock_gettime`
SPIN = 24  # nanoseconds of spinning before a wait sleeps, at most
IDLE_SPIN = 32  # the same while waiting for a job

# The job: stable while any worker takes part in it.
JOB_TAPE = 128
JOB_ENTRIES = 136
JOB_STEP = 144
JOB_WORKERS = 152
JOB_COUNTERS = 160  # address of int64[entries], or 0
JOB_PHASE = 168  # the phase that every worker of the job has finished when it begins
JOB_LINES = 256  # int64[MAXIMUM_WORKERS]: the lines of the threads that take part, by worker

# Per thread: a pair of cache lines that worker 0 writes, one that only the thread uses, and one that tells the others how far it is.
MAXIMUM_WORKERS = 256
THREAD_LINES = JOB_LINES + 8 * MAXIMUM_WORKERS
THREAD_BYTES = 384
COMMAND = 0  # counts up for each job; QUIT ends the thread
COMMAND_SLEEPERS = 8
COMMAND_WORKER = 16  # which worker of the job it is
BUDGET = 128  # nanoseconds that the next wait spins: adapted between SPIN / 8 and SPIN
IDLE_BUDGET = 136
CLOCK_SCRATCH = 144
ARRIVED = 256  # the last phase that this thread has finished
ARRIVED_SLEEPERS = 264
STOPPED = 272  # the phase at which it saw a reason to stop, or NEVER

QUIT = NEVER = (1 << 62) - 1  # its low half, which is all that a futex compares, is like that of no word before 2^32 jobs
FUTEX_WAIT = 128  # FUTEX_WAIT | FUTEX_PRIVATE_FLAG
FUTEX_WAKE = 129  # FUTEX_WAKE | FUTEX_PRIVATE_FLAG
CHECKS_BEFORE_CLOCK = 64  # looks at the word before the first at the clock: most waits are shorter than what a look at the clock takes
CHECKS_PER_CLOCK = 16  # and between two looks at the clock, which costs some 25 ns


def control_bytes(threads: int) -> int:
    """The size of a control block."""
    return THREAD_LINES + THREAD_BYTES * threads


def thread_line(thread: int) -> int:
    """The offset of a thread's lines in the control block; thread 0 is the caller."""
    return THREAD_LINES + THREAD_BYTES * thread


@kernel_function
def now(simd: Any, control: int, line: int) -> int:
    """Nanoseconds of the monotonic clock. `line` is the calling thread's."""
    return simd.call_clock(simd.load_i64(control + CLOCK), line + CLOCK_SCRATCH)


@kernel_function
def wake(simd: Any, control: int, word: int, sleepers: int) -> None:
    """Wakes those who sleep until `word`, which has just been stored, grows."""
    if simd.atomic_load(sleepers) != 0:
        simd.call_system(simd.load_i64(control + SYSTEM_CALL), simd.load_i64(control + FUTEX_NUMBER), word, FUTEX_WAKE, 0x7FFFFFFF, 0)


@kernel_function
def spin(simd: Any, control: int, line: int, word: int, target: int, start: int, budget: int) -> int:
    """1 if the word reached the target while spinning for `budget` nanoseconds from `start`, else 0."""
    while True:
        for _ in range(CHECKS_PER_CLOCK):
            if simd.atomic_load(word) >= target:
                return 1
            simd.pause()
        if now(simd, control, line) - start >= budget:
            return 0


@kernel_function
def wait_until(simd: Any, control: int, line: int, budget_word: int, longest: int, word: int, sleepers: int, target: int) -> None:
    """Returns when the int64 at `word` is `target` or more. `budget_word` holds how long to spin; it shrinks when waits are longer than `longest` and
    grows back when they are not. A sleeper counts itself before its last look at the word, a waker stores the word before it looks at the count: one
    of them sees the other."""
    for _ in range(CHECKS_BEFORE_CLOCK):
        if simd.atomic_load(word) >= target:
            return
        simd.pause()
    start = now(simd, control, line)
    budget = simd.load_i64(budget_word)
    if budget > 0 and spin(simd, control, line, word, target, start, budget) != 0:
        if budget < longest:
            simd.store_i64(budget_word, min(longest, budget + longest // 8))
        return
    simd.atomic_add(sleepers, 1)
    while True:
        found = simd.atomic_load(word)
        if found >= target:
            break
        # returns at once if the low half of the word is no longer that of `found`
        simd.call_system(simd.load_i64(control + SYSTEM_CALL), simd.load_i64(control + FUTEX_NUMBER), word, FUTEX_WAIT, found, 0)
    simd.atomic_add(sleepers, -1)
    if now(simd, control, line) - start > longest:
        simd.store_i64(budget_word, max(longest // 8, budget // 2))
    else:
        simd.store_i64(budget_word, min(longest, 2 * budget))


@kernel_function
def must_stop(simd: Any, step: int) -> int:
    """1 if a kernel found a fault or somebody cancelled the step."""
    if simd.atomic_load(step + STATUS) != 0 or simd.atomic_load(step + CANCEL) != 0:
        return 1
    return 0


@kernel_function
def arrive(simd: Any, control: int, line: int, phase: int) -> None:
    """Tells the other workers that this one has finished a phase."""
    simd.atomic_store(line + ARRIVED, phase)
    wake(simd, control, line + ARRIVED, line + ARRIVED_SLEEPERS)


@kernel_function
def wait_for_worker(simd: Any, control: int, line: int, other: int, phase: int) -> int:
    """The line of worker number `other`, once it has finished the phase."""
    theirs = simd.load_i64(control + JOB_LINES + 8 * other)
    wait_until(simd, control, line, line + BUDGET, simd.load_i64(control + SPIN), theirs + ARRIVED, theirs + ARRIVED_SLEEPERS, phase)
    return theirs


@kernel_function
def barrier(simd: Any, control: int, line: int, worker: int, workers: int, phase: int, step: int) -> int:
    """Waits until all workers have finished `phase`; 1 if the step must stop: the same answer for all."""
    stop = must_stop(simd, step)
    if workers == 1:
        return stop
    if stop != 0:
        simd.store_i64(line + STOPPED, phase)
    arrive(simd, control, line, phase)
    for other in range(workers):
        if other != worker:
            theirs = wait_for_worker(simd, control, line, other, phase)
            if simd.load_i64(theirs + STOPPED) <= phase:
                stop = 1
    return stop


@kernel_function
def is_row_wise(simd: Any, entry: int) -> bool:
    return simd.load_i64(entry + ENTRY_FLAGS) & FLAG_ROW_WISE != 0


@kernel_function
def charge(simd: Any, control: int, line: int, counter: int, before: int) -> int:
    """Adds the time since `before` to a counter; returns now. Does nothing where no time is kept: then `before` is 0."""
    if before == 0:
        return 0
    after = now(simd, control, line)
    simd.store_i64(counter, simd.load_i64(counter) + after - before)
    return after


@kernel_function
def run_pass(simd: Any, control: int, line: int, worker: int, workers: int, step: int, phase: int) -> tuple[int, int, int]:
    """This worker's part of one pass over the tape. Returns the last phase that it has finished, the number of entries run and whether the step must
    stop; the last two are the same for all.

    Where the step says that workers share rows, entries that follow each other and are row-wise are run one after the other for each block of rows, so that
    what one writes is still in the worker's cache when the next one reads it; workers wait before and after such a chain, not within.
    """
    entries = simd.load_i64(control + JOB_ENTRIES)
    counters = simd.load_i64(control + JOB_COUNTERS)
    entry = simd.load_i64(control + JOB_TAPE)
    blocks = simd.load_i64(step + ROW_BLOCKS)
    before = 0
    if worker == 0 and counters != 0:
        before = now(simd, control, line)
    done = 0
    stop = 0
    while done < entries and stop == 0:
        count = 1
        share = worker
        end_share = worker + 1
        shares = workers
        waits = simd.load_i64(entry + ENTRY_FLAGS) & FLAG_BARRIER != 0
        if blocks != 0:
            if is_row_wise(simd, entry):
                while done + count < entries and is_row_wise(simd, entry + ENTRY_BYTES * count):
                    count += 1
                share = blocks * worker // workers
                end_share = blocks * (worker + 1) // workers
                shares = blocks
                waits = True
            elif done + 1 < entries and is_row_wise(simd, entry + ENTRY_BYTES):
                waits = True
        while share < end_share:
            for index in range(count):
                called = entry + ENTRY_BYTES * index
                simd.call_kernel(simd.load_i64(called + ENTRY_KERNEL), simd.load_i64(called + ENTRY_OPERANDS), step, share, shares)
                before = charge(simd, control, line, counters + 8 * (done + index), before)
            share += 1
        done += count
        entry += ENTRY_BYTES * count
        if waits and done < entries:
            phase += 1
            stop = barrier(simd, control, line, worker, workers, phase, step)
            before = charge(simd, control, line, counters + 8 * (done - 1), before)
    return phase, done, stop


@kernel_function
def execute(simd: Any, control: int, line: int, worker: int, workers: int) -> int:
    """This worker's part of the job, in IEEE arithmetic whatever mode the thread was in. Returns the number of entries that the last pass ran, the same
    for all."""
    step = simd.load_i64(control + JOB_STEP)
    mode = simd.floating_point_mode()
    simd.set_floating_point_mode(simd.plain_floating_point_mode())
    simd.store_i64(line + STOPPED, NEVER)
    burst = simd.load_i64(step + PASSES_LEFT) > 1
    phase, done, stop = run_pass(simd, control, line, worker, workers, step, simd.load_i64(control + JOB_PHASE))
    while burst and stop == 0:
        phase += 1
        stop = barrier(simd, control, line, worker, workers, phase, step)
        burst = simd.load_i64(step + PASSES_LEFT) > 0
        if burst and stop == 0:
            phase, done, stop = run_pass(simd, control, line, worker, workers, step, phase)
    simd.set_floating_point_mode(mode)
    if workers > 1:
        arrive(simd, control, line, phase + 1)
    if worker == 0:
        for other in range(1, workers):
            wait_for_worker(simd, control, line, other, phase + 1)
    return done


@kernel_function
def run(simd: Any, control: int, tape: int, entries: int, counters: int, step: int, workers: int) -> int:
    """Runs a tape as worker 0 of the `workers` whose lines are in JOB_LINES; the others are in `work`. Returns the number of entries run, when all
    have left the tape."""
    line = control + THREAD_LINES
    simd.store_i64(control + JOB_TAPE, tape)
    simd.store_i64(control + JOB_ENTRIES, entries)
    simd.store_i64(control + JOB_COUNTERS, counters)
    simd.store_i64(control + JOB_STEP, step)
    simd.store_i64(control + JOB_WORKERS, workers)
    simd.store_i64(control + JOB_PHASE, simd.load_i64(line + ARRIVED))
    for worker in range(1, workers):  # the spinning ones start before anybody is woken
        word = simd.load_i64(control + JOB_LINES + 8 * worker) + COMMAND
        simd.atomic_store(word, simd.load_i64(word) + 1)
    for worker in range(1, workers):
        other = simd.load_i64(control + JOB_LINES + 8 * worker)
        wake(simd, control, other + COMMAND, other + COMMAND_SLEEPERS)
    return execute(simd, control, line, 0, workers)


@kernel_function
def dismiss(simd: Any, control: int, line: int) -> int:
    """Ends a thread that is between jobs."""
    simd.atomic_store(line + COMMAND, QUIT)
    wake(simd, control, line + COMMAND, line + COMMAND_SLEEPERS)
    return 0


@kernel_function
def work(simd: Any, control: int, line: int) -> int:
    """The life of a thread other than the caller's: waits for a job, does its part, tells worker 0; until dismissed."""
    seen = 0
    while True:
        longest = simd.load_i64(control + IDLE_SPIN)
        wait_until(simd, control, line, line + IDLE_BUDGET, longest, line + COMMAND, line + COMMAND_SLEEPERS, seen + 1)
        seen = simd.atomic_load(line + COMMAND)
        if seen == QUIT:
            return 0
        execute(simd, control, line, simd.load_i64(line + COMMAND_WORKER), simd.load_i64(control + JOB_WORKERS))

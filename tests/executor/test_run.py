"""The run loop and the worker pool: nothing is lost, nothing depends on the number of workers, everybody stops at the same place."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time

import numpy as np
import pytest

from kernels_numba.executor.aligned import address_of, aligned_zeros
from kernels_numba.executor.step import StepRecord
from kernels_numba.executor.store import KernelStore
from kernels_numba.executor.tape import Tape, TapeEntry, float_operand
from kernels_numba.executor.workers import SPIN_NANOSECONDS, Stopped, WorkerPool, WorkerPoolError
from tests.arm64 import emulation
from tests.executor.kernels import add_own, busy, count_pass, fault, halve, mode, name_of, note, prefix

SCALE = 10 if emulation.active else 1


def chain(addresses, entries: int, count: int) -> tuple[Tape, list[np.ndarray]]:
    """A tape that sends `count` numbers back and forth between two arrays, each entry reading what all workers wrote before."""
    buffers = [aligned_zeros(count, np.int64), aligned_zeros(count, np.int64)]
    buffers[0][:] = np.arange(count) * 12345 % 1009
    operands = [[address_of(buffers[i % 2]), address_of(buffers[(i + 1) % 2]), count] for i in range(entries)]
    return Tape.build([TapeEntry(name_of(prefix), words, label=f"entry {i}") for i, words in enumerate(operands)], addresses), buffers


def chain_in_numpy(entries: int, count: int, steps: int) -> np.ndarray:
    values = np.arange(count) * 12345 % 1009
    source = (np.arange(count) * 7 + 1) % count
    for _ in range(entries * steps):
        values = (values[source] * 3 + np.arange(count)) & 0xFFFFFFFF
    return values


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("spin", [SPIN_NANOSECONDS, 0])
def test_results_do_not_depend_on_workers(store: KernelStore, step: StepRecord, kernel_addresses, workers: int, spin: int) -> None:
    steps = 400 // SCALE
    tape, buffers = chain(kernel_addresses, entries=10, count=67)
    with WorkerPool(workers, None, store, spin_nanoseconds=spin) as pool:
        for _ in range(steps):
            assert pool.run(tape, step) is None
    assert np.array_equal(buffers[0], chain_in_numpy(10, 67, steps))


def test_no_wakeup_is_lost_between_sleeps_and_beside_busy_threads(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    """Thousands of short steps with changing numbers of workers, random pauses of the caller, uneven work and a thread that keeps a core busy."""
    steps = 6000 // SCALE
    tape, buffers = chain(kernel_addresses, entries=4, count=67)
    uneven = Tape.build([TapeEntry(name_of(busy), [20]), TapeEntry(name_of(busy), [0])], kernel_addresses)
    library_busy = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(kernel_addresses[name_of(busy)])
    enough = threading.Event()

    def disturb() -> None:
        amount = np.array([20_000], np.int64)
        while not enough.is_set():
            library_busy(address_of(amount), 0, 0, 1)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    chance = random.Random(1)
    try:
        with WorkerPool(3, None, store, spin_nanoseconds=5000) as pool:
            for number in range(steps):
                assert pool.run(tape, step, workers=chance.randint(1, 3)) is None
                if number % 50 == 0:
                    pool.run(uneven, step)
                if chance.random() < 0.02:
                    time.sleep(chance.random() * 0.001)
    finally:
        enough.set()
        disturber.join()
    assert np.array_equal(buffers[0], chain_in_numpy(4, 67, steps))


def test_every_worker_runs_every_entry_once(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    counts = aligned_zeros((3, 8), np.int64)
    tape = Tape.build([TapeEntry(name_of(add_own), [address_of(counts)], barrier_after=i % 2 == 0) for i in range(9)], kernel_addresses)
    with WorkerPool(3, None, store) as pool:
        for workers in (3, 1, 2, 3, 2):
            pool.run(tape, step, workers)
    assert counts[:, 0].tolist() == [9 * 5, 9 * 4, 9 * 2]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_chains_run_block_by_block(store: KernelStore, step: StepRecord, kernel_addresses, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where workers share rows: what is row-wise is called for every block, entry after entry for a block; others wait for all of a chain, and it for them."""
    row_wise = [False, True, True, True, False, False, True]
    blocks = 2 * workers
    monkeypatch.setattr("kernels_numba.executor.workers.row_blocks", lambda rows, workers: blocks)
    notes, counter = aligned_zeros((len(row_wise), blocks, 2), np.int64), aligned_zeros(1, np.int64)
    entries = [
        TapeEntry(name_of(note), [address_of(notes[index]), address_of(counter)], barrier_after=index == 4, row_wise=wise)
        for index, wise in enumerate(row_wise)
    ]
    tape = Tape.build(entries, kernel_addresses, profile=True)
    assert tape.counters is not None
    with WorkerPool(workers, None, store) as pool:
        for _ in range(200 // SCALE):
            notes[:] = -1
            tape.counters[:] = 0
            assert pool.run(tape, step) is None
            calls = [blocks if wise else workers for wise in row_wise]
            numbers = [notes[index, :count, 0] for index, count in enumerate(calls)]
            assert [set(notes[index, :count, 1]) for index, count in enumerate(calls)] == [{count} for count in calls]
            assert (tape.counters > 0).all()
            for block in range(blocks):
                assert numbers[1][block] < numbers[2][block] < numbers[3][block]
                if block % 2 == 1:  # a worker's second block
                    assert numbers[3][block - 1] < numbers[1][block]
            for before, after in ((0, 1), (3, 4), (4, 5), (5, 6)):
                assert numbers[before].max() < numbers[after].min(), (before, after)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_fault_stops_all_workers_at_the_same_place(store: KernelStore, step: StepRecord, kernel_addresses, workers: int, culprit: int) -> None:
    counts = aligned_zeros((3, 8), np.int64)
    count = TapeEntry(name_of(add_own), [address_of(counts)], label="count")
    entries = [count, count, TapeEntry(name_of(fault), [culprit], label="breaks"), count, count]
    tape = Tape.build(entries, kernel_addresses)
    zero = np.zeros(1, np.int32)
    with WorkerPool(workers, None, store) as pool:
        for repeat in range(1, 101):
            step.fill(zero, zero, zero, zero, zero, [[]])
            assert pool.run(tape, step) == Stopped(entry=2, label="breaks", status=1, cancelled=False)
            assert counts[:, 0].tolist() == [2 * repeat] * workers + [0] * (3 - workers)


def test_any_of_the_workers_may_sit_out(store: KernelStore, step: StepRecord, kernel_addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ones take part changes from run to run, and with it who is which worker; a thread that sat out joins at the right phase."""
    chance = random.Random(2)
    seen = set()

    class Whims:
        def before_run(self) -> tuple[int, ...]:
            places = tuple(sorted(chance.sample(range(4), chance.randint(1, 4))))
            seen.add(places)
            return places

        def after_run(self, kind: int, seconds: float, passes: int) -> None:
            assert kind == step.rows and seconds > 0 and passes == 1

    steps = 2000 // SCALE
    tape, buffers = chain(kernel_addresses, entries=4, count=67)
    counts = aligned_zeros((4, 8), np.int64)
    counting = Tape.build([TapeEntry(name_of(add_own), [address_of(counts)])], kernel_addresses)
    with WorkerPool(4, None, store, adapt=True) as pool:
        monkeypatch.setattr(pool, "_placement", Whims())
        for _ in range(steps):
            assert pool.run(tape, step) is None
        assert pool.run(counting, step, workers=4) is None  # an explicit number is obeyed
    assert np.array_equal(buffers[0], chain_in_numpy(4, 67, steps))
    assert counts[:, 0].tolist() == [1, 1, 1, 1]
    assert len(seen) == 15


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_burst_runs_the_tape_until_its_passes_are_done_or_it_is_ended(store: KernelStore, step: StepRecord, kernel_addresses, workers: int) -> None:
    chained, buffers = chain(kernel_addresses, entries=4, count=67)
    step = StepRecord(1, 1, 0, maximum_passes=40)
    zero, nobody = np.zeros(1, np.int32), np.zeros(1, np.int64)
    total = 0
    with WorkerPool(workers, None, store) as pool:
        for turn in range(200 // SCALE):
            for passes, enough, expected in ((1, 99, 1), (7, 99, 7), (40, 13, 13), (2, 1, 1)):
                tape = Tape.build([*chained.entries, TapeEntry(name_of(count_pass), [enough], label="count")], kernel_addresses, profile=turn == 0)
                step.fill(zero, zero, zero, zero, zero, [[]])
                step.make_burst(passes, zero, nobody)
                assert pool.run(tape, step) is None
                assert step.passes_done == expected
                assert turn or (tape.counters > 0).all()
                total += expected
    assert np.array_equal(buffers[0], chain_in_numpy(4, 67, total))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_burst_stops_where_it_is_cancelled(store: KernelStore, kernel_addresses, workers: int) -> None:
    entries = [TapeEntry(name_of(busy), [200], label="busy"), TapeEntry(name_of(count_pass), [1 << 40], label="count")]
    tape = Tape.build(entries, kernel_addresses)
    step = StepRecord(1, 1, 0, maximum_passes=1 << 20)
    zero, nobody = np.zeros(1, np.int32), np.zeros(1, np.int64)
    with WorkerPool(workers, None, store) as pool:
        step.fill(zero, zero, zero, zero, zero, [[]])
        step.make_burst(1 << 20, zero, nobody)
        timer = threading.Timer(0.02, step.cancel)
        timer.start()
        stopped = pool.run(tape, step)
        timer.join()
    assert step.cancelled and 0 < step.passes_done < 1 << 20
    assert stopped is None or (stopped.cancelled and stopped.label == "busy")  # between two passes there is nothing to take back


def test_a_fault_in_the_last_entry_is_reported(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    tape = Tape.build([TapeEntry(name_of(fault), [0], label="last")], kernel_addresses)
    with WorkerPool(2, None, store) as pool:
        assert pool.run(tape, step) == Stopped(entry=0, label="last", status=1, cancelled=False)


def test_cancelling_from_another_thread_stops_a_run(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    amount = [2_000]
    tape = Tape.build([TapeEntry(name_of(busy), amount, label=str(i)) for i in range(200_000)], kernel_addresses)
    with WorkerPool(2, None, store) as pool:
        timer = threading.Timer(0.05, step.cancel)
        timer.start()
        stopped = pool.run(tape, step)
        timer.join()
        assert stopped is not None and stopped.cancelled and stopped.status == 0
        assert stopped.entry < len(tape) - 1 and stopped.label == str(stopped.entry)
        zero = np.zeros(1, np.int32)
        step.fill(zero, zero, zero, zero, zero, [[]])
        short, buffers = chain(kernel_addresses, entries=2, count=67)
        assert pool.run(short, step) is None
        assert np.array_equal(buffers[0], chain_in_numpy(2, 67, 1))


def test_kernels_compute_in_ieee_mode_and_the_caller_keeps_its_own(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    """A caller that flushes subnormals to zero (other libraries switch that on) gets the same bits, and its mode back."""
    set_mode = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(kernel_addresses[name_of(mode)])
    if store.level.architecture == "x86_64":
        flushing, kept = 0x1F80 | 0x8040, 0xFFFF & ~0x3F  # flush to zero, denormals are zero; without the sticky exception flags
    else:
        flushing = kept = 1 << 24  # FPCR.FZ
    values = aligned_zeros((3, 16), np.float32)
    values[:, 0] = 1.5e-38
    tape = Tape.build([TapeEntry(name_of(halve), [address_of(values), float_operand(0.25)])] * 2, kernel_addresses)
    with WorkerPool(3, None, store) as pool:
        before = set_mode(flushing, 0, 0, 0)
        try:
            assert pool.run(tape, step) is None
        finally:
            after = set_mode(before, 0, 0, 0)
    assert after & kept == flushing & kept
    expected = np.float32(1.5e-38) * np.float32(0.25) * np.float32(0.25)
    assert 0 < expected < np.finfo(np.float32).tiny
    assert values[:, 0].view(np.int32).tolist() == [expected.view(np.int32)] * 3


def test_idle_workers_use_no_processor_time(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    tape, _ = chain(kernel_addresses, entries=4, count=67)
    with WorkerPool(3, None, store) as pool:
        for _ in range(100):
            pool.run(tape, step)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.02
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgeinfer-worker")]


def test_runs_of_two_threads_take_turns(store: KernelStore, kernel_addresses) -> None:
    zero = np.zeros(1, np.int32)
    results = []

    def engine(pool: WorkerPool, workers: int) -> None:
        record = StepRecord(1, 1, 0)
        record.fill(zero, zero, zero, zero, zero, [[]])
        tape, buffers = chain(kernel_addresses, entries=6, count=67)
        for _ in range(300 // SCALE):
            assert pool.run(tape, record, workers) is None
        results.append(buffers[0])

    with WorkerPool(3, None, store) as first, WorkerPool(2, None, store) as second:
        threads = [threading.Thread(target=engine, args=arguments) for arguments in ((first, 3), (second, 2), (first, 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = chain_in_numpy(6, 67, 300 // SCALE)
    assert len(results) == 3 and all(np.array_equal(result, expected) for result in results)


def worker_threads() -> int:
    return sum(thread.name.startswith("edgeinfer-worker") for thread in threading.enumerate())


def test_pools_share_threads_and_give_them_back(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    tape, _ = chain(kernel_addresses, entries=2, count=67)
    first = WorkerPool(2, None, store)
    second = WorkerPool(3, None, store)
    assert worker_threads() == 2
    second.resize(1)
    assert worker_threads() == 1
    second.resize(4)
    assert worker_threads() == 3
    assert second.run(tape, step) is None and first.run(tape, step) is None
    second.close()
    assert worker_threads() == 1
    first.close()
    first.close()
    assert worker_threads() == 0
    with pytest.raises(WorkerPoolError, match="closed"):
        first.run(tape, step)


def test_wrong_counts_and_cores_are_refused(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    tape, _ = chain(kernel_addresses, entries=2, count=67)
    for count, cores, message in ((0, None, "0 workers"), (1000, None, "1000 workers"), (2, [0], "1 cores for 2 workers")):
        with pytest.raises(ValueError, match=message):
            WorkerPool(count, cores, store)
    with WorkerPool(2, None, store) as pool, pytest.raises(ValueError, match="3 workers; this pool has 2"):
        pool.run(tape, step, workers=3)
    if not emulation.active:
        with pytest.raises(ValueError, match="cannot be bound to core 1023"):
            WorkerPool(2, [0, 1023], store)
    assert worker_threads() == 0


@pytest.mark.skipif(emulation.active, reason="emulated threads are not the kernel's")
def test_workers_are_bound_to_their_cores(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cores = [allowed[0], allowed[-1]]
    tape, _ = chain(kernel_addresses, entries=2, count=67)
    with WorkerPool(2, cores, store) as pool:
        worker = next(thread for thread in threading.enumerate() if thread.name == "edgeinfer-worker-1")
        pool.run(tape, step)
        assert os.sched_getaffinity(worker.native_id) == {cores[1]}
        assert os.sched_getaffinity(0) == set(allowed)
    assert os.sched_getaffinity(0) == set(allowed)


@pytest.mark.skipif(emulation.active, reason="emulated threads are not the kernel's")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_caller_is_bound_while_it_runs_with_others(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    """Unbound, the scheduler puts it on the core of another worker when its own is busy, and the two take turns at every barrier."""
    allowed = sorted(os.sched_getaffinity(0))
    tape = Tape.build([TapeEntry(name_of(busy), [2_000]) for _ in range(200_000)], kernel_addresses)
    zero = np.zeros(1, np.int32)
    with WorkerPool(2, allowed[:2], store) as pool:
        for workers, during in ((2, {allowed[0]}), (1, set(allowed))):
            step.fill(zero, zero, zero, zero, zero, [[]])
            caller = threading.Thread(target=pool.run, args=(tape, step, workers))
            caller.start()
            time.sleep(0.02)
            seen = os.sched_getaffinity(caller.native_id)
            step.cancel()
            caller.join()
            assert seen == during
        os.sched_setaffinity(0, {allowed[1]})  # the user restricts this thread: then that is where it runs
        try:
            step.fill(zero, zero, zero, zero, zero, [[]])
            short, _ = chain(kernel_addresses, entries=2, count=67)
            assert pool.run(short, step) is None
            assert os.sched_getaffinity(0) == {allowed[1]}
        finally:
            os.sched_setaffinity(0, allowed)


def test_profile_counts_time_by_entry(store: KernelStore, step: StepRecord, kernel_addresses) -> None:
    entries = [TapeEntry(name_of(busy), [0], label="nothing"), TapeEntry(name_of(busy), [20_000], label="much")]
    tape = Tape.build(entries, kernel_addresses, profile=True)
    with WorkerPool(1, None, store) as pool:
        for _ in range(3):
            pool.run(tape, step)
    assert tape.counters is not None and 0 < tape.counters[0] < tape.counters[1]
    assert "us" in tape.listing()

"""Which workers take part: on a simulated machine, whose speed depends on who waits for a core and on how many work."""

from __future__ import annotations

import os
import time

import pytest

from kernels_numba.executor.placement import FORGET, LONGEST_PAUSE, PERIOD, Placement, fewer, waiting_seconds


class Machine:
    """Runs take `work` seconds divided by the number of workers; a worker whose core is taken makes all wait as long again, times `harm`."""

    def __init__(self, count: int, harm: float = 3.0) -> None:
        self.now = 100.0
        self.taken: set[int] = set()
        self.harm = harm
        self.waiting = [0.0] * count
        self.counts_waiting = True
        self.placement = Placement(count, lambda worker: self.waiting[worker] if self.counts_waiting else None, lambda: self.now)

    def run(self, kind: int = 1, work: float = 0.002) -> float:
        active = self.placement.before_run()
        disturbed = self.taken & set(active)
        seconds = work / len(active) * (1 + (self.harm if disturbed else 0))
        for worker in disturbed:
            self.waiting[worker] += seconds / 2
        self.now += seconds
        self.placement.after_run(kind, seconds)
        return seconds

    def run_for(self, seconds: float, kind: int = 1, work: float = 0.002) -> float:
        """Runs a second."""
        end, runs, began = self.now + seconds, 0, self.now
        while self.now < end:
            self.run(kind, work)
            runs += 1
        return runs / (self.now - began)


def test_all_workers_stay_while_nobody_takes_a_core() -> None:
    machine = Machine(4)
    for _ in range(5_000):
        machine.run()
        assert machine.placement.active == (0, 1, 2, 3)


def test_one_worker_never_looks_at_anything() -> None:
    machine = Machine(1)
    machine.taken = {0}
    machine.run_for(1)
    assert machine.placement.active == (0,)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_the_worker_that_waits_is_left_out_and_comes_back(taken: int) -> None:
    machine = Machine(4)
    machine.run_for(0.5)
    machine.taken = {taken}
    machine.run_for(3 * PERIOD)
    rest = tuple(worker for worker in range(4) if worker != taken)
    assert machine.placement.active == rest
    machine.run_for(20)
    rate = machine.run_for(10)
    assert rate > 0.95 * 3 / 0.002  # trials of all workers cost little
    machine.taken = set()
    machine.run_for(LONGEST_PAUSE + 3 * PERIOD)
    assert machine.placement.active == (0, 1, 2, 3)


def test_fewer_workers_that_are_no_faster_do_not_stay() -> None:
    machine = Machine(2, harm=0.5)  # beside a busy process on each core two workers are still faster than one
    machine.taken = {0, 1}
    machine.run_for(3)
    rate = machine.run_for(20)
    assert rate > 0.97 * 2 / 0.002 / 1.5


def test_half_of_the_workers_are_tried_where_all_wait() -> None:
    assert fewer((0, 1, 2, 3), dict.fromkeys(range(4), 0.5)) == (0, 1)
    assert fewer((0, 1), {0: 0.2, 1: 0.3}) == (0,)
    assert fewer((2, 5, 6), {2: 0.2, 5: 0.0, 6: 0.05}) == (5, 6)


def test_runs_of_different_kinds_are_not_compared() -> None:
    """A prompt is read while one worker is tried for tokens: its slow run says nothing about the trial."""
    machine = Machine(2)
    machine.taken = {1}
    while machine.placement.active == (0, 1):
        machine.run()
    machine.run(kind=512, work=1.0)
    machine.run_for(2 * PERIOD)
    assert machine.placement.active == (0,)


def test_a_trial_that_finds_nothing_to_compare_ends() -> None:
    machine = Machine(2)
    machine.taken = {1}
    while machine.placement.active == (0, 1):
        machine.run()
    machine.taken = set()
    machine.run_for(10 * PERIOD, kind=7)
    assert machine.placement.active == (0, 1)


def test_after_a_rest_all_workers_start_again() -> None:
    machine = Machine(2)
    machine.taken = {1}
    machine.run_for(1)
    assert machine.placement.active == (0,)
    machine.now += FORGET + 0.01
    assert machine.placement.before_run() == (0, 1)


def test_a_kernel_that_counts_no_waiting_changes_nothing() -> None:
    machine = Machine(2)
    machine.counts_waiting = False
    machine.taken = {1}
    machine.run_for(2)
    assert machine.placement.active == (0, 1)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel does not count how long threads wait")
def test_waiting_of_a_thread_is_read_from_the_kernel() -> None:
    before = waiting_seconds(os.getpid())
    time.sleep(0.01)
    after = waiting_seconds(os.getpid())
    assert before is not None and after is not None and 0 <= before <= after < 1e6
    assert waiting_seconds(0) is None

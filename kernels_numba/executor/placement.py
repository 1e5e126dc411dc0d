"""Which workers take part in the next run: all of them, unless the operating system gives their cores to somebody else and fewer are faster. Free of Numba.

One worker that waits for its core makes all others wait at every barrier. Beside one busy process on one of two cores, two workers kept a third of
their speed and one alone on the free core three fifths; beside one on each core, two kept two fifths and one alone less. So nothing is assumed: when
workers are found waiting for their cores, fewer are tried for a moment, and the faster choice stays; while workers are left out, all are tried again
from time to time. A machine that is left to us pays for one look at the counters in `PERIOD`. Called by `workers` alone, after every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

PERIOD = 0.04
"""Seconds of running after which the waiting times are looked at: ten ticks of a kernel that switches tasks 250 times a second."""

DISTURBED = 0.1
"""The share of its time that a worker may wait for its core before fewer workers are tried."""

GAIN = 1.08
"""Fewer workers stay only if they are so many times as fast: they give up cores, and the measurement is noisy."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 1.6
"""Seconds between two trials: doubled while they change nothing."""

FORGET = 1.0
"""Seconds without a run after which nothing is known any more."""

_INCONCLUSIVE_PERIODS = 5


class Placement:
    """The choice for one pool of `count` workers. `waited(worker)` gives the seconds that the thread of a worker has waited for its core since some
    fixed moment, None where the kernel does not count them; `clock` gives seconds."""

    def __init__(self, count: int, waited: Callable[[int], float | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._all = tuple(range(count))
        self._waited = waited
        self._clock = clock
        self.active: tuple[int, ...] = self._all
        self._reset(clock())

    def before_run(self) -> tuple[int, ...]:
        """The workers that take part in the run that starts now, in ascending order; the first is the caller's place."""
        now = self._clock()
        if len(self._all) > 1 and now - self._last_run > FORGET:
            self._reset(now)
        return self.active

    def after_run(self, kind: int, seconds: float, passes: int = 1) -> None:
        """Takes note of a run of so many passes. Passes of the same `kind` are expected to take equally long: their number of rows will do."""
        if len(self._all) == 1:
            return
        self._last_run = self._clock()
        spent = self._spent.setdefault(kind, [0.0, 0])
        spent[0] += seconds
        spent[1] += passes
        self._busy += seconds
        if self._busy >= PERIOD:
            self._end_period(self._last_run)

    def _reset(self, now: float) -> None:
        self.active = self._all
        self._before_trial: tuple[tuple[int, ...], dict[int, float]] | None = None
        self._tried_fewer = False
        self._pause = SHORTEST_PAUSE
        self._next_trial = now
        self._last_run = now
        self._begin_period()

    def _begin_period(self) -> None:
        self._spent: dict[int, list[float]] = {}  # kind -> seconds, passes
        self._busy = 0.0
        self._periods = 0
        self._counters = {worker: self._waited(worker) for worker in self.active}

    def _end_period(self, now: float) -> None:
        rates = {kind: passes / seconds for kind, (seconds, passes) in self._spent.items() if seconds > 0}
        if self._before_trial is not None:
            self._judge(rates, now)
            return
        shares = {worker: self._share(worker, before) for worker, before in self._counters.items()}
        disturbed = max(shares.values()) > DISTURBED
        if now >= self._next_trial:
            retry_all = self.active != self._all and (self._tried_fewer or not disturbed)
            others = fewer(self.active, shares) if disturbed and len(self.active) > 1 and not retry_all else self._all
            self._tried_fewer = len(others) < len(self.active)
            if others != self.active:
                self._before_trial = (self.active, rates)
                self.active = others
        self._begin_period()

    def _share(self, worker: int, before: float | None) -> float:
        after = self._waited(worker)
        return 0.0 if before is None or after is None else max(0.0, after - before) / self._busy

    def _judge(self, rates: dict[int, float], now: float) -> None:
        assert self._before_trial is not None
        before, rates_before = self._before_trial
        common = [kind for kind in rates if kind in rates_before]
        if not common:
            self._periods += 1
            if self._periods < _INCONCLUSIVE_PERIODS:
                self._busy = 0.0
                return
        kind = max(common, key=lambda kind: self._spent[kind][0], default=None)
        needed = GAIN if len(self.active) < len(before) else 1.0
        if kind is not None and rates[kind] > needed * rates_before[kind]:
            self._pause = SHORTEST_PAUSE
        else:
            self.active = before
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next_trial = now + self._pause
        self._before_trial = None
        self._begin_period()


def fewer(active: Sequence[int], shares: dict[int, float]) -> tuple[int, ...]:
    """The smaller set to try: the workers that do not wait for their cores, or half of them where all do."""
    undisturbed = tuple(worker for worker in active if shares[worker] <= DISTURBED)
    return undisturbed if 0 < len(undisturbed) < len(active) else tuple(active[: (len(active) + 1) // 2])


def waiting_seconds(thread: int) -> float | None:
    """How long the thread with this number in the kernel has been ready to run without running since it began. None if the kernel does not say."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return None

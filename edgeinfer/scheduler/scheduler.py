"""One loop for everything: each sequence has computed tokens that chase its known tokens, and a step spends a budget of rows on whoever is behind.

There is no prefill phase and no decode phase. Chunked prefill, joining and leaving between steps, prefix hits and resuming after a preemption
follow from it. The engine's thread is the only caller; tests call it directly over the fake backend.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Backend, PrefixSharingBackend
from edgeinfer.core.errors import ContextLengthError, NonFiniteError, StepAbortedError
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, UNDECIDED, Burst, Draws, StepOutputs
from edgeinfer.scheduler.bursts import Pace
from edgeinfer.scheduler.kept import KeptSequences
from edgeinfer.scheduler.pages import CachePages
from edgeinfer.scheduler.plan import Chunk, StepPlan, build_step, next_chunk
from edgeinfer.scheduler.sequence import BurstConsumer, Sequence, Verdict


@dataclass(frozen=True)
class SchedulerState:
    """A snapshot for people and tests. Pages by cache group; used are those of running sequences, since all others go when their places are needed."""

    running: int
    waiting: int
    steps: int
    preemptions: int
    pages_used: dict[str, int]
    pages_total: dict[str, int]


class Scheduler:
    """Continuous batching with paged admission, preemption by recomputation and prefix reuse.

    Older sequences go before younger ones: when pages run out, the youngest is preempted and computed again later, which gives the same tokens. So
    the oldest always gets on, and because no sequence may be larger than the pool (see `context`), every sequence ends.

    Over a backend that keeps its own cache and shares prefixes, sequences that have ended are kept for others to begin with, until their places are
    needed: those go first that were least recently of use.

    While every sequence decodes and lets the backend choose its tokens, and nobody waits, a step is a burst of several tokens, short enough that nobody
    notices (see `bursts`).
    """

    def __init__(self, backend: Backend, prefix_reuse: bool = True) -> None:
        capabilities = backend.capabilities
        self._backend = backend
        self._capabilities = capabilities
        self._pages = CachePages(capabilities, prefix_reuse)
        self._pools = self._pages.pools
        self._running: list[Sequence] = []  # by age
        self._waiting: list[Sequence] = []  # by age
        self._pace = Pace(capabilities.maximum_passes)
        self._interrupt = np.zeros(1, dtype=np.int64)
        self._abort = np.zeros(1, dtype=np.int64)
        self._in_step: tuple[Sequence, ...] = ()
        self._steps = 0
        self._preemptions = 0
        # Over a backend that keeps its own cache. It promises no bits across chunks, so a hit is as good as any other way to cut the prompt.
        keeps = prefix_reuse and not capabilities.uses_block_tables and capabilities.kept_sequences > 0 and self._pages.windows == (0,)
        self._kept = KeptSequences(cast(PrefixSharingBackend, backend), self._pools[0], capabilities.kept_sequences) if keeps else None
        self.context = self._pages.context

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def state(self) -> SchedulerState:
        return SchedulerState(
            len(self._running),
            len(self._waiting),
            self._steps,
            self._preemptions,
            {pool.name: self._used(index) for index, pool in enumerate(self._pools)},
            {pool.name: pool.pages for pool in self._pools},
        )

    def _used(self, group: int) -> int:
        if not self._kept:
            return self._pools[group].used
        return len({page for sequence in self._running for page in sequence.tables[group].held()})

    def submit(self, sequence: Sequence) -> None:
        """Queues a sequence. Raises ContextLengthError for one that can never be computed."""
        if len(sequence.tokens) > self.context:
            raise ContextLengthError(len(sequence.tokens), self.context)
        self._insert(self._waiting, sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence at whatever point it is; a sequence that has ended already is left alone."""
        if sequence in self._running or sequence in self._waiting:
            self._end(sequence)

    def fail_all(self, error: BaseException) -> None:
        """Ends every sequence with `error`."""
        for sequence in [*self._running, *self._waiting]:
            self._fail(sequence, error)

    def step(self) -> bool:
        """Runs one step; False if there is nothing to run (no sequence, or all of them paused)."""
        self._admit()
        chunks = self._plan()
        if not chunks:
            return False
        self._run(chunks, self._plan_burst(chunks))
        self._steps += 1
        return True

    def interrupt_burst(self) -> None:
        """Ends the burst that runs after the token that is being computed, and allows none of more than one until `allow_bursts`. From any thread."""
        self._interrupt[0] = 1

    def abandon(self, sequence: Sequence | None = None) -> None:
        """Ends the step that runs if it is for this sequence alone (None: whoever it is for), where the backend can. From any thread.

        Nothing is lost if others still want it: a step that was ended is run again.
        """
        self.interrupt_burst()
        in_step = self._in_step
        if sequence is None or (len(in_step) == 1 and in_step[0] is sequence):
            self._abort[0] = 1

    def allow_bursts(self) -> None:
        """Takes `interrupt_burst` and `abandon` back."""
        self._interrupt[0] = self._abort[0] = 0

    def check(self) -> None:
        """Raises AssertionError if a page is lost, doubled or miscounted."""
        self._pages.check(holder.tables for holder in (*self._running, *(self._kept or ())))

    # Admission -----------------------------------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        for sequence in list(self._waiting):
            if sequence.consumer.paused:
                continue
            while len(self._running) >= self._capabilities.maximum_sequences or not self._take_first_pages(sequence):
                if not self._preempt_paused():
                    return
            self._waiting.remove(sequence)
            self._insert(self._running, sequence)

    def _take_first_pages(self, sequence: Sequence) -> bool:
        """Finds what of the sequence is in the cache already and makes sure that the rest has room; True if it may run."""
        donor = self._kept.find_donor(sequence, self._running) if self._kept is not None else None
        while True:
            tables = self._pages.empty_tables()
            matched = self._pages.match(sequence, tables)
            room = True
            if self._kept is not None and donor is not None:
                room = self._kept.hold(donor, tables[0])
                matched = donor.pages * self._pools[0].page_size
            if room and self._pages.fits(sequence, tables, self._running):
                break
            self._pages.release(tables)
            if not self._kept:
                return False
            self._kept.drop_one()
            donor = None if self._kept.gone(donor) else donor
        if self._kept is not None and donor is not None:
            self._kept.share(donor, sequence)
        sequence.tables = tables
        sequence.computed = matched
        if sequence.cached_tokens is None:
            sequence.cached_tokens = matched
        return True

    def _preempt_paused(self) -> bool:
        """Nobody waits for a paused sequence: the youngest of them makes room first."""
        for sequence in reversed(self._running):
            if sequence.consumer.paused:
                self._preempt(sequence)
                return True
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self._forget(sequence)
        sequence.preemptions += 1
        self._preemptions += 1
        self._running.remove(sequence)
        self._insert(self._waiting, sequence)

    # Planning ------------------------------------------------------------------------------------------------------------------------------------

    def _plan(self) -> list[Chunk]:
        plan = StepPlan(self._capabilities.maximum_step_rows, MAXIMUM_OUTPUT_ROWS)
        # Decoding sequences first: one row each keeps their streams going while a long prompt takes the rest of the budget.
        for sequence in sorted(self._running, key=lambda candidate: candidate.behind > 1):
            if sequence not in self._running or sequence.consumer.paused:
                continue
            chunk = next_chunk(sequence, plan.rows_left, plan.outputs_left)
            if chunk.rows > 0 and self._reserve(sequence, chunk.end, plan):
                plan.add(chunk)
        return plan.chunks

    def _reserve(self, sequence: Sequence, end: int, plan: StepPlan) -> bool:
        """Takes pages for the positions before `end`. Preempts younger sequences, if need be out of this very step; else the sequence itself."""
        while not self._pages.has_room([(sequence, end)]):
            if self._kept:
                self._kept.drop_one()
                continue
            victims = [other for other in self._running if other is not sequence and other.consumer.paused]
            victims = victims or self._running[self._running.index(sequence) :]
            plan.remove(victims[-1])
            self._preempt(victims[-1])
            if victims[-1] is sequence:
                return False
        self._pages.take(sequence, end)
        return True

    def _plan_burst(self, chunks: list[Chunk]) -> Burst | None:
        """Makes the step a burst if it only decodes, if nobody waits, and if there are pages for it; they are taken here, as long as they cost nobody."""
        sequences = [chunk.sequence for chunk in chunks]
        if self._waiting or any(chunk.rows > 1 or not chunk.outputs for chunk in chunks):
            return None
        if any(sequence not in sequences and not sequence.consumer.paused for sequence in self._running):
            return None
        passes = min(self._pace.passes(len(chunks)), *(sequence.consumer.unseen_tokens for sequence in sequences))
        if passes < 1:
            return None
        drawn = any(cast(BurstConsumer, sequence.consumer).drawn_with is not None for sequence in sequences)
        if drawn and (passes < 2 or not self._capabilities.draws):
            return None
        if not self._pages.has_room((chunk.sequence, chunk.end + passes - 1) for chunk in chunks):
            return None
        for chunk in chunks:
            self._pages.take(chunk.sequence, chunk.end + passes - 1)
        consumers = [cast(BurstConsumer, sequence.consumer) for sequence in sequences]
        end_ids = {token for consumer in consumers for token in consumer.end_ids}
        return Burst(passes, np.array(sorted(end_ids), dtype=np.int32), self._interrupt, _draws(consumers, passes))

    # Running -------------------------------------------------------------------------------------------------------------------------------------

    def _run(self, chunks: list[Chunk], burst: Burst | None = None) -> None:
        began = time.perf_counter()
        self._in_step = tuple(chunk.sequence for chunk in chunks)
        try:
            outputs = self._backend.step(build_step(chunks, burst, self._abort))
        except StepAbortedError:
            return
        except NonFiniteError as error:
            if burst is not None:  # which token it was shows when they come one by one
                self._run(chunks)
            elif len(chunks) == 1:
                self._fail(chunks[0].sequence, error)
            else:  # find out whose it is: a step may be repeated, it writes the same cache positions again
                for chunk in chunks:
                    self._run([chunk])
            return
        except Exception as error:
            for chunk in chunks:
                self._fail(chunk.sequence, error)
            return
        finally:
            self._in_step = ()
        if all(chunk.rows == 1 for chunk in chunks):
            self._pace.note(len(chunks), time.perf_counter() - began, 1 if burst is None else len(_largest_of(outputs)))
        row = hidden_row = 0
        for chunk in chunks:
            end = row + (0 if chunk.sequence.wants_hidden else chunk.outputs)
            if burst is not None:
                self._deliver_burst(chunk, _largest_of(outputs)[:, row].tolist(), outputs.logits[row:end])
            elif chunk.sequence.wants_hidden and chunk.outputs:
                assert outputs.hidden is not None, "a backend that declares hidden states gives those asked for"
                self._deliver_rows(chunk, outputs.hidden[hidden_row : hidden_row + chunk.outputs], None)
                hidden_row += chunk.outputs
            else:
                self._deliver_rows(chunk, outputs.logits[row:end], None if outputs.largest is None else outputs.largest[-1, row:end])
            row = end

    def _deliver_rows(self, chunk: Chunk, rows: NDArray[np.float32], largest: NDArray[np.int32] | None) -> None:
        sequence, verdict = chunk.sequence, Verdict()
        if chunk.outputs:
            try:
                verdict = sequence.consumer.rows(sequence, chunk.first_output, rows, largest)
            except Exception as error:
                self._fail(sequence, error)
                return
        self._go_on(chunk, chunk.end, verdict)

    def _deliver_burst(self, chunk: Chunk, tokens: list[int], logits: NDArray[np.float32]) -> None:
        """The tokens of a burst. Of one that the backend left undecided, which can only be the last, its sequence gets the logits."""
        if tokens[-1] != UNDECIDED:
            self._deliver_tokens(chunk, tokens)
            return
        last = chunk.start + len(tokens) - 1
        if len(tokens) > 1:
            self._deliver_tokens(chunk, tokens[:-1])
        if chunk.sequence in self._running and chunk.sequence.computed == last:
            self._deliver_rows(Chunk(chunk.sequence, last, last + 1, last), logits, None)

    def _deliver_tokens(self, chunk: Chunk, tokens: list[int]) -> None:
        sequence = chunk.sequence
        try:
            verdict = cast(BurstConsumer, sequence.consumer).chosen(sequence, tokens)
        except Exception as error:
            self._fail(sequence, error)
            return
        self._go_on(chunk, chunk.start + len(tokens), verdict)

    def _go_on(self, chunk: Chunk, end: int, verdict: Verdict) -> None:
        """The positions of the chunk's sequence before `end` were computed: they count as far as their tokens are the sequence's."""
        sequence = chunk.sequence
        sequence.tokens.extend(verdict.tokens)
        sequence.computed = min(end, len(sequence.tokens))
        if chunk.outputs:
            sequence.next_output = sequence.computed
        self._pages.remember(sequence, chunk.start)
        self._pages.release_behind_windows(sequence)
        if verdict.finished:
            self._end(sequence)

    def _fail(self, sequence: Sequence, error: BaseException) -> None:
        self._end(sequence, failed=True)
        sequence.consumer.failed(error)

    def _end(self, sequence: Sequence, failed: bool = False) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
            if failed or self._kept is None or not self._kept.keep(sequence):
                self._forget(sequence)
        else:
            self._waiting.remove(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self._pages.release(sequence.tables)
        sequence.computed = 0
        self._backend.release([sequence.identifier])

    @staticmethod
    def _insert(queue: list[Sequence], sequence: Sequence) -> None:
        """Keeps the queue by age: identifiers ascend with time."""
        index = len(queue)
        while index and queue[index - 1].identifier > sequence.identifier:
            index -= 1
        queue.insert(index, sequence)


def _largest_of(outputs: StepOutputs) -> NDArray[np.int32]:
    assert outputs.largest is not None, "a backend that declares bursts tells what they chose"
    return outputs.largest


def _draws(consumers: Items[BurstConsumer], passes: int) -> Draws | None:
    """How a burst draws the tokens of these consumers' sequences; None if all take the largest logits."""
    params = tuple(consumer.drawn_with for consumer in consumers)
    if all(entry is None for entry in params):
        return None
    columns = [[0.0] * passes if consumer.drawn_with is None else consumer.uniforms(passes) for consumer in consumers]
    return Draws(params, np.array(columns, dtype=np.float64).T.copy())

"""The engine's thread: it alone touches scheduler and backend, so whatever is in flight from any number of threads shares its steps.

Other threads hand it commands through one queue; it sleeps on that queue when there is nothing to step, so an idle engine costs nothing.
"""

from __future__ import annotations

import os
import threading
from enum import Enum
from itertools import count
from queue import Empty, SimpleQueue

from edgeinfer.backends.base import Backend
from edgeinfer.core.errors import EngineClosedError
from edgeinfer.scheduler import RowConsumer, Scheduler, Sequence


class _Action(Enum):
    SUBMIT = 1
    CANCEL = 2
    WAKE = 3
    CLOSE = 4


_Command = tuple[_Action, Sequence | None]


class EngineLoop:
    """Runs `scheduler` over `backend` in a thread that starts with the first request and ends with `close`.

    The thread is a daemon that the engine's finalizer ends before the interpreter goes down. SimpleQueue's `put` may be interrupted by another `put`
    in the same thread, so cancelling from a destructor is safe.
    """

    def __init__(self, scheduler: Scheduler, backend: Backend) -> None:
        self.scheduler = scheduler
        self._backend = backend
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._lock = threading.RLock()
        self._identifiers = count()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._quiet = False
        self._process = os.getpid()

    @property
    def closed(self) -> bool:
        return self._closed

    def require_open(self) -> None:
        """Raises EngineClosedError if no request can run any more."""
        if os.getpid() != self._process:
            raise EngineClosedError(
                f"this engine was loaded in process {self._process} and its threads do not live in this one ({os.getpid()}), which was forked "
                "from it; load an engine after the fork, or start processes with the spawn method"
            )
        if self._closed:
            raise EngineClosedError("the engine was closed; load it again")

    def submit(self, tokens: list[int], next_output: int, consumer: RowConsumer, wants_hidden: bool = False) -> Sequence:
        """Queues a sequence whose logits, or hidden states, from position `next_output` on go to `consumer`. Raises EngineClosedError."""
        self.require_open()
        with self._lock:
            self.require_open()
            sequence = Sequence(next(self._identifiers), tokens, next_output, consumer, wants_hidden=wants_hidden)
            self._command(_Action.SUBMIT, sequence)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="edgeinfer-engine", daemon=True)
                self._thread.start()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence if it has not ended. Never blocks, never fails: destructors call it."""
        if not self._closed:
            self._command(_Action.CANCEL, sequence)

    def wake(self) -> None:
        """A consumer that was paused wants rows again."""
        self._command(_Action.WAKE)

    def _command(self, action: _Action, sequence: Sequence | None = None) -> None:
        self._commands.put((action, sequence))
        if action is _Action.CANCEL or action is _Action.CLOSE:
            self.scheduler.abandon(sequence)
        else:
            self.scheduler.interrupt_burst()

    def close(self, quietly: bool = False) -> None:
        """Ends requests in flight with EngineClosedError, and gives the backend's memory back. Idempotent; waits for the step that is running, which the
        backend may end early.

        `quietly` is for the end of the interpreter: a daemon thread that still waits then is not woken, only to print a traceback.
        """
        if os.getpid() != self._process:  # a forked child holds no threads and owns nothing: the parent closes
            self._closed = True
            return
        with self._lock:
            first = not self._closed
            self._quiet = self._quiet or quietly
            self._closed = True
            thread = self._thread
            if first:
                self._command(_Action.CLOSE)
        if thread is None:
            self._backend.close()
        elif thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        error: BaseException = EngineClosedError("the engine was closed while the request was running")
        try:
            while self._obey():
                pass
        except BaseException as defect:  # nobody may wait for ever because of a defect of ours: every caller gets it
            error = defect
        with self._lock:
            self._closed = True
        try:
            if not self._quiet:
                self._fail_all(error)
        finally:
            self._backend.close()

    def _fail_all(self, error: BaseException) -> None:
        while not self._commands.empty():
            action, sequence = self._commands.get()
            if sequence is not None and action is _Action.SUBMIT:
                sequence.consumer.failed(error)
        self.scheduler.fail_all(error)

    def _obey(self) -> bool:
        """Runs a step, then the commands that have arrived; with nothing to step it sleeps until one arrives. False: that was the last one."""
        stepped = self.scheduler.step()
        self.scheduler.allow_bursts()  # before the commands are looked at: whatever comes later interrupts
        try:
            while True:
                action, sequence = self._commands.get(block=not stepped)
                stepped = True
                if action is _Action.CLOSE:
                    return False
                if sequence is not None and action is _Action.SUBMIT:
                    self._submit(sequence)
                elif sequence is not None and action is _Action.CANCEL:
                    self.scheduler.cancel(sequence)
        except Empty:
            return True

    def _submit(self, sequence: Sequence) -> None:
        try:
            self.scheduler.submit(sequence)
        except Exception as error:
            sequence.consumer.failed(error)

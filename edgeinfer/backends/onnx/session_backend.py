"""What the onnx backend is in every dialect: one model, one session of ONNX Runtime, and one cache by sequence. `backend` and `standard_backend` are made
from it, and differ in what a run binds.

Token ids are looked up in the file's mapping, so no embedding table is in memory twice, or as float32. Sequences in neighbouring slots of the cache that
decode one token each share a run; a sequence with several rows runs alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions, CacheGroup, Capabilities, refuse_undeclared
from edgeinfer.backends.onnx.cache import SlotCache
from edgeinfer.backends.onnx.plan import TOKENS_PER_PAGE, LoadPlan, pages
from edgeinfer.backends.onnx.runs import Run, runs_of, single_rows
from edgeinfer.backends.onnx.session import MadeSession
from edgeinfer.core.errors import EngineClosedError, NonFiniteError, StepAbortedError
from edgeinfer.core.printable import printable_path
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, OutputKind, Step, StepOutputs
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program
from kernels_numba.formats import format_by_name

KEPT_BINDINGS = 64
"""Bindings that a backend keeps at most."""

MAXIMUM_PASSES = 16
"""Passes of a burst at most: more than the scheduler finds room for in the time that it allows."""

WIDE_CACHE = "the KV cache of the onnx backend is float32, twice the memory of f16"


class SessionBackend(ABC):
    """`step` is called by one thread at a time."""

    rows_at_once: ClassVar[int]
    """Rows of a sequence that a run takes; the rest of a chunk follows in further runs."""

    kept_sequences: ClassVar[int]
    """Sequences that have ended which the cache may hold beside those that run. Their memory counts as that of any other."""

    def __init__(self, library: Any, file: GGUFFile, program: Program, options: BackendOptions, plan: LoadPlan, made: MadeSession) -> None:
        self._library = library
        self._file = file
        self._closed = False
        self._table = next(operation.weights[0] for operation in program.operations if operation.kind == "embedding")
        self.program = program
        self.memory_plan = plan.memory
        self._session = made.session
        kept = min(options.maximum_sequences, self.kept_sequences)
        self._cache = self._make_cache(options.maximum_sequences + kept, cache_length(options))
        self._one_row = made.one_row
        self._logits = np.empty((MAXIMUM_OUTPUT_ROWS + made.one_row, program.vocabulary), np.float32)  # one more for an output that nobody wants
        self._hidden = np.empty((MAXIMUM_OUTPUT_ROWS + made.one_row, program.width), np.float32)
        self.capabilities = Capabilities(
            uses_block_tables=False,
            cache_groups=(CacheGroup("onnx tokens", TOKENS_PER_PAGE, pages(plan.cache_tokens), 0),),
            bit_exact_batches=False,
            bit_exact_chunks=False,
            vocabulary=program.vocabulary,
            context=options.context,
            maximum_step_rows=options.maximum_step_rows,
            maximum_sequences=options.maximum_sequences,
            threads=plan.threads.count,
            description=f"ONNX Runtime {library.__version__}, {_described(made)}, {plan.threads.count} threads ({plan.threads.reason}), float32 cache",
            output_kinds=frozenset({OutputKind.LOGITS, OutputKind.HIDDEN}),
            placement=made.placement,
            kept_sequences=kept,
            maximum_passes=MAXIMUM_PASSES,
            copies_prefixes=True,
            warnings=(*made.warnings, *(() if options.cache_type == "f32" else (WIDE_CACHE,))),
        )

    @abstractmethod
    def _make_cache(self, slots: int, length: int) -> SlotCache:
        """For so many sequences of at most so many tokens."""

    @abstractmethod
    def _run(
        self, step: Step, run: Run, outputs: NDArray[np.intp], logits: NDArray[np.float32], hidden: NDArray[np.float32] | None
    ) -> None:
        """Computes the rows of a run; `outputs` are those whose logits go to `logits` float32[len(outputs), vocabulary], and whose hidden states go to
        `hidden` float32[len(outputs), width] if somebody wants any."""

    @abstractmethod
    def _forget_bindings(self) -> None:
        """And whatever else refers to the session or the cache, which are closed next."""

    def step(self, step: Step) -> StepOutputs:
        """Runs one forward pass, or a burst; see `Backend`. Values in the result are overwritten by the next step."""
        if self._closed:
            raise EngineClosedError("the onnx backend was closed")
        refuse_undeclared(step, self.capabilities)
        slots = np.array([self._cache.slot(table.sequence_id, table.start) for table in step.sequences])
        runs = single_rows(step, slots) if self._one_row else runs_of(step, slots, self.rows_at_once)
        found = self._pass(step, slots, runs)
        if step.burst is None:
            return found
        chosen = [found.logits.argmax(axis=1).astype(np.int32)]
        while len(chosen) < step.burst.passes and not np.isin(chosen[-1], step.burst.end_ids).any() and not step.burst.interrupt[0]:
            step = replace(step, token_ids=chosen[-1], slots=step.slots + 1, rope_positions=step.rope_positions + 1)
            found = self._pass(step, slots, runs)
            chosen.append(found.logits.argmax(axis=1).astype(np.int32))
        return replace(found, largest=np.array(chosen))

    def _pass(self, step: Step, slots: NDArray[np.intp], runs: Sequence[Run]) -> StepOutputs:
        """One forward pass of a step, or of a burst."""
        if len(runs) == 1 and runs[0].length == 1 and not self._one_row and (step.outputs == int(OutputKind.LOGITS)).all():  # decoding, in few words
            (run,) = runs
            logits = self._logits[: run.count]
            self._run(step, run, np.arange(run.count), logits, None)
            for slot, row in zip(range(run.first, run.first + run.count), run.rows):
                self._cache.filled(slot, int(step.slots[row]) + 1)
            self._require_finite(logits)
            return StepOutputs(logits if run.count == 1 else logits[np.argsort(run.rows)], np.arange(run.count, dtype=np.int32))
        wanted = np.flatnonzero(step.outputs)
        wants_hidden = step.outputs[wanted] == int(OutputKind.HIDDEN)
        hidden = self._hidden if wants_hidden.any() else None
        order: list[NDArray[np.intp]] = []
        done = 0
        for run in runs:
            if step.abort is not None and step.abort[0]:
                raise StepAbortedError(f"a step of {step.rows} rows was ended early")
            asked = step.outputs[run.rows] != int(OutputKind.NONE)
            outputs = np.array([0]) if self._one_row else np.flatnonzero(asked)
            places = slice(done, done + len(outputs))
            self._run(step, run, outputs, self._logits[places], None if hidden is None else hidden[places])
            order.append(run.rows[asked])
            done += len(order[-1])
        for slot, last in zip(slots, np.flatnonzero(np.append(np.diff(step.sequence), 1)), strict=True):
            self._cache.filled(int(slot), int(step.slots[last]) + 1)
        logits = self._logits[:done]
        made = np.concatenate(order)
        if not np.array_equal(made, wanted):
            logits = logits[np.argsort(made)]
        if hidden is not None:
            hidden, logits = hidden[np.argsort(made)][wants_hidden], logits[~wants_hidden]
        self._require_finite(logits)
        if hidden is not None:
            self._require_finite(hidden)
        made_rows: NDArray[np.int32] = wanted.astype(np.int32)
        if hidden is None:
            return StepOutputs(logits, made_rows)
        return StepOutputs(logits, made_rows[~wants_hidden], hidden=hidden, hidden_rows=made_rows[wants_hidden])

    def share_prefix(self, source: int, target: int, length: int) -> None:
        """See `PrefixSharingBackend`. Keys and values are copied, which takes far less time than computing them."""
        if self._closed:
            raise EngineClosedError("the onnx backend was closed")
        self._cache.copy(source, target, length)

    def release(self, sequence_ids: Sequence[int]) -> None:
        for identifier in sequence_ids:
            self._cache.release(identifier)

    def close(self) -> None:
        """Gives back threads, memory and the file."""
        if self._closed:
            return
        self._closed = True
        self._forget_bindings()
        self._session = None
        self._logits = self._hidden = np.empty((0, 0), np.float32)
        self._cache.close()
        self._file.close()

    def _require_finite(self, values: NDArray[np.float32]) -> None:
        """Of one infinity or NaN among them, the smallest or the largest is one too."""
        if values.size and not math.isfinite(float(values.max()) - float(values.min())):
            raise NonFiniteError(
                f"{printable_path(self._file.path)} produced a value that is not finite (infinity or NaN): the file is damaged, or its weights overflow; "
                "compare it with its checksum"
            )

    def _embedded(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[tokens, width]: rows of the file's table."""
        return format_by_name(self._table.format_name).decode_rows(self._file.tensor_blocks(self._table.name)[token_ids])


def cache_length(options: BackendOptions) -> int:
    """Positions of a slot, and of the rope tables."""
    return pages(options.context) * TOKENS_PER_PAGE


def _described(made: MadeSession) -> str:
    """The provider, for a person."""
    if made.placement.provider == "cpu" and made.placement.dialect == "cpu" and not made.placement.reason:
        return "CPU provider, activations of 8 bits where weights are quantized"
    return str(made.placement)

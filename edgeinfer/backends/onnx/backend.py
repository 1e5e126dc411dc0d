"""The onnx backend: ONNX Runtime behind the contract, on a graph that is made from the model's program when it is loaded.

Token ids are looked up in the file's mapping, so no embedding table is in memory twice, or as float32. Sequences in neighbouring slots of the cache that
decode one token each share a run; a sequence with several rows runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions, CacheGroup, Capabilities, refuse_undeclared
from edgeinfer.backends.onnx.cache import SlotCache
from edgeinfer.backends.onnx.dialects import emitter_of
from edgeinfer.backends.onnx.huge_pages import gather_pages, private_spans
from edgeinfer.backends.onnx.library import require_onnx, require_onnxruntime
from edgeinfer.backends.onnx.placement import require_share
from edgeinfer.backends.onnx.plan import ROWS_AT_ONCE, TOKENS_PER_PAGE, LoadPlan, make_plan, pages
from edgeinfer.backends.onnx.provider_search import CPU_TARGET, Target, automatic_targets, target_of
from edgeinfer.backends.onnx.providers import AUTO, checked_share, parse_provider
from edgeinfer.backends.onnx.session import MadeSession, make_session
from edgeinfer.core.errors import EngineClosedError, NonFiniteError, ProviderError, UnsupportedModelError, UnsupportedOptionError
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, OutputKind, Step, StepOutputs
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program, build_program, fuse
from kernels_numba.formats import format_by_name

_KEPT_BINDINGS = 64

MAXIMUM_PASSES = 16
"""Passes of a burst at most: more than the scheduler finds room for in the time that it allows."""

WIDE_CACHE = "the KV cache of the onnx backend is float32, twice the memory of f16"


@dataclass(frozen=True)
class Run:
    """One call of the session: rows `rows` of the step (indices), as `count` sequences from slot `first` on, with `length` rows each."""

    first: int
    count: int
    rows: NDArray[np.intp]

    @property
    def length(self) -> int:
        return len(self.rows) // self.count


@dataclass
class _DecodeBinding:
    """A binding with the cache of some slots in place, and what its inputs read in a run of one row for each of them, which decoding writes anew."""

    binding: Any
    embedded: NDArray[np.float32]
    last: NDArray[np.int32]
    total: NDArray[np.int32] = field(default_factory=lambda: np.zeros((), np.int32))
    decodes_to: int = 0  # the address of the logits while these inputs are bound
    kept: list[NDArray[Any]] = field(default_factory=list)  # what its inputs read now


class OnnxBackend:
    """One model, one session, one cache, in the dialect `cpu`. `step` is called by one thread at a time."""

    rows_at_once: ClassVar[int] = ROWS_AT_ONCE
    """Rows of a sequence that a run takes; the rest of a chunk follows in further runs."""

    kept_sequences: ClassVar[int] = 8
    """Sequences that have ended which the cache may hold beside those that run. Their memory counts as that of any other."""

    def __init__(self, library: Any, file: GGUFFile, program: Program, options: BackendOptions, plan: LoadPlan, made: MadeSession) -> None:
        self._library = library
        self._file = file
        self._closed = False
        self._bindings: dict[tuple[int, int, bool], _DecodeBinding] = {}
        self._table = next(operation.weights[0] for operation in program.operations if operation.kind == "embedding")
        self.program = program
        self.memory_plan = plan.memory
        self._session = made.session
        kept = min(options.maximum_sequences, self.kept_sequences)
        self._cache = self._make_cache(options.maximum_sequences + kept, _cache_length(options))
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

    @classmethod
    def load(cls, model: Path, options: BackendOptions) -> OnnxBackend:
        """Opens the file, plans, checks the plan against the memory that is available, and makes the graph and its session.

        The cache is float32: the provider has no attention over float16 keys with float32 queries. For f16, which is what is asked for by default, a
        warning says so; another type is an UnsupportedOptionError. Raises BackendUnavailableError without onnxruntime or onnx, ProviderError for a provider
        that cannot be had or runs too little, UnsupportedModelError for what has no ONNX form, and the file's own errors.
        """
        request = parse_provider(options.provider) if options.provider is not None else None
        minimum = checked_share(options.minimum_share, options.provider)
        library = require_onnxruntime()
        require_onnx()
        if options.instruction_set is not None:
            raise UnsupportedOptionError(f"instruction_set is {options.instruction_set!r}, but the onnx backend chooses its own; leave it out")
        if options.cache_type not in ("f16", "f32"):
            raise UnsupportedOptionError(f"cache_type is {options.cache_type!r}, but the cache of the onnx backend is float32; leave it out, or use numba")
        targets = [CPU_TARGET] if request is None else automatic_targets(library) if request.name == AUTO else [target_of(library, request)]
        for target in targets:
            emitter_of(target.dialect)  # refuses one that there is not before anything is read
        file = GGUFFile.open(model)
        try:
            file.refuse_unsupported_formats()
            program = fuse(build_program(file))
            plan = make_plan(program, options, all(target.dialect == "cpu" for target in targets))
            plan.memory.check(Path(model).name, options.context)
            before = private_spans()
            made = first_that_runs(targets, minimum, lambda target: make_session(library, program, file, _cache_length(options), plan.threads.count, target))
            gather_pages(before)
            kind = cls if made.placement.dialect == "cpu" else _standard_backend()
            return kind(library, file, program, options, plan, made)
        except BaseException:
            file.close()
            raise

    def step(self, step: Step) -> StepOutputs:
        """Runs one forward pass, or a burst; see `Backend`. Values in the result are overwritten by the next step."""
        if self._closed:
            raise EngineClosedError("the onnx backend was closed")
        refuse_undeclared(step, self.capabilities)
        slots = np.array([self._cache.slot(table.sequence_id, table.start) for table in step.sequences])
        runs = _single_rows(step, slots) if self._one_row else _runs(step, slots, self.rows_at_once)
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
            _require_finite(logits)
            return StepOutputs(logits if run.count == 1 else logits[np.argsort(run.rows)], np.arange(run.count, dtype=np.int32))
        wanted = np.flatnonzero(step.outputs)
        wants_hidden = step.outputs[wanted] == int(OutputKind.HIDDEN)
        hidden = self._hidden if wants_hidden.any() else None
        order: list[NDArray[np.intp]] = []
        done = 0
        for run in runs:
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
        _require_finite(logits)
        if hidden is not None:
            _require_finite(hidden)
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
        self._bindings.clear()
        self._session = None
        self._logits = self._hidden = np.empty((0, 0), np.float32)
        self._cache.close()
        self._file.close()

    def _make_cache(self, slots: int, length: int) -> SlotCache:
        return SlotCache(self.program.stores, slots, length)

    def _run(
        self, step: Step, run: Run, outputs: NDArray[np.intp], logits: NDArray[np.float32], hidden: NDArray[np.float32] | None
    ) -> None:
        """Computes the rows of a run; `outputs` are those whose logits go to `logits` float32[len(outputs), vocabulary], and whose hidden states go to
        `hidden` float32[len(outputs), width] if somebody wants any."""
        bound = self._binding(run.first, run.count, hidden is not None)
        decodes = run.length == 1 and len(outputs) == run.count
        last = step.slots[run.rows].reshape(run.count, -1)[:, -1]
        embedded = self._embedded(step.token_ids[run.rows]).reshape(run.count, run.length, -1)
        if decodes:
            bound.embedded[:], bound.last[:], bound.total[...] = embedded, last, last.max() + 1
            address = logits.ctypes.data
            if bound.decodes_to != address:
                bound.kept = self._bind_tensors(bound.binding, bound.embedded, outputs, bound.last, bound.total, logits, hidden)
            bound.decodes_to = address
        else:
            bound.decodes_to = 0
            bound.kept = self._bind_tensors(bound.binding, embedded, outputs, last.astype(np.int32), np.array(last.max() + 1, np.int32), logits, hidden)
        self._session.run_with_iobinding(bound.binding)

    def _bind_tensors(
        self, binding: Any, embedded: NDArray[np.float32], outputs: NDArray[np.intp], last: NDArray[np.int32], total: NDArray[np.int32],
        logits: NDArray[np.float32], hidden: NDArray[np.float32] | None,
    ) -> list[NDArray[Any]]:  # fmt: skip
        """The arrays that are read, which have to live as long as they are bound: ONNX Runtime 1.24 does not keep them."""
        value = self._library.OrtValue.ortvalue_from_numpy
        inputs: dict[str, NDArray[Any]] = {
            "embedded": embedded, "output_rows": outputs.astype(np.int64), "seqlens_k": last, "total_sequence_length": total,
        }  # fmt: skip
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, value(array))
        for name, target in {"logits": logits, **({} if hidden is None else {"hidden": hidden})}.items():
            binding.bind_ortvalue_output(name, value(target[np.newaxis]))
        return list(inputs.values())

    def _binding(self, first: int, count: int, gives_hidden: bool) -> _DecodeBinding:
        """The cache of some slots is bound as what is read and as what is written. What is bound once stays bound, so bindings that give hidden states are
        others."""
        if (first, count, gives_hidden) not in self._bindings:
            if len(self._bindings) >= _KEPT_BINDINGS:
                self._bindings.clear()
            binding = self._session.io_binding()
            for name, array in self._cache.arrays(first, count):
                tensor = self._library.OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_input(f"past_key_values.{name}", tensor)
                binding.bind_ortvalue_output(f"present.{name}", tensor)
            bound = _DecodeBinding(binding, np.empty((count, 1, self.program.width), np.float32), np.empty(count, np.int32))
            self._bindings[first, count, gives_hidden] = bound
        return self._bindings[first, count, gives_hidden]

    def _embedded(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[tokens, width]: rows of the file's table."""
        return format_by_name(self._table.format_name).decode_rows(self._file.tensor_blocks(self._table.name)[token_ids])


def _require_finite(values: NDArray[np.float32]) -> None:
    """Of one infinity or NaN among them, the smallest or the largest is one too."""
    if values.size and not math.isfinite(float(values.max()) - float(values.min())):
        raise NonFiniteError(
            "the model produced a value that is not finite (infinity or NaN): the file is damaged, or its weights overflow; compare the file with its checksum"
        )


def _runs(step: Step, slots: NDArray[np.intp], rows_at_once: int) -> list[Run]:
    """The calls that a step takes: sequences with several rows one by one and so many at once, those with one row together where their slots are neighbours."""
    counts = np.bincount(step.sequence, minlength=len(slots))
    starts = np.concatenate([[0], np.cumsum(counts)])
    runs = [
        Run(int(slots[index]), 1, np.arange(start, min(start + rows_at_once, starts[index + 1])))
        for index in np.flatnonzero(counts > 1)
        for start in range(starts[index], starts[index + 1], rows_at_once)
    ]
    single = np.flatnonzero(counts == 1)
    single = single[np.argsort(slots[single])]
    for group in np.split(single, np.flatnonzero(np.diff(slots[single]) != 1) + 1):
        if len(group):
            runs.append(Run(int(slots[group[0]]), len(group), starts[group]))
    return runs


def _single_rows(step: Step, slots: NDArray[np.intp]) -> list[Run]:
    """A call for each row, in the order of the step."""
    return [Run(int(slots[index]), 1, np.array([row])) for row, index in enumerate(step.sequence)]


def first_that_runs(targets: Sequence[Target], minimum: float, make: Callable[[Target], MadeSession]) -> MadeSession:
    """The session of the first target that takes the graph and runs enough of it; those that were passed over are told in its placement.

    A single target raises its own error. Of several, the last is expected to run always.
    """
    passed: list[str] = []
    for target in targets:
        try:
            made = make(replace(target, reason=f"{target.reason}{''.join(f'; not {text}' for text in passed)}"))
            require_share(made.placement, minimum, target.options)
        except (ProviderError, UnsupportedModelError) as error:
            if target is targets[-1]:
                raise
            passed.append(f"{target.name}: {error}")
            continue
        return made
    raise AssertionError("there is always a target")


def _standard_backend() -> type[OnnxBackend]:
    from edgeinfer.backends.onnx.standard_backend import StandardOnnxBackend  # which is made from this class

    return StandardOnnxBackend


def _cache_length(options: BackendOptions) -> int:
    """Positions of a slot, and of the rope tables."""
    return pages(options.context) * TOKENS_PER_PAGE


def _described(made: MadeSession) -> str:
    """The provider, for a person."""
    if made.placement.provider == "cpu" and made.placement.dialect == "cpu" and not made.placement.reason:
        return "CPU provider, activations of 8 bits where weights are quantized"
    return str(made.placement)

"""The numba backend: loads a GGUF file into packed weights and a tape, and runs steps on the worker pool. One Python call and one C call per step."""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions, CacheGroup, Capabilities, OperationTime, refuse_impossible_burst, refuse_undeclared
from edgeinfer.backends.numba.arena import Slot, row_stride, rows_bytes
from edgeinfer.backends.numba.burst_ends import DRAWING_KERNELS, SCREENING_KERNELS
from edgeinfer.backends.numba.drafts import Address, Draft
from edgeinfer.backends.numba.emit import Emitter, check_supported, page_bytes
from edgeinfer.backends.numba.late import LateTape
from edgeinfer.backends.numba.memory import Region
from edgeinfer.backends.numba.screening import Screening
from edgeinfer.backends.numba.stored import StoredWeights, find, identity, renew, stored_path
from edgeinfer.backends.numba.weights import WeightPlan, Weights, pack_kernels, plan_weights
from edgeinfer.core import env, host
from edgeinfer.core.announcements import announced
from edgeinfer.core.cache_types import DEFAULT_CACHE_TYPES
from edgeinfer.core.errors import BackendUnavailableError, EngineClosedError, InvalidRequestError, NonFiniteError, UnknownChoiceError
from edgeinfer.core.home import kernel_cache_path, kernel_pack_paths
from edgeinfer.core.memory_plan import MemoryPlan
from edgeinfer.core.printable import printable_path
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, UNDECIDED, Draws, OutputKind, Step, StepOutputs
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program, build_program, fuse
from kernels_numba.executor.step import StepRecord
from kernels_numba.executor.store import BUILT_IN_PACK, KernelName, KernelStore
from kernels_numba.executor.tape import Tape, TapeEntry
from kernels_numba.executor.workers import RUN_KERNELS, WorkerPool
from kernels_numba.formats import format_by_name
from kernels_numba.ops.cache_types import PAGE_POSITIONS
from kernels_numba.ops.draws import draw_records
from kernels_numba.simd.levels import LEVELS, Level, usable_levels

PROCESS_GROWTH = 4_000_000
"""Bytes that mapped kernels, the tape and worker stacks add to a process that does not compile; measured."""

MAXIMUM_PASSES = 64
"""Passes of a burst at most: more than the scheduler finds room for in the time that it allows."""

DEFAULT_CACHED_CONTEXTS = 4
"""Contexts that the cache holds by default where memory allows, so that several sequences can run together."""


def choose_level(forced: str | None = None) -> Level:
    """The best level that this machine has, or the one forced by the option or EDGEINFER_ISA. Raises UnknownChoiceError if it cannot run here."""
    architecture = {"amd64": "x86_64", "arm64": "aarch64"}.get(os.uname().machine.lower(), os.uname().machine.lower())
    usable = usable_levels(architecture, host.instruction_sets())
    if not usable:
        raise BackendUnavailableError(f"there are no kernels for {os.uname().machine}; edgeinfer runs on x86-64 and arm64")
    wanted = forced or env.value("EDGEINFER_ISA")
    if wanted is None:
        return usable[0]
    for level in usable:
        if wanted in (level.name, level.name.split("_", 1)[1]):
            return level
    known = ", ".join(level.name for level in LEVELS)
    raise UnknownChoiceError(
        f"the instruction set {wanted!r} cannot be used on this machine; it can run {', '.join(level.name for level in usable)} (all levels: {known})"
    )


_LOGITS, _HIDDEN = int(OutputKind.LOGITS), int(OutputKind.HIDDEN)  # NumPy is slow to find out what an enumeration's member is

_stores: dict[tuple[str, Path | None], KernelStore] = {}
_stores_lock = threading.Lock()


def kernel_store(level: Level) -> KernelStore:
    """The process's store of a level in the kernel cache folder."""
    key = (level.name, kernel_cache_path())
    with _stores_lock:
        if key not in _stores:
            _stores[key] = KernelStore(level, key[1], host.usable_cores().count, [*kernel_pack_paths(), BUILT_IN_PACK])
        return _stores[key]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """All that is decided before memory is taken."""

    program: Program
    weights: WeightPlan
    emitter: Emitter
    arena_bytes: int
    threads: host.UsableCores
    cache_tokens: int
    memory: MemoryPlan
    stored: StoredWeights | None  # packed weights that are on disk and fit
    stored_problem: str | None  # why those that are there do not

    @property
    def kernels(self) -> list[KernelName]:
        """All that running and packing the model takes."""
        return list(dict.fromkeys([*self.kernels_to_load, *DRAWING_KERNELS, *(draft.kernel for draft in self.emitter.screening_drafts())]))

    @property
    def kernels_to_load(self) -> list[KernelName]:
        """Those that loading takes."""
        return list(dict.fromkeys([*RUN_KERNELS, *pack_kernels(self.weights), *(draft.kernel for draft in self.emitter.drafts)]))


def plan(file: GGUFFile, options: BackendOptions) -> _Plan:
    """Reads metadata only. Raises for what is not supported; `memory.check` is up to the caller."""
    program = fuse(build_program(file))
    cache_type = options.cache_type or DEFAULT_CACHE_TYPES["numba"]
    check_supported(program, cache_type)
    threads = host.worker_threads(options.threads)
    weights = plan_weights(program)
    factors = {
        str(name): format_by_name(file.tensors[str(name)].format_name).decode_rows(file.tensor_bytes(str(name)).reshape(1, -1))[0]
        for name in (operation.attributes.get("frequency_factors") for operation in program.operations)
        if name is not None
    }
    emitter = Emitter(program, options.maximum_step_rows, threads.count, options.context, cache_type, factors)
    emitter.emit()
    arena_bytes = emitter.arena.lay_out()
    page = sum(page_bytes(store, cache_type) for store in program.stores)
    available = host.available_memory()
    stored, stored_problem = find(stored_path(file), lambda: weights_identity(file, weights), weights.layout.size)

    def memory(cache_tokens: int) -> MemoryPlan:
        return MemoryPlan(
            weights=weights.resident_bytes if stored is None else 0,
            cache=page * _pages(cache_tokens),
            arena=arena_bytes,
            process=PROCESS_GROWTH,
            peak_while_packing=weights.packing_bytes if stored is None else 0,
            mapped=weights.mapped_bytes + (stored.size if stored is not None else 0),
            available=available.size,
            available_reason=available.reason,
        )

    if options.cache_tokens is not None:
        cache_tokens = options.cache_tokens
    else:
        cache_tokens = options.context * min(DEFAULT_CACHED_CONTEXTS, options.maximum_sequences)
        if memory(cache_tokens).peak > available.size // 2:
            cache_tokens = options.context
    return _Plan(program, weights, emitter, arena_bytes, threads, cache_tokens, memory(cache_tokens), stored, stored_problem)


def weights_identity(file: GGUFFile, weights: WeightPlan) -> str:
    """What packed weights on disk must have been made from."""
    forms = [("in two planes", weights.layout.packed[weights.planes])] if weights.planes is not None else []
    return identity(file, [*weights.layout.offsets, *forms], sorted({weight.format_name for weight in weights.packed}))


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE_POSITIONS)


def _draws(draws: Draws | None) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """What kernels read of them: records and points."""
    if draws is None:
        return None, None
    none = (0.0, 0, 1.0, 0.0)
    records = draw_records([none if p is None else (p.temperature, p.top_k, p.top_p, p.min_p) for p in draws.params])
    return records, np.ascontiguousarray(draws.uniforms, dtype=np.float64)


def _rows_in(arena: Region, slot: Slot, width: int) -> NDArray[np.float32]:
    """float32[MAXIMUM_OUTPUT_ROWS, width]: a view of a slot."""
    size = rows_bytes(MAXIMUM_OUTPUT_ROWS, width)
    return arena.bytes[slot.offset : slot.offset + size].view(np.float32).reshape(MAXIMUM_OUTPUT_ROWS, row_stride(width) // 4)[:, :width]


def _not_finite(file: GGUFFile) -> NonFiniteError:
    return NonFiniteError(
        f"{printable_path(file.path)} produced a value that is not finite (infinity or NaN): its activations do not fit the cache type, or the file is "
        "damaged. Try cache_type='f32', or compare the file with its checksum"
    )


class NumbaBackend:
    """Our own kernels on a model. The same bits whatever shares a step and however a prompt is cut, for any number of threads and any level."""

    def __init__(self, file: GGUFFile, decided: _Plan, options: BackendOptions, progress: Callable[[int, int], None] | None) -> None:
        self._file = file
        self._closed = False
        self._regions: list[Region] = []
        self._pool: WorkerPool | None = None
        self._weights: Weights | None = None
        self.memory_plan = decided.memory
        program, emitter = decided.program, decided.emitter
        try:
            level = choose_level(options.instruction_set)
            store = kernel_store(level)
            kept = "once for this machine" if store.directory is not None else "for this process alone"
            needed = decided.kernels if options.prewarm else decided.kernels_to_load
            addresses = store.load(needed, lambda count: announced(f"compiling {count} kernels for {level.name}, {kept}"))
            self._pool = WorkerPool(decided.threads.count, decided.threads.cpus or None, store, adapt=True)
            self._weights = self._load_weights(file, decided, addresses, progress)
            caches = [Region(_pages(decided.cache_tokens) * page_bytes(store_, emitter.cache_type), "KV cache") for store_ in program.stores]
            arena = Region(decided.arena_bytes, "arena")
            self._regions = [*caches, arena]
            self._constants = emitter.constants
            entries = self._entries(emitter.drafts, self._weights, caches, arena)
            self._tape = Tape.build(entries, addresses, options.profile)
            until_hidden = [*entries[: emitter.hidden_end - 1], dataclasses.replace(entries[emitter.hidden_end - 1], barrier_after=True)]
            self._hidden_tape = Tape.build(until_hidden, addresses)  # for steps that want no logits: the output matrix is a quarter of a small model
            drawing = self._entries(emitter.drawing_drafts(), self._weights, caches, arena)
            self._drawing = LateTape(store, DRAWING_KERNELS, addresses, lambda: [*entries[:-1], *drawing, entries[-1]])
            ending = emitter.screening
            self._screening: Screening | None = None  # greedy tokens take all logits
            if ending is not None and self._weights.has_bounds(ending.weight) and not options.profile:  # what is timed is the tape with all logits
                found = self._entries(emitter.screening_drafts(), self._weights, caches, arena)
                late = LateTape(store, SCREENING_KERNELS, addresses, lambda: [*entries[: emitter.hidden_end], *found])
                self._screening = Screening(late, arena.bytes[ending.best.offset : ending.best.offset + ending.best.size], ending.row_tiles)
            self._reads = [(draft.matrices, draft.cache_stores) for draft in emitter.drafts]
        except BaseException:
            self.close()
            raise
        self._logits = _rows_in(arena, emitter.logits_slot(), program.vocabulary)
        self._hidden = _rows_in(arena, emitter.hidden_slot(), program.width)
        groups = {entry.group: CacheGroup(entry.group, PAGE_POSITIONS, _pages(decided.cache_tokens), entry.window) for entry in program.stores}
        self._record = StepRecord(options.maximum_step_rows, options.maximum_sequences, len(groups), MAXIMUM_OUTPUT_ROWS, MAXIMUM_PASSES)
        self.program = program
        self.capabilities = Capabilities(
            uses_block_tables=True,
            cache_groups=tuple(groups[name] for name in emitter.groups),
            bit_exact_batches=True,
            bit_exact_chunks=True,
            vocabulary=program.vocabulary,
            context=options.context,
            maximum_step_rows=options.maximum_step_rows,
            maximum_sequences=options.maximum_sequences,
            threads=decided.threads.count,
            description=f"numba kernels for {level.name}, {decided.threads.count} threads ({decided.threads.reason}), {emitter.cache_type} cache",
            output_kinds=frozenset({OutputKind.LOGITS, OutputKind.HIDDEN}),
            separate_rope_positions=True,
            maximum_passes=MAXIMUM_PASSES,
            draws=not options.profile,  # what is timed is the tape without
            times_operations=options.profile,
        )

    @classmethod
    def load(
        cls, model: Path, options: BackendOptions, progress: Callable[[int, int], None] | None = None, file: GGUFFile | None = None
    ) -> NumbaBackend:
        """Opens, plans, checks the plan against the memory that is available, then packs. Raises the errors of each of these.

        `file` is the model, if it is open already; it belongs to the backend from here on.
        """
        file = file or GGUFFile.open(model)
        try:
            file.refuse_unsupported_formats()
            decided = plan(file, options)
            decided.memory.check(Path(model).name, options.context)
            return cls(file, decided, options, progress)
        except BaseException:
            file.close()
            raise

    @property
    def weights_memory(self) -> NDArray[np.uint8]:
        """The packed weights as they lie in memory, for keeping them on disk. A view: drop it before closing."""
        assert self._weights is not None
        return self._weights.memory

    def _load_weights(
        self, file: GGUFFile, decided: _Plan, addresses: dict[KernelName, int], progress: Callable[[int, int], None] | None
    ) -> Weights:
        """From disk if they are there and fit, else packed."""
        if decided.stored is not None:
            try:
                return Weights.map(file, decided.weights, decided.stored)
            except OSError as error:
                warnings.warn(f"the packed weights in {decided.stored.path} cannot be mapped ({error}); they are packed anew", stacklevel=2)
        pool, record = self._pool, StepRecord(1, 1, 0)
        assert pool is not None
        weights = Weights.pack(file, decided.weights, lambda entries: pool.run(Tape.build(entries, addresses), record), progress)
        if decided.stored_problem is not None:
            renew(stored_path(file), weights_identity(file, decided.weights), weights.memory, decided.stored_problem)
        return weights

    def _entries(self, drafts: Sequence[Draft], weights: Weights, caches: list[Region], arena: Region) -> list[TapeEntry]:
        """The drafts with their addresses."""

        def place(operand: int | Address) -> int:
            if isinstance(operand, int):
                return operand
            tables = {"packed": weights.packed, "rows": weights.rows, "mapped": weights.mapped}
            if operand.kind in tables:
                return tables[operand.kind][str(operand.key)]
            if operand.kind == "slot":
                return arena.address + operand.key.offset  # type: ignore[attr-defined]
            if operand.kind == "store":
                return caches[operand.key].address  # type: ignore[call-overload]
            return int(self._constants[operand.key].ctypes.data)  # type: ignore[call-overload]

        return [
            TapeEntry(draft.kernel, tuple(place(operand) for operand in draft.operands), draft.barrier_after, draft.label, draft.row_wise)
            for draft in drafts
        ]

    def step(self, step: Step) -> StepOutputs:
        """Runs one forward pass, or a burst; see `Backend`. Values in the result are overwritten by the next step."""
        if self._closed or self._pool is None:
            raise EngineClosedError("the model was closed")
        kinds = step.outputs.tolist()  # for a few rows lists are faster than NumPy, above all when a pass has swept its code out of the caches
        rows = np.array([row for row, kind in enumerate(kinds) if kind == _LOGITS], np.int32)
        if max(kinds, default=0) > _LOGITS or any(step.adapters.tolist()):
            refuse_undeclared(step, self.capabilities)
            return self._step_with_hidden(step)
        self._run(step, rows, self._tape)
        return StepOutputs(self._logits[: 0 if step.burst is not None and step.burst.draws is None else len(rows)], rows, self._record.largest)

    def _step_with_hidden(self, step: Step) -> StepOutputs:
        """A step of which some rows want their final normed state."""
        rows = step.outputs.nonzero()[0].astype(np.int32)
        wants_hidden = step.outputs[rows] == _HIDDEN
        count = 0 if wants_hidden.all() else len(rows)
        self._run(step, rows, self._tape if count else self._hidden_tape)
        hidden = self._hidden[: len(rows)][wants_hidden]
        if not np.isfinite(hidden).all():
            raise _not_finite(self._file)
        wants_logits = ~wants_hidden[:count]
        largest = self._record.largest[:, wants_logits] if count else None
        return StepOutputs(self._logits[:count][wants_logits], rows[~wants_hidden], largest, hidden, rows[wants_hidden])

    def _run(self, step: Step, rows: NDArray[np.int32], tape: Tape) -> None:
        """Runs a tape over a step; `rows` are those with outputs. Raises EngineClosedError and NonFiniteError."""
        assert self._pool is not None
        tables = [sequence.pages for sequence in step.sequences]
        self._record.fill(step.token_ids, step.rope_positions, step.slots, step.sequence, rows, tables)
        late = screened = None
        drawn = step.burst is not None and step.burst.draws is not None
        if step.burst is not None:
            refuse_impossible_burst(step, step.burst, self.capabilities)
            passes, (draws, uniforms) = step.burst.passes, _draws(step.burst.draws)
            if drawn:
                late = self._drawing.get()
                if late is None:  # the caller draws until kernels can
                    passes, draws, uniforms = 1, None, None
            elif self._screening is not None and self._screening.wants(step.rows):
                late = screened = self._screening.tape.get()
            self._record.make_burst(passes, step.burst.end_ids, step.burst.interrupt, draws, uniforms)
        stopped = self._pool.run(late or tape, self._record)
        if screened is not None and self._screening is not None:
            self._screening.note(step.rows, self._record.passes_done)
        if drawn and late is None:
            self._record.largest[:] = UNDECIDED
        if stopped is not None and not stopped.status:
            raise EngineClosedError("the step was cancelled")
        if stopped is not None:
            raise _not_finite(self._file)

    def take_profile(self) -> tuple[OperationTime, ...]:
        """See `ProfilingBackend`; the times are worker 0's. Raises InvalidRequestError if the backend was not loaded with `profile`."""
        if self._tape.counters is None:
            raise InvalidRequestError("the backend was not loaded with profile=True, so no times were kept")
        found = tuple(
            OperationTime(entry.label, entry.kernel.symbol, int(nanoseconds) / 1e9, *reads)
            for entry, reads, nanoseconds in zip(self._tape.entries, self._reads, self._tape.counters, strict=True)
        )
        self._tape.counters[:] = 0
        return found

    def release(self, sequence_ids: Sequence[int]) -> None:
        """Nothing is kept by sequence: pages belong to the scheduler."""

    def close(self) -> None:
        """Gives back threads, memory and the file."""
        if self._closed:
            return
        self._closed = True
        if self._pool is not None:
            self._pool.close()
        self._logits = self._hidden = np.empty((0, 0), np.float32)
        if self._weights is not None:
            self._weights.close()
        for region in self._regions:
            region.close()
        self._regions = []
        self._file.close()

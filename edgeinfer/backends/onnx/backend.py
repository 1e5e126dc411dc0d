"""The onnx backend: ONNX Runtime behind the contract, on a graph that is made from the model's program when it is loaded.

`OnnxBackend` is its form for the dialect `cpu`, whose graph writes the cache in place; `standard_backend` has the other one, `session_backend` what both
have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.onnx.cache import SlotCache
from edgeinfer.backends.onnx.dialects import emitter_of
from edgeinfer.backends.onnx.huge_pages import gather_pages, private_spans
from edgeinfer.backends.onnx.library import require_onnx, require_onnxruntime
from edgeinfer.backends.onnx.placement import require_share
from edgeinfer.backends.onnx.plan import ROWS_AT_ONCE, LoadPlan, make_plan
from edgeinfer.backends.onnx.provider_search import CPU_TARGET, Target, automatic_targets, target_of
from edgeinfer.backends.onnx.providers import AUTO, checked_share, parse_provider
from edgeinfer.backends.onnx.runs import Run
from edgeinfer.backends.onnx.session import MadeSession, make_session
from edgeinfer.backends.onnx.session_backend import KEPT_BINDINGS, SessionBackend, cache_length
from edgeinfer.backends.onnx.standard_backend import StandardOnnxBackend
from edgeinfer.core.errors import ProviderError, UnsupportedModelError, UnsupportedOptionError
from edgeinfer.core.steps import Step
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program, build_program, fuse


@dataclass
class _DecodeBinding:
    """A binding with the cache of some slots in place, and what its inputs read in a run of one row for each of them, which decoding writes anew."""

    binding: Any
    embedded: NDArray[np.float32]
    last: NDArray[np.int32]
    total: NDArray[np.int32] = field(default_factory=lambda: np.zeros((), np.int32))
    decodes_to: int = 0  # the address of the logits while these inputs are bound
    kept: list[NDArray[Any]] = field(default_factory=list)  # what its inputs read now


class OnnxBackend(SessionBackend):
    """In the dialect `cpu`: what is bound once stays bound, and decoding writes anew what its inputs read."""

    rows_at_once = ROWS_AT_ONCE  # the attention computes scores of all rows with all positions
    kept_sequences = 8

    def __init__(self, library: Any, file: GGUFFile, program: Program, options: BackendOptions, plan: LoadPlan, made: MadeSession) -> None:
        self._bindings: dict[tuple[int, int, bool], _DecodeBinding] = {}
        super().__init__(library, file, program, options, plan, made)

    @classmethod
    def load(cls, model: Path, options: BackendOptions) -> SessionBackend:
        """Opens the file, plans, checks the plan against the memory that is available, and makes the graph and its session: for the backend of its dialect.

        The cache is float32: the provider has no attention over float16 keys with float32 queries. Unless f32 is
        asked for, a warning says so; q8_0 and q16_0 are an UnsupportedOptionError. Raises BackendUnavailableError without onnxruntime or onnx, ProviderError
        for a provider that cannot be had or runs too little, UnsupportedModelError for what has no ONNX form, and the file's own errors.
        """
        request = parse_provider(options.provider) if options.provider is not None else None
        minimum = checked_share(options.minimum_share, options.provider)
        library = require_onnxruntime()
        require_onnx()
        if options.instruction_set is not None:
            raise UnsupportedOptionError(f"instruction_set is {options.instruction_set!r}, but the onnx backend chooses its own; leave it out")
        if options.cache_type not in (None, "f16", "f32"):
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
            made = first_that_runs(targets, minimum, lambda target: make_session(library, program, file, cache_length(options), plan.threads.count, target))
            gather_pages(before)
            kind = cls if made.placement.dialect == "cpu" else StandardOnnxBackend
            return kind(library, file, program, options, plan, made)
        except BaseException:
            file.close()
            raise

    def _forget_bindings(self) -> None:
        self._bindings.clear()

    def _make_cache(self, slots: int, length: int) -> SlotCache:
        return SlotCache(self.program.stores, slots, length)

    def _run(
        self, step: Step, run: Run, outputs: NDArray[np.intp], logits: NDArray[np.float32], hidden: NDArray[np.float32] | None
    ) -> None:
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
            if len(self._bindings) >= KEPT_BINDINGS:
                self._bindings.clear()
            binding = self._session.io_binding()
            for name, array in self._cache.arrays(first, count):
                tensor = self._library.OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_input(f"past_key_values.{name}", tensor)
                binding.bind_ortvalue_output(f"present.{name}", tensor)
            bound = _DecodeBinding(binding, np.empty((count, 1, self.program.width), np.float32), np.empty(count, np.int32))
            self._bindings[first, count, gives_hidden] = bound
        return self._bindings[first, count, gives_hidden]

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

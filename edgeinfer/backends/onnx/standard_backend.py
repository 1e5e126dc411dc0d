"""The backend on the standard dialects, for providers that do not have ONNX Runtime's own operators. The graph reads the cache where it lies and gives back
the keys and values of new rows, which are written behind the old ones. `OnnxBackend.load` makes one where the provider asks for it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.onnx.growing_cache import GrowingCache
from edgeinfer.backends.onnx.runs import Run
from edgeinfer.backends.onnx.session_backend import KEPT_BINDINGS, SessionBackend
from edgeinfer.core.steps import Step


@dataclass(frozen=True)
class _Bound:
    """A binding with the cache of some slots in place, and where it leaves the new keys and values: by name float32[count, kv_heads, rows, size]."""

    binding: Any
    new: dict[str, NDArray[np.float32]]


class StandardOnnxBackend(SessionBackend):
    """See the module."""

    rows_at_once = sys.maxsize  # every run looks at the whole cache
    kept_sequences = 0  # a long one would make it longer for all
    _cache: GrowingCache

    def _make_cache(self, slots: int, length: int) -> GrowingCache:
        self._bound: dict[tuple[int, int, int, bool, bool], _Bound] = {}
        self._new: dict[str, NDArray[np.float32]] = {}
        return GrowingCache(self.program.stores, slots, length)

    def _forget_bindings(self) -> None:
        self._bound.clear()
        self._new.clear()

    def _run(
        self, step: Step, run: Run, outputs: NDArray[np.intp], logits: NDArray[np.float32], hidden: NDArray[np.float32] | None
    ) -> None:
        value = self._library.OrtValue.ortvalue_from_numpy
        starts = step.slots[run.rows].reshape(run.count, -1)[:, 0].astype(np.int64)
        self._fit(0)
        bound = self._bound_to(run, bool(starts.any()), hidden is not None)
        embedded = self._embedded(step.token_ids[run.rows]).reshape(run.count, run.length, -1)
        inputs = {"embedded": value(embedded), "output_rows": value(outputs.astype(np.int64)), "cached_lengths": value(starts)}
        for name, tensor in inputs.items():
            bound.binding.bind_ortvalue_input(name, tensor)
        targets = {"logits": value(logits[np.newaxis])} | ({} if hidden is None else {"hidden": value(hidden[np.newaxis])})
        for name, tensor in targets.items():
            bound.binding.bind_ortvalue_output(name, tensor)
        self._session.run_with_iobinding(bound.binding)
        self._fit(int(starts.max()) + run.length)
        self._cache.write(run.first, starts, bound.new)

    def _fit(self, tokens: int) -> None:
        if self._cache.fit(tokens):
            self._bound.clear()

    def _bound_to(self, run: Run, continues: bool, gives_hidden: bool) -> _Bound:
        """The binding of runs of this form. Sequences that are not continued are spared the places of those that are."""
        key = (run.first, run.count, run.length, continues, gives_hidden)
        if key not in self._bound:
            if len(self._bound) >= KEPT_BINDINGS:
                self._bound.clear()
            self._bound[key] = self._bind(run, continues)
        return self._bound[key]

    def _bind(self, run: Run, continues: bool) -> _Bound:
        value = self._library.OrtValue.ortvalue_from_numpy
        binding, new = self._session.io_binding(), {}
        for name, array in self._cache.arrays(run.first, run.count) if continues else self._cache.empty(run.count):
            binding.bind_ortvalue_input(f"past_key_values.{name}", value(array))
            _, heads, _, size = array.shape
            if name not in self._new:
                self._new[name] = np.empty(self.capabilities.maximum_step_rows * heads * size, np.float32)
            new[name] = self._new[name][: run.count * heads * run.length * size].reshape(run.count, heads, run.length, size)
            binding.bind_ortvalue_output(f"present.{name}", value(new[name]))
        return _Bound(binding, new)

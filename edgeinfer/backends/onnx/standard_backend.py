"""The backend on the standard dialects, for providers that do not have ONNX Runtime's own operators: every run takes one sequence, and its cache goes
from run to run as ONNX Runtime's values. `OnnxBackend.load` makes one where the provider asks for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.onnx.backend import OnnxBackend, Run
from edgeinfer.backends.onnx.growing_cache import GrowingCache
from edgeinfer.core.steps import Step


class StandardOnnxBackend(OnnxBackend):
    """See the module, and `OnnxBackend` for the rest."""

    runs_share = False
    _cache: GrowingCache  # type: ignore[assignment]

    def _make_cache(self, slots: int, length: int) -> Any:
        return GrowingCache(self._library, self.program.stores, slots)

    def _filled(self, slot: int, length: int) -> None:
        """`_run` has said so already."""

    def _run(
        self, step: Step, run: Run, outputs: NDArray[np.intp], logits: NDArray[np.float32], hidden: NDArray[np.float32] | None
    ) -> None:
        value = self._library.OrtValue.ortvalue_from_numpy
        held, past = self._cache.past(run.first)
        total = held + run.length
        binding = self._session.io_binding()
        inputs = {
            "embedded": self._embedded(step.token_ids[run.rows])[np.newaxis], "output_rows": outputs.astype(np.int64),
            "attention_mask": np.ones((1, total), np.int64), "position_ids": np.arange(held, total, dtype=np.int64)[np.newaxis],
        }  # fmt: skip
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, value(array))
        for name, tensor in past.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", tensor)
        for name in self._cache.names:
            binding.bind_output(f"present.{name}", "cpu")
        targets = {"logits": value(logits[np.newaxis])} | ({} if hidden is None else {"hidden": value(hidden[np.newaxis])})
        for name, tensor in targets.items():
            binding.bind_ortvalue_output(name, tensor)
        self._session.run_with_iobinding(binding)
        self._cache.grown(run.first, total, binding.get_outputs()[: len(self._cache.names)])

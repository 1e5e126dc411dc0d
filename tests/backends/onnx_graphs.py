"""Running exported graphs with plain ONNX Runtime, as another runtime would: token ids, a mask and the cache in, logits and the cache out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program
from edgeinfer.model.reference import reference_logits


class ExportedModel:
    """A session on an exported file. `exact` keeps ONNX Runtime from quantizing activations of the standard dialects."""

    def __init__(self, path: Path, exact: bool = True) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1" if exact else "4")
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._inputs = {entry.name: entry for entry in self._session.get_inputs()}

    def logits(self, token_ids: Sequence[int], chunk: int | None = None) -> NDArray[np.float32]:
        """float32[tokens, vocabulary]"""
        ids = np.array([token_ids], dtype=np.int64)
        names = [entry.name for entry in self._session.get_outputs()]
        cache: dict[str, Any] = {
            name: np.zeros((1, entry.shape[1], 0, entry.shape[3]), np.float32) for name, entry in self._inputs.items() if name.startswith("past")
        }
        blocks = []
        for start in range(0, ids.shape[1], chunk or ids.shape[1]):
            part = ids[:, start : start + (chunk or ids.shape[1])]
            stop = start + part.shape[1]
            feeds = {"input_ids": part, "attention_mask": np.ones((1, stop), np.int64), "position_ids": np.arange(start, stop)[np.newaxis], **cache}
            results = dict(zip(names, self._session.run(names, {name: value for name, value in feeds.items() if name in self._inputs})))
            blocks.append(results["logits"][0])
            cache = {name.replace("present", "past_key_values"): value for name, value in results.items() if name != "logits"}
        return np.concatenate(blocks)


def reference(path: Path, token_ids: Sequence[int]) -> NDArray[np.float64]:
    with GGUFFile.open(path) as file:
        return reference_logits(file, token_ids, program=build_program(file))


def distance(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The error relative to the whole."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))

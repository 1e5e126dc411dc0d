"""onnxruntime-genai on a folder that `edgeinfer export` has written: the same graph in another runtime of ONNX Runtime's own."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from edgeinfer.benchmark.peers.runner import Start, package_version


class GenaiRunner:
    """`start.model` is the folder. One prompt at a time, with a cache of as many places as it needs."""

    def __init__(self, start: Start) -> None:
        import onnxruntime_genai

        self._library = onnxruntime_genai
        config = onnxruntime_genai.Config(start.model)
        if start.threads is not None:
            config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": start.threads}}}}))
        self._model = onnxruntime_genai.Model(config)

    def describe(self) -> dict[str, Any]:
        versions = [package_version(package) for package in ("onnxruntime-genai", "onnxruntime")]
        return {"version": f"onnxruntime-genai {versions[0]}", "details": f"ONNX Runtime {versions[1]}", "vocabulary": None}

    def _generator(self, ids: Sequence[int], count: int) -> Any:
        """A prompt, computed, after which `count` tokens may come."""
        import numpy as np

        parameters = self._library.GeneratorParams(self._model)
        parameters.set_search_options(max_length=len(ids) + count, min_length=len(ids) + count, do_sample=False)
        generator = self._library.Generator(self._model, parameters)
        generator.append_tokens(np.array(ids, dtype=np.int32))
        return generator

    def prefill(self, ids: Sequence[int]) -> float:
        began = time.perf_counter()
        self._generator(ids, 1).generate_next_token()
        return time.perf_counter() - began

    def decode(self, prompts: Sequence[Sequence[int]], count: int) -> float:
        if len(prompts) > 1:
            raise RuntimeError("one prompt at a time here")
        generator = self._generator(prompts[0], count + 1)
        generator.generate_next_token()
        began = time.perf_counter()
        for _ in range(count):
            generator.generate_next_token()
        return time.perf_counter() - began

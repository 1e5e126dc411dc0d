"""openvino-genai, which reads GGUF files of some architectures and formats itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.benchmark.peers.runner import Start, package_version


class OpenVinoRunner:
    """`LLMPipeline` on the CPU, timed by its own counters: from the call to the first token, and between tokens.

    Settings: attention ("PA", paged, with continuous batching, or "SDPA") and precision (of its arithmetic; "default" leaves it to the library). Raises
    RuntimeError for a file that it does not read.
    """

    def __init__(self, start: Start) -> None:
        import openvino_genai

        attention = start.settings.get("attention", "PA")
        self._paged = attention == "PA"
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": start.threads, "ATTENTION_BACKEND": attention}
        precision = start.settings.get("precision", "default")
        if precision != "default":
            properties["INFERENCE_PRECISION_HINT"] = precision
        try:
            self._pipeline = openvino_genai.LLMPipeline(start.model, "CPU", **properties)
        except Exception as error:
            words = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise RuntimeError(f"openvino-genai does not read this file ({words[-1] if words else type(error).__name__})") from error
        self._library = openvino_genai

    def describe(self) -> dict[str, Any]:
        return {"version": f"openvino-genai {package_version('openvino-genai')}", "details": "reads the GGUF file itself", "vocabulary": None}

    def _generate(self, prompts: Sequence[Sequence[int]], count: int) -> Any:
        if len(prompts) > 1 and self._paged:
            raise RuntimeError("its paged pipeline takes one prompt of token ids at a time")
        import numpy as np
        import openvino

        config = self._library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        metrics = self._pipeline.generate(openvino.Tensor(np.array(prompts, dtype=np.int64)), config).perf_metrics
        if metrics.get_num_generated_tokens() != count * len(prompts):
            raise RuntimeError(f"the measurement is void: {metrics.get_num_generated_tokens()} new tokens, not {len(prompts)} x {count}")
        return metrics

    def prefill(self, ids: Sequence[int]) -> float:
        return float(self._generate([ids], 1).get_ttft().mean) / 1e3

    def decode(self, prompts: Sequence[Sequence[int]], count: int) -> float:
        durations = self._generate(prompts, count + 1).raw_metrics.m_durations  # microseconds between tokens
        if len(durations) != count:
            raise RuntimeError(f"the measurement is void: {len(durations)} steps were timed, not {count}")
        return float(sum(durations)) / 1e6

"""Our engine as a user has it: through `Engine.generate_many`, with the scheduler and the sampler at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.benchmark.peers.runner import Start
from edgeinfer.benchmark.results import backend_of


class EdgeInferRunner:
    """On the backend that the engine's name tells."""

    def __init__(self, start: Start) -> None:
        from edgeinfer import Engine

        backend = backend_of(start.engine)
        assert backend is not None
        self._engine = Engine.load(
            start.model, backend=backend, threads=start.threads, context=start.context, cache_tokens=start.cache_tokens, prewarm=True, **start.settings
        )

    def describe(self) -> dict[str, Any]:
        from edgeinfer.core.version import __version__

        capabilities = self._engine.capabilities
        return {"version": f"edgeinfer {__version__}", "details": capabilities.description, "vocabulary": capabilities.vocabulary}

    def _generate(self, prompts: Sequence[Sequence[int]], count: int) -> Any:
        from edgeinfer import SamplingParams

        completions = self._engine.generate_many([list(ids) for ids in prompts], SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True))
        for completion in completions:
            if completion.usage.cached_tokens or completion.usage.completion_tokens != count:
                raise RuntimeError(f"the measurement is void: {completion.usage}, {count} new tokens were asked for and no cached ones")
        return completions

    def prefill(self, ids: Sequence[int]) -> float:
        return float(self._generate([ids], 1)[0].timings.first_token)

    def decode(self, prompts: Sequence[Sequence[int]], count: int) -> float:
        """From the earliest first token to the latest last one: time in which some prompts are still being computed counts against us."""
        timings = [completion.timings for completion in self._generate(prompts, count + 1)]
        return float(max(item.total for item in timings) - min(item.first_token for item in timings))

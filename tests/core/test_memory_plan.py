"""What is said to someone whose model does not fit: remedies that would help, and none that would not."""

from __future__ import annotations

import pytest

from edgeinfer.core.errors import MemoryPlanError
from edgeinfer.core.memory_plan import MemoryPlan


def _refusal(weights: int, cache: int, arena: int, context: int) -> str:
    """The message where 1,000 MB are available; the parts are MB too."""
    plan = MemoryPlan(weights * 10**6, cache * 10**6, arena * 10**6, 0, 0, 0, 1000 * 10**6, "of a test")
    with pytest.raises(MemoryPlanError) as caught:
        plan.check("model.gguf", context)
    return str(caught.value)


def test_a_context_that_would_fit_is_named() -> None:
    assert "a smaller context (about 1984 tokens would fit: --context 1984)" in _refusal(weights=500, cache=1000, arena=4, context=4000)


def test_of_an_arena_that_grows_with_the_context_no_number_is_known() -> None:
    assert "a much smaller context (--context); a smaller quantization" in _refusal(weights=500, cache=4000, arena=2000, context=4000)


def test_no_context_of_a_few_tokens_is_suggested() -> None:
    assert "What helps: a much smaller" in _refusal(weights=0, cache=10**6, arena=999, context=4000)
    assert "--context 0" not in _refusal(weights=0, cache=10**6, arena=999, context=4000)


def test_weights_that_do_not_fit_alone_are_helped_by_no_context() -> None:
    assert "context (" not in _refusal(weights=2000, cache=1000, arena=1, context=4000)

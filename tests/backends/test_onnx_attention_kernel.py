"""The choice of ONNX Runtime's attention kernel: what a session sees while it is made, what is left behind, and that both kernels compute the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import Engine
from edgeinfer.backends.onnx.attention_kernel import VARIABLE, attention_kernel
from tests.support.tiny_models import tiny_llama


@pytest.mark.parametrize(("threads", "heads", "seen"), [(1, 1, "1"), (2, 9, "1"), (4, 4, "1"), (5, 4, None)])
def test_the_variable_is_set_for_as_long_as_a_session_is_made(threads: int, heads: int, seen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with attention_kernel(threads, heads):
        assert os.environ.get(VARIABLE) == seen
    assert VARIABLE not in os.environ


def test_it_is_gone_after_a_session_that_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match="refused"), attention_kernel(1, 4):
        raise ValueError("refused")
    assert VARIABLE not in os.environ
    with attention_kernel(1, 4):
        assert os.environ[VARIABLE] == "1"


@pytest.mark.parametrize("given", ["0", "1"])
def test_who_sets_the_variable_decides(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, given)
    with attention_kernel(1, 4):
        assert os.environ[VARIABLE] == given
    assert os.environ[VARIABLE] == given


@pytest.mark.onnx
def test_sessions_are_made_with_it_and_compute_the_same_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    path = tiny_llama(tmp_path / "model.gguf", width=256, heads=8, feed_forward=256, weight_format="F32")
    tokens = [int(token) for token in np.random.default_rng(5).integers(33, 280, 300)]
    monkeypatch.delenv(VARIABLE, raising=False)
    seen: list[str | None] = []
    make = onnxruntime.InferenceSession

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        seen.append(os.environ.get(VARIABLE))
        return make(*arguments, **keywords)

    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    found = []
    for given in (None, "0"):
        if given is not None:
            monkeypatch.setenv(VARIABLE, given)
        with Engine.load(path, backend="onnx", context=320, threads=1) as engine:
            found.append(engine.logits(tokens))
    assert seen == ["1", "0"]
    assert np.abs(found[0] - found[1]).max() <= 1e-4 * np.abs(found[1]).max()

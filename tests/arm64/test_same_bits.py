"""Whole models on arm64: kernels that x86-64 compiled load without Numba, and give the bits that x86-64 computed. Run by tools/arm64/run_tests.sh."""

from __future__ import annotations

import json
import sys

import pytest

from tests.arm64 import emulation
from tests.arm64.whole_models import logits_digest
from tests.kernels.support import KERNEL_FOLDER
from tests.support.kernels import runnable_levels

FOLDER = emulation.prepared
DIGESTS: dict[str, str] = json.loads((FOLDER / "digests.json").read_text()) if FOLDER is not None else {"none": ""}

pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs what tests.arm64.prepare writes on x86-64: make test-arm64")


@pytest.mark.parametrize("level", [level.name for level in runnable_levels()])
@pytest.mark.parametrize("model", DIGESTS)
def test_logits_have_the_bits_of_x86(monkeypatch: pytest.MonkeyPatch, level: str, model: str) -> None:
    from edgeinfer.backends.numba.backend import kernel_store
    from kernels_numba.simd.levels import level_by_name

    monkeypatch.setenv("EDGEINFER_CACHE", str(KERNEL_FOLDER))
    had_numba = "numba" in sys.modules
    assert FOLDER is not None
    assert logits_digest(FOLDER / model, level) == DIGESTS[model]
    assert kernel_store(level_by_name(level)).compiled == []
    assert had_numba or "numba" not in sys.modules

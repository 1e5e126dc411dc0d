"""The backend onnx on arm64: the wheel of ONNX Runtime gives the logits that x86-64 computed, within the tolerance. Run by tools/arm64/run_tests.sh."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from tests.arm64 import emulation
from tests.arm64.onnx_logits import CASES, has_onnx, logits_file, onnx_logits

FOLDER = emulation.prepared

pytestmark = [
    pytest.mark.onnx,
    pytest.mark.skipif(FOLDER is None, reason="needs what tests.arm64.prepare writes on x86-64: make test-arm64"),
]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_near_those_of_x86(case: str) -> None:
    assert FOLDER is not None and platform.machine() == "aarch64" and has_onnx()
    if not logits_file(FOLDER, case).exists():
        pytest.skip("onnxruntime and onnx are not both installed on x86-64, so there is nothing to compare with")
    import onnx  # noqa: F401  # what is imported already is not tried in a process of its own first, which cannot be started here
    import onnxruntime  # noqa: F401

    expected, found = np.load(logits_file(FOLDER, case)), onnx_logits(FOLDER, case)
    errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert found.shape == expected.shape and errors.max() < CASES[case][2], errors

"""Fixtures and rules for every test: real files, what is left out and why, and no network.

`model_path` and `llamacpp_models` exist twice, as plain functions (from tests.conftest import model_path) for modules that build parameter lists,
and as fixtures of the same names that return those functions.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real_files import llamacpp_models, model_path

__all__ = ["llamacpp_models", "model_path"]


@pytest.fixture(name="model_path")
def model_path_fixture() -> Callable[[str], Path]:
    """The function `model_path(name)`."""
    return model_path


@pytest.fixture(name="llamacpp_models")
def llamacpp_models_fixture() -> Callable[[], Path]:
    """The function `llamacpp_models()`."""
    return llamacpp_models


_OPTIONAL = {
    "llamacpp": (("llama_cpp",), "llama-cpp-python is not installed (needs a C++ compiler): `make test` builds it"),
    "onnx": (("onnxruntime", "onnx"), "onnxruntime and onnx are not both installed: pip install 'edgeinfer[onnx]'"),
}


def pytest_configure() -> None:
    """A shell starts background jobs with interrupts ignored, and all children inherit that: tests of Ctrl-C would wait for ever."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a library that is not installed (of llama-cpp-python there is no ready-made package, and building needs a C++ compiler)."""
    for marker, (modules, reason) in _OPTIONAL.items():
        if all(importlib.util.find_spec(module) is not None for module in modules):
            continue
        for item in items:
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))

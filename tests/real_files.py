"""Where tests find what is too large, or not ours, to be committed: real models, and files of llama.cpp. Any test module may import this one.

Everything here skips the calling test, with the reason and the remedy, where a file is missing; `make test` fetches all of them beforehand.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeinfer.core.home import model_file


def model_path(name: str) -> Path:
    """The GGUF file of a model card (`"smollm2-135m"`) under EDGEINFER_HOME. Skips the test when it has not been pulled."""
    path = model_file(name)
    if not path.is_file():
        pytest.skip(f"model {name} is not in {path.parent}: `edgeinfer pull {name}`")
    return path


def llamacpp_models() -> Path:
    """The folder `vendor/llama.cpp/models` of llama-cpp-python's source archive: vocabularies with their expected ids, and chat templates.

    Its path comes from EDGEINFER_LLAMACPP_MODELS, else from the place where `make test` unpacks it. Skips the test when there is neither.
    """
    given = os.environ.get("EDGEINFER_LLAMACPP_MODELS")
    if given:
        folder = Path(given)
    else:
        unpacked = sorted((Path(__file__).resolve().parent.parent / ".cache" / "llama-cpp-python").glob("*/vendor/llama.cpp/models"))
        folder = unpacked[-1] if unpacked else Path("/nonexistent")
    if not folder.is_dir():
        pytest.skip("no vocabularies and templates of llama.cpp: set EDGEINFER_LLAMACPP_MODELS, or let `make test` unpack them")
    return folder

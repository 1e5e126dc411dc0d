"""Where files are kept, for every kind of user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from edgeinfer.core import home


def test_home_is_the_named_folder() -> None:
    assert home.home_path({"EDGEINFER_HOME": "/data/edge infer"}) == Path("/data/edge infer")


def test_relative_home_is_made_absolute() -> None:
    assert home.home_path({"EDGEINFER_HOME": "here"}) == Path.cwd() / "here"


def test_home_is_in_the_user_s_cache_folder() -> None:
    assert home.home_path({"XDG_CACHE_HOME": "/cache", "HOME": "/home/user"}) == Path("/cache/edgeinfer")
    assert home.home_path({"HOME": "/home/user"}) == Path("/home/user/.cache/edgeinfer")


def test_relative_xdg_cache_folder_is_ignored() -> None:
    assert home.home_path({"XDG_CACHE_HOME": "cache", "HOME": "/home/user"}) == Path("/home/user/.cache/edgeinfer")


def test_a_user_without_a_home_gets_a_folder_of_its_own() -> None:
    expected = Path(tempfile.gettempdir()) / f"edgeinfer-{os.getuid()}"
    assert home.home_path({}) == expected
    assert home.home_path({"HOME": ""}) == expected


def test_a_machine_on_which_nothing_can_be_written_has_a_home_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    assert home.home_path({}) == Path(f"/tmp/edgeinfer-{os.getuid()}")


def test_models_and_kernels_lie_in_the_home() -> None:
    environment = {"EDGEINFER_HOME": "/kept"}
    assert home.model_file("tiny", environment) == Path("/kept/models/tiny.gguf")
    assert home.kernel_cache_path(environment) == Path("/kept/kernels")
    assert home.kernel_cache_path({"EDGEINFER_CACHE": "/elsewhere"}) == Path("/elsewhere")
    assert home.kernel_cache_path({"EDGEINFER_CACHE": "none"}) is None

"""The data files are found in the source tree."""

from __future__ import annotations

import pytest

from edgeinfer.core.paths import data_path


def test_cards_are_found_in_the_source_tree() -> None:
    assert data_path("cards").is_dir()


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="no data folder 'recipes'"):
        data_path("recipes")

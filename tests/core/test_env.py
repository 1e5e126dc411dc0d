"""The table of environment variables is the only way to read one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from edgeinfer.core import env
from edgeinfer.core.errors import InvalidRequestError


def test_unset_and_empty_are_none() -> None:
    assert env.value("EDGEINFER_ISA", {}) is None
    assert env.value("EDGEINFER_ISA", {"EDGEINFER_ISA": ""}) is None
    assert env.value("EDGEINFER_ISA", {"EDGEINFER_ISA": "portable"}) == "portable"


def test_a_variable_outside_the_table_is_refused() -> None:
    with pytest.raises(KeyError, match="EDGEINFER_SECRET"):
        env.value("EDGEINFER_SECRET", {"EDGEINFER_SECRET": "1"})


def test_a_variable_that_changes_nothing_is_named_with_the_one_that_was_meant() -> None:
    assert env.misspelt({"EDGEINFER_HOME": "/x", "HOME": "/y", "EDGEINFERNO": "1"}) == []
    one, other = env.misspelt({"EDGEINFER_THREAD": "2", "EDGEINFER_COLOUR_SCHEME": "dark"})
    assert "EDGEINFER_COLOUR_SCHEME is not one" in one and "edgeinfer doctor" in one
    assert other == "the environment variable EDGEINFER_THREAD is not one that edgeinfer reads; did you mean EDGEINFER_THREADS?"


@pytest.mark.parametrize(("text", "expected"), [("1", 1), (" 8 ", 8)])
def test_positive_integer(text: str, expected: int) -> None:
    assert env.positive_integer("EDGEINFER_THREADS", {"EDGEINFER_THREADS": text}) == expected


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²", "0x8"])
def test_what_is_no_positive_integer_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="EDGEINFER_THREADS"):
        env.positive_integer("EDGEINFER_THREADS", {"EDGEINFER_THREADS": text})


def test_every_variable_that_the_source_names_is_in_the_table() -> None:
    root = Path(env.__file__).parent.parent.parent
    known = {variable.name for variable in env.VARIABLES}
    named = set()
    for folder in ("edgeinfer", "kernels_numba"):
        for path in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("EDGEINFER_") and node.value[-1].isupper():
                    named.add(node.value)
    assert named <= known

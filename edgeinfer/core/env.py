"""The environment variables that edgeinfer reads, in one table. Every layer reads them through `value`; `edgeinfer doctor` prints the table.

A variable that is not in the table does not exist: `value` refuses to read it, so that the table cannot be incomplete.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.core.errors import InvalidRequestError


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, what it is for, and what holds when it is not set."""

    name: str
    purpose: str
    default: str


VARIABLES: tuple[Variable, ...] = (
    Variable("EDGEINFER_HOME", "folder that holds pulled models", "edgeinfer in the user's cache folder"),
    Variable("EDGEINFER_CACHE", "folder that holds compiled kernels; `none` keeps them in memory only", "kernels in EDGEINFER_HOME"),
    Variable("EDGEINFER_KERNELS", "folders with ready-made kernels, joined by colons, to look through before those of the installation", "none"),
    Variable("EDGEINFER_ISA", "instruction-set level of the kernels, instead of the best one that this processor has", "detected"),
    Variable("EDGEINFER_THREADS", "number of worker threads, instead of the number of usable cores", "detected"),
    Variable("EDGEINFER_PEERS", "bench only: folder of the peers' environments, each NAME/bin/python", "`.cache/peers` of the checkout: make bench-peers"),
    Variable("EDGEINFER_PROVIDERS", "bars only: environments with providers of ONNX Runtime, as above", "`.cache/providers` of it: make provider-environments"),
    Variable("EDGEINFER_TEST_PROVIDERS", "tests only: providers of ONNX Runtime that must be here, and pass the contract", "none: make test-providers"),
    Variable("EDGEINFER_FUZZ_SCALE", "tests only: how many percent of a full fuzzing campaign to run", "1"),
    Variable("EDGEINFER_UPDATE_GOLDEN", "tests only: 1 writes the golden listings of programs anew", "compared"),
    Variable("EDGEINFER_LLAMACPP_MODELS", "tests only: folder vendor/llama.cpp/models of llama-cpp-python's source archive", "unpacked by make test"),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}


def value(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The value of a variable of the table, or None when it is unset or empty. Raises KeyError for a name that the table lacks."""
    if name not in _BY_NAME:
        raise KeyError(f"{name} is not in the table of environment variables (edgeinfer/core/env.py)")
    found = (os.environ if environment is None else environment).get(name, "")
    return found or None


_PREFIX = "EDGEINFER_"


def misspelt(environment: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each variable that is set, begins like one of ours and is none: it changes nothing, which whoever set it does not know."""
    names = sorted(name for name in (os.environ if environment is None else environment) if name.startswith(_PREFIX) and name not in _BY_NAME)
    return [f"the environment variable {name} is not one that edgeinfer reads; {_remedy(name)}" for name in names]


def _remedy(name: str) -> str:
    import difflib  # takes a while to import, and is hardly ever needed

    close = difflib.get_close_matches(name.removeprefix(_PREFIX), [known.removeprefix(_PREFIX) for known in _BY_NAME], n=1)
    return f"did you mean {_PREFIX}{close[0]}?" if close else "`edgeinfer doctor` lists those that are read"


def positive_integer(name: str, environment: Mapping[str, str] | None = None) -> int | None:
    """The value of a variable as a whole number of at least 1, or None when unset. Raises InvalidRequestError for anything else."""
    text = value(name, environment)
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < 1:
        raise InvalidRequestError(f"environment variable {name} is {text!r}, but must be a whole number of at least 1; correct or unset it")
    return int(text)

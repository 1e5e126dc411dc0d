"""The switches of each peer that decide its speed: what a search may try, and how they read in a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeinfer.benchmark.results import PREFILL, Measurement

Settings = Mapping[str, Any]

_LLAMA: Mapping[str, tuple[Any, ...]] = {"flash_attention": (True, False), "repack": (True, False), "batch": (512, 2048, 128)}

AXES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "llamacpp": _LLAMA,
    "ik_llamacpp": _LLAMA,
    "openvino": {"attention": ("PA", "SDPA"), "precision": ("default", "f32")},
}
"""Peer -> its switches, each with its values; the first ones are where the search starts (and what is measured without a search)."""

_FIRST_SMALL_BATCH = 512


def first_settings(engine: str) -> Settings:
    """Where the search starts; empty for our engine, which has nothing to search."""
    return {name: values[0] for name, values in AXES.get(engine, {}).items()}


def alternatives(engine: str, name: str, measurement: Measurement) -> tuple[Any, ...]:
    """The other values of a switch that can matter to a measurement: batches of a prompt matter to prompts, large ones to long prompts."""
    values = AXES[engine][name][1:]
    if name != "batch":
        return values
    if measurement.kind != PREFILL:
        return ()
    return tuple(size for size in values if size <= _FIRST_SMALL_BATCH or measurement.tokens > _FIRST_SMALL_BATCH)


def describe(settings: Settings) -> str:
    """Such as: flash attention on, repack off, batch 512."""
    words = {True: "on", False: "off"}
    return ", ".join(f"{name.replace('_', ' ')} {words[value] if isinstance(value, bool) else value}" for name, value in settings.items())

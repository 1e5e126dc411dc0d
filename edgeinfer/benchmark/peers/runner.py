"""What an engine's process is asked for, and what every engine answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Start:
    """How an engine is started. `settings` are its own switches by name (`benchmark.settings` lists them); absent ones are as the library has them.

    `context`: tokens that each of `sequences` may hold; `cache_tokens`: all of them together, for engines that share one cache. `threads`: None lets our
    engine decide; peers need a number.
    """

    engine: str
    model: str
    threads: int | None
    context: int
    sequences: int
    cache_tokens: int
    settings: Mapping[str, Any]


class Runner(Protocol):
    """What every engine can do here. Seconds of wall clock."""

    def describe(self) -> dict[str, Any]:
        """Facts: "version", "details" (a line about the build) and "vocabulary" (None where the library does not tell)."""
        ...

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds from an empty cache to the logits of the prompt's last token, or to the first token."""
        ...

    def decode(self, prompts: Sequence[Sequence[int]], count: int) -> float:
        """Computes all prompts, and then times `count` more tokens for each of them, a token of each in one step."""
        ...


def following(ids: Sequence[int], count: int) -> list[int]:
    """`count` token ids to decode after a prompt; which ones they are changes no engine's work."""
    return (list(ids) * (count // len(ids) + 1))[:count]


def package_version(package: str) -> str:
    """A distribution's version, for a record."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"

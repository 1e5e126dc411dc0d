"""The processes of one engine, and the search for the settings at which it is fastest, for each measurement by itself: reading a prompt and decoding may
want different ones, and so may one sequence and eight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgeinfer.benchmark.process import Child
from edgeinfer.benchmark.results import PREFILL, Measurement, Trial, backend_of
from edgeinfer.benchmark.settings import AXES, Settings, alternatives, describe, first_settings
from edgeinfer.core.errors import EdgeInferError

LONGEST_SEARCHED_PROMPT = 2048
LONGEST_SEARCHED_DECODE = 32
_PAIRS = 3  # times that a value of a switch is measured beside the best so far, in turns; the quicker of each counts
_CLEAR = 1.15  # a first pair that differs by more decides
_LONG_SECONDS = 3.0  # so does one that takes longer: it averages by itself
_WARM_UP_TOKENS = 64


@dataclass(frozen=True)
class _Place:
    """What tells processes of an engine apart."""

    settings: tuple[tuple[str, Any], ...]
    sequences: int


class Team:
    """An engine's processes: one for each choice of settings that a measurement uses. `open_child(settings, sequences)` starts one."""

    def __init__(self, engine: str, open_child: Callable[[Settings, int], Child]) -> None:
        self.engine = engine
        self.chosen: dict[str, Settings] = {}
        self.trials: list[Trial] = []
        self._ranked: dict[str, list[Settings]] = {}  # by measurement, what is left of what worked, the quickest first
        self._open_child = open_child
        self._children: dict[_Place, Child] = {}
        self.description = self._child(first_settings(engine), 1).description

    def _place(self, settings: Settings, sequences: int) -> _Place:
        # Ours has room for many sequences in one process, as a user has it; a peer's context is made for the number that it decodes.
        return _Place(tuple(settings.items()), 1 if backend_of(self.engine) is not None else sequences)

    def _child(self, settings: Settings, sequences: int) -> Child:
        place = self._place(settings, sequences)
        if place not in self._children:
            self._children[place] = self._open_child(settings, place.sequences)
        return self._children[place]

    def child(self, measurement: Measurement) -> Child:
        """The process that runs a measurement. Raises BackendUnavailableError when it cannot be started."""
        return self._child(self.chosen.get(measurement.name, first_settings(self.engine)), measurement.sequences)

    def fall_back(self, measurement: Measurement) -> bool:
        """After a failure: ends the process, and takes the next best settings that the search found. False: there are none left."""
        settings = self.chosen.get(measurement.name, first_settings(self.engine))
        gone = self._children.pop(self._place(settings, measurement.sequences), None)
        if gone is not None:
            gone.close()
        ranked = self._ranked.get(measurement.name, [])
        if ranked:
            self.chosen[measurement.name] = ranked.pop(0)
            return True
        return False

    def settings_text(self, measurements: Mapping[str, Measurement]) -> str:
        """The settings in use, by measurement where they differ, and a line about the build."""
        texts = {name: describe(self.chosen.get(name, first_settings(self.engine))) for name in measurements}
        details = str(self.description["details"])
        if len(set(texts.values())) == 1:
            return "; ".join(text for text in (next(iter(texts.values())), details) if text)
        return "; ".join([*(f"{name}: {text}" for name, text in texts.items()), details])

    def search(self, measurements: Mapping[str, Measurement], ask: Callable[[Child, Measurement, int], float]) -> None:
        """Chooses settings for every measurement, one switch after the other. `ask(child, measurement, turn)` measures seconds.

        Long prompts are searched at 2,048 tokens. Settings with which the engine fails are noted and left out; a measurement for which all fail keeps the
        first ones, and will say so itself. Processes that nothing uses are ended.
        """
        searched: dict[Measurement, list[Settings]] = {}
        for name, measurement in measurements.items():
            longest = LONGEST_SEARCHED_PROMPT if measurement.kind == PREFILL else LONGEST_SEARCHED_DECODE
            short = replace(measurement, tokens=min(measurement.tokens, longest))
            if short not in searched:
                searched[short] = self._search_one(short, ask)
            self._ranked[name] = list(searched[short])
            self.chosen[name] = self._ranked[name].pop(0)
        used = {self._place(self.chosen[name], measurement.sequences) for name, measurement in measurements.items()}
        for place in [place for place in self._children if place not in used]:
            self._children.pop(place).close()

    def _search_one(self, measurement: Measurement, ask: Callable[[Child, Measurement, int], float]) -> list[Settings]:
        """All settings with which the measurement worked, the best one first; the first settings where none did."""
        best = first_settings(self.engine)
        turns = iter(range(256, 512))  # prompts that no round uses
        failed: dict[_Place, str] = {}
        quickest: dict[_Place, float] = {}

        def seconds(settings: Settings) -> float:
            place = self._place(settings, measurement.sequences)
            if place not in failed:
                try:
                    child = self._child(settings, measurement.sequences)
                    if place not in quickest:
                        ask(child, replace(measurement, tokens=min(measurement.tokens, _WARM_UP_TOKENS)), next(turns))
                    found = ask(child, measurement, next(turns))
                    quickest[place] = min(found, quickest.get(place, math.inf))
                    return found
                except EdgeInferError as error:
                    failed[place] = str(error)
                    gone = self._children.pop(place, None)
                    if gone is not None:
                        gone.close()
            return math.inf

        for name in AXES[self.engine]:
            for value in alternatives(self.engine, name, measurement):
                other = {**best, name: value}
                theirs = mine = math.inf
                for pair in range(_PAIRS):
                    mine, theirs = min(mine, seconds(best)), min(theirs, seconds(other))
                    quick, slow = sorted((mine, theirs))
                    if pair == 0 and (slow > _CLEAR * quick or slow > _LONG_SECONDS):
                        break
                if theirs < mine:
                    best = other
        for place, found in quickest.items():
            if place not in failed:
                self.trials.append(Trial(measurement.name, dict(place.settings), tokens_per_second=measurement.total_tokens / found))
        for place, reason in failed.items():
            self.trials.append(Trial(measurement.name, dict(place.settings), failure=reason))
        worked = sorted((place for place in quickest if place not in failed), key=lambda place: quickest[place])
        ranked: list[Settings] = [dict(place.settings) for place in worked]
        return [best, *(settings for settings in ranked if settings != best)]

    def close(self) -> None:
        """Ends all processes."""
        for child in self._children.values():
            child.close()
        self._children.clear()

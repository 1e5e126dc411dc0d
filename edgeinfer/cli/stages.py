"""Progress of long work in stages (verify): a bar on a terminal, one line a stage elsewhere; always on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgeinfer.cli.console import is_terminal, note

if TYPE_CHECKING:
    from rich.progress import Progress


class StageReporter:
    """A context manager. `say` is for what should be known at once; `stage(label, total)` begins a stage and returns what is called with the amount done since
    the last call."""

    def __init__(self) -> None:
        self._bars: Progress | None = None

    def __enter__(self) -> StageReporter:
        if is_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=Console(stderr=True))
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """A line of its own, above the bars."""
        if self._bars is None:
            note(text)
        else:
            self._bars.console.print(text, markup=False, highlight=False)

    def stage(self, label: str, total: int) -> Callable[[int], None]:
        """`total` is in the stage's own unit: texts, tokens, prompts."""
        bars = self._bars
        if bars is None:
            note(f"{label} ...")
            return lambda done: None
        task = bars.add_task(label, total=total)
        return lambda done: bars.update(task, advance=done)

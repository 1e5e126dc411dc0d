"""Tables for people, as verify and the benchmark print them (rich): one look for all, and a console that cuts no figure short. Faces import it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 160
"""Columns where no terminal says how wide it is: a file or a pipe takes any width, and a table that is cut loses its figures."""


def new_table(title: str) -> Table:
    """An empty table with a plain title. Cells are rich's markup: what may hold brackets, such as the name of an extra, has to be escaped."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    return Table(title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def report_console(stderr: bool) -> Console:
    """The console for a report. COLUMNS, as everywhere, overrides the width."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH)

"""`edgeinfer pull`: fetch the file of a model card."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(model: Annotated[str, typer.Argument(help="name of a model card, see `edgeinfer list`")]) -> None:
    """Fetch a model, verify it, and print where it is."""
    from edgeinfer.cards import find_card
    from edgeinfer.cli.console import ProgressReporter, note
    from edgeinfer.pull import pull as fetch

    card = find_card(model)
    with ProgressReporter(card.name) as reporter:
        path = fetch(card, reporter)
    note(f"{card.name}: {card.licence} licence, {card.size / 1e6:,.0f} MB, sha256 verified")
    print(path)

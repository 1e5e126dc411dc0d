"""`edgeinfer list`: the model cards, and which of them are here."""

from __future__ import annotations

from typing import Annotated

import typer


def list_models(as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False) -> None:
    """Show the models known by name. The last column says which are here."""
    from edgeinfer.cards import load_cards, local_state
    from edgeinfer.cli.console import megabytes, note, print_json, print_table
    from edgeinfer.core.home import models_path, packed_weights_path

    states = [(card, local_state(card)) for card in load_cards().values()]
    if as_json:
        models = [
            {
                "name": card.name,
                "kind": card.kind,
                "architecture": card.architecture,
                "parameters": card.parameters,
                "quantization": card.quantization,
                "licence": card.licence,
                "size": card.size,
                "sha256": card.sha256,
                "state": local.state,
                "path": str(local.path),
                "bytes_here": local.size,
            }
            for card, local in states
        ]
        print_json({"models": models, "folder": str(models_path())})
        return
    rows = []
    for card, local in states:
        here = {"absent": "-", "verified": "verified", "unverified": "unverified"}.get(local.state, f"{local.state} ({megabytes(local.size)})")
        rows.append((card.name, card.kind, card.architecture, card.quantization, megabytes(card.size), card.licence, here))
    print_table(("name", "kind", "architecture", "quantization", "size", "licence", "here"), rows)
    note(f"folder: {models_path()}")
    sizes = packed_sizes()
    if sizes:
        files = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
        note(f"packed weights: {files} of {megabytes(sum(sizes))} in {packed_weights_path()} (edgeinfer compile MODEL --remove-weights)")


def packed_sizes() -> list[int]:
    """Bytes of each file of packed weights."""
    from edgeinfer.core.home import packed_weights_path

    try:
        return [path.stat().st_size for path in packed_weights_path().glob("*.weights")]
    except OSError:
        return []

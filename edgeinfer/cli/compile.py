"""`edgeinfer compile`: make ahead what the first run of a model would make, so that runs start at once and machines without a compiler can run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeinfer.cli import options
from edgeinfer.core.cache_types import DEFAULT_CACHE_TYPES


def compile_model(
    model: options.Model,
    level: Annotated[
        list[str] | None, typer.Option("--level", help="instruction-set level to compile for; may be given several times; default: that of this machine")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="folder for the kernels; default: EDGEINFER_CACHE")] = None,
    cache_type: Annotated[
        list[str] | None, typer.Option("--cache-type", help=f"type of the KV cache; may be given several times; default: {DEFAULT_CACHE_TYPES['numba']}")
    ] = None,
    weights: Annotated[bool, typer.Option("--weights", help="keep packed weights on disk too: loading maps them, and takes as much room as the model")] = False,
    remove_weights: Annotated[bool, typer.Option("--remove-weights", help="remove the packed weights of this model, and do nothing else")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compile a model's kernels ahead. Kernels are found by themselves when the model is run; weights too."""
    from edgeinfer.backends.numba.ahead import forget_weights, keep_weights, kernels_of, levels_named, make_kernels
    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import ProgressReporter, megabytes, print_json
    from edgeinfer.core.errors import InvalidRequestError
    from edgeinfer.core.printable import printable, printable_path

    if remove_weights and (weights or level or output):
        raise InvalidRequestError("--remove-weights goes with no other option; compile in a second run")
    path = resolve_model(model)
    if remove_weights:
        removed = forget_weights(path)
        if as_json:
            print_json({"removed": printable_path(removed) if removed is not None else None})
        else:
            print(f"removed {printable_path(removed)}" if removed is not None else f"there are no packed weights of {printable(model)}")
        return
    levels = levels_named(level or [])
    needed = kernels_of(path, cache_type or [None])
    with ProgressReporter(printable(model)) as reporter:
        made = [make_kernels(needed, one, output) for one in levels]
        kept = keep_weights(path, lambda done, total: reporter.progress("packing", done, total)) if weights else None
    if as_json:
        kernels = [{"level": one.level, "folder": str(one.folder), "kernels": one.kernels, "compiled": one.compiled, "bytes": one.size} for one in made]
        print_json({"kernels": kernels, "weights": {"path": str(kept.path), "bytes": kept.size, "made": kept.made} if kept is not None else None})
        return
    for one in made:
        print(f"{one.level}: {one.kernels} kernels, {one.compiled} of them compiled now, {megabytes(one.size)} in {printable_path(one.folder)}")
    if kept is not None:
        print(f"packed weights: {megabytes(kept.size)}, {'made now' if kept.made else 'there already'}, in {printable_path(kept.path)}")
        print(f"(to remove them: edgeinfer compile {printable(model)} --remove-weights)")

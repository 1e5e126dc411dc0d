"""`edgeinfer inspect`: what is in a model file, and what running it would take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeinfer.cli import options

if TYPE_CHECKING:
    from edgeinfer.core.memory_plan import MemoryPlan
    from edgeinfer.gguf.reader import GGUFFile

SHOWN_ELEMENTS = 3  # of a long array
LONG_ARRAY = 16


def inspect(
    model: options.Model,
    program: Annotated[bool, typer.Option("--program", help="print the forward pass, operation by operation, and nothing else")] = False,
    context: options.Context = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what is in a model file. Metadata, tensors and memory plan, or its program."""
    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import print_json
    from edgeinfer.engine.inputs import checked_option
    from edgeinfer.gguf.reader import GGUFFile

    checked_option("context", context, 2)
    path = resolve_model(model)
    with GGUFFile.open(path) as file:
        if program:
            from edgeinfer.model.build import build_program
            from edgeinfer.model.rewrite import fuse

            listing = str(fuse(build_program(file)))
            if as_json:
                print_json({"program": listing.splitlines()})
            else:
                print(listing, end="")
        elif as_json:
            print_json(describe(file, context))
        else:
            show(file, context)


def shown_value(value: Any) -> str:
    """A metadata value on one line: texts cut and escaped, long arrays by their length and first elements."""
    from edgeinfer.core.printable import printable

    if isinstance(value, str):
        return printable(value, limit=100)
    if isinstance(value, bool | int | float):
        return str(value)
    some = value[:SHOWN_ELEMENTS] if len(value) > LONG_ARRAY else value
    first = [printable(item, limit=30) if isinstance(item, str) else str(item) for item in some]
    return f"{len(value)} elements: {', '.join(first)}{', ...' if len(first) < len(value) else ''}"


def show(file: GGUFFile, context: int | None) -> None:
    """Print tables for people."""
    from edgeinfer.cli.console import megabytes, print_table
    from edgeinfer.core.printable import printable, printable_path

    print(f"{', '.join(printable_path(path) for path in file.paths)}: GGUF version {file.version}, alignment {file.alignment}\n")
    print_table(("key", "type", "value"), [(printable(key), str(file.value_type(key)), shown_value(file.metadata[key])) for key in file.metadata])
    print()
    tensors = file.tensors.values()
    rows = [(printable(tensor.name), " x ".join(map(str, tensor.shape)), tensor.format_name, f"{tensor.nbytes:,}") for tensor in tensors]
    print_table(("tensor", "shape", "format", "bytes"), rows)
    print()
    totals = [(total["format"], str(total["tensors"]), f"{total['elements']:,}", megabytes(total["bytes"])) for total in totals_by_format(file)]
    print_table(("format", "tensors", "elements", "size"), totals)
    print()
    plan, refusal = memory_plan(file, context)
    if plan is None:
        print(f"memory plan: none, because this model cannot be run: {refusal}")
    else:
        tokens = f"a context of {context} tokens" if context else "the default context"
        print_table((f"memory plan for {tokens}", "size"), [(label, megabytes(size)) for label, size in plan.rows()])


def memory_plan(file: GGUFFile, context: int | None) -> tuple[MemoryPlan | None, str]:
    """What running the model would take, made from the metadata alone; None and the reason when it cannot be run at all."""
    from edgeinfer.backends.base import BackendOptions
    from edgeinfer.backends.numba.backend import plan
    from edgeinfer.core.errors import EdgeInferError
    from edgeinfer.engine.engine import DEFAULT_CONTEXT
    from edgeinfer.model.dims import trained_context

    tokens = context or min(DEFAULT_CONTEXT, trained_context(file.metadata) or DEFAULT_CONTEXT)
    try:
        return plan(file, BackendOptions(context=tokens)).memory, ""
    except EdgeInferError as error:
        return None, str(error)


def totals_by_format(file: GGUFFile) -> list[dict[str, Any]]:
    """Counts for each tensor format, the largest first, and their sum."""
    totals: dict[str, dict[str, Any]] = {}
    for tensor in file.tensors.values():
        for name in (tensor.format_name, "all"):
            total = totals.setdefault(name, {"format": name, "tensors": 0, "elements": 0, "bytes": 0})
            total["tensors"] += 1
            total["elements"] += tensor.elements
            total["bytes"] += tensor.nbytes
    return sorted(totals.values(), key=lambda total: (total["format"] == "all", -total["bytes"]))


def describe(file: GGUFFile, context: int | None) -> dict[str, Any]:
    """The same as one JSON object. Long arrays appear by their length; numbers that JSON lacks (NaN) and undecodable bytes as text."""
    from edgeinfer.core.printable import printable, printable_path

    plan, refusal = memory_plan(file, context)
    return {
        "paths": [printable_path(path) for path in file.paths],
        "version": file.version,
        "alignment": file.alignment,
        "metadata": {printable(key): {"type": str(file.value_type(key)), "value": json_value(file.metadata[key])} for key in file.metadata},
        "tensors": [
            {"name": printable(tensor.name), "shape": list(tensor.shape), "format": tensor.format_name, "bytes": tensor.nbytes}
            for tensor in file.tensors.values()
        ],
        "totals": totals_by_format(file),
        "memory_plan": dict(plan.rows()) if plan else None,
        "refusal": refusal or None,
    }


def _is_unicode(text: str) -> bool:
    """Whether a text of the file was valid UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def json_value(value: Any) -> Any:
    """A metadata value for JSON."""
    import math

    from edgeinfer.core.printable import printable

    if isinstance(value, str):
        return value if _is_unicode(value) else printable(value, limit=len(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bool | int):
        return value
    if len(value) > LONG_ARRAY:
        return {"elements": len(value)}
    return [json_value(item.item() if hasattr(item, "item") else item) for item in value]

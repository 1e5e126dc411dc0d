"""`edgeinfer export`: a model as an ONNX graph, for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeinfer.cli import options


def export(
    model: options.Model,
    output: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="the graph; its weights go to OUT.onnx.data beside it")],
    dialect: Annotated[str, typer.Option("--dialect", help="cpu (ONNX Runtime's own operators), opset21 or opset23 (standard ones)")] = "cpu",
    context: Annotated[int | None, typer.Option("--context", help="positions that the graph can turn; default: as trained, at most 4096")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a model as ONNX. Weights stay quantized; a genai_config.json for onnxruntime-genai is written beside the graph."""
    from edgeinfer.backends.onnx.export import export_model
    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import megabytes, note, print_json, print_table
    from edgeinfer.core.errors import InvalidRequestError
    from edgeinfer.core.printable import printable_path

    if context is not None and context < 1:
        raise InvalidRequestError(f"--context is {context}; it must be a whole number of at least 1")
    report = export_model(Path(resolve_model(model)), output, dialect, context)
    for warning in report.warnings:
        note(f"edgeinfer: warning: {warning}")
    if as_json:
        print_json(
            {
                "dialect": report.dialect,
                "context": report.context,
                "nodes": report.nodes,
                "graph_bytes": report.graph_bytes,
                "weight_bytes": report.weight_bytes,
                "files": [str(file) for file in report.files],
                "warnings": list(report.warnings),
            }
        )
        return
    rows = [("dialect", report.dialect), ("context", f"{report.context} positions"), ("nodes", str(report.nodes))]
    rows += [("graph", megabytes(report.graph_bytes)), ("weights", megabytes(report.weight_bytes)), ("checked by", "onnx.checker")]
    rows += [("written", printable_path(file)) for file in report.files]
    print_table(("", ""), rows, with_header=False)

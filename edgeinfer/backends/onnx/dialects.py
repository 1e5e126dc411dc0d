"""The dialects by name, and a program in one of them. Called by the backend and by the exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from edgeinfer.backends.onnx.cpu_dialect import CpuEmitter
from edgeinfer.backends.onnx.emitter import Emitter, Interface
from edgeinfer.backends.onnx.graph import Graph, Sink
from edgeinfer.backends.onnx.standard_dialects import Opset23Emitter, StandardEmitter
from edgeinfer.core.errors import UnknownChoiceError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model.program import Program

DIALECTS: Mapping[str, type[Emitter]] = MappingProxyType({emitter.dialect: emitter for emitter in (CpuEmitter, StandardEmitter, Opset23Emitter)})


@dataclass(frozen=True)
class Exported:
    """A ModelProto whose large weights are where the sink put them, and what a user should know about it."""

    model: Any
    warnings: tuple[str, ...]


def emitter_of(dialect: str) -> type[Emitter]:
    """Raises UnknownChoiceError for a dialect that does not exist."""
    if dialect not in DIALECTS:
        raise UnknownChoiceError(f"there is no ONNX dialect named {dialect!r}; choose one of {', '.join(DIALECTS)}")
    return DIALECTS[dialect]


def build_graph(
    program: Program, file: GGUFFile, dialect: str, sink: Sink, context: int, interface: Interface, exact_minima: bool = False
) -> Exported:
    """The program as a graph with rope tables for `context` positions. `exact_minima`: no minimum is rounded to a zero point of 8 bits, which is for ONNX
    Runtime's CPU provider.

    Raises UnknownChoiceError, UnsupportedModelError for what has no form in the dialect, and ModelFileError for weights that are not finite.
    """
    emitter = emitter_of(dialect)(program, file, Graph(sink), context, interface, exact_minima)
    return Exported(emitter.emit(), tuple(emitter.warnings))

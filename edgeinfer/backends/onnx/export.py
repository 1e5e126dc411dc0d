"""Writing a model to disk as ONNX: the graph, its weights beside it, and the configuration that onnxruntime-genai wants. Called by `edgeinfer export`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.backends.onnx.dialects import build_graph, emitter_of
from edgeinfer.backends.onnx.emitter import Interface
from edgeinfer.backends.onnx.graph import FileSink
from edgeinfer.backends.onnx.library import require_onnx
from edgeinfer.core.errors import EdgeInferError, InvalidRequestError
from edgeinfer.core.outputs import require_writable_file
from edgeinfer.core.printable import printable_path, utf8_path
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program, fuse
from edgeinfer.model.dims import trained_context
from edgeinfer.model.program import Program

DEFAULT_CONTEXT = 4096
GENAI_CONFIG = "genai_config.json"


@dataclass(frozen=True)
class ExportReport:
    """What was written. Bytes of the graph and of the weights; `files` in the order in which they were written."""

    dialect: str
    context: int
    nodes: int
    graph_bytes: int
    weight_bytes: int
    files: tuple[Path, ...]
    warnings: tuple[str, ...]


def export_model(model: Path, output: Path, dialect: str, context: int | None = None) -> ExportReport:
    """Writes OUTPUT (the graph), OUTPUT.data (the weights) and a genai_config.json beside them, after onnx's checker has passed the graph.

    Files appear under their names when they are whole. Raises what reading the model raises, UnknownChoiceError, UnsupportedModelError,
    BackendUnavailableError without the onnx package, and InvalidRequestError for a path that cannot be written.
    """
    onnx = require_onnx()
    emitter_of(dialect)
    if output.suffix != ".onnx":
        raise InvalidRequestError(f"the output is {printable_path(output)}; its name must end with .onnx")
    try:
        utf8_output = utf8_path(output)
    except OSError:
        raise InvalidRequestError(f"the output is {printable_path(output)}, which is not valid UTF-8; ONNX files hold names in UTF-8, choose another") from None
    data, config = output.with_name(output.name + ".data"), output.with_name(GENAI_CONFIG)
    for path in (output, data, config):
        require_writable_file(path, "the export")
    with GGUFFile.open(model) as file:
        file.refuse_unsupported_formats()
        program = fuse(build_program(file))
        tokens = context or min(DEFAULT_CONTEXT, trained_context(file.metadata) or DEFAULT_CONTEXT)
        partial = data.with_name(f"{data.name}.partial-{os.getpid()}")
        try:
            with open(partial, "wb") as stream:
                exported = build_graph(program, file, dialect, FileSink(stream, utf8_path(data.name)), tokens, Interface.FILE)
            os.replace(partial, data)
        finally:
            partial.unlink(missing_ok=True)
        output.write_bytes(exported.model.SerializeToString())
        settings = _genai_config(program, file, dialect, tokens, utf8_path(output.name))
    config.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    try:
        onnx.checker.check_model(utf8_output, full_check=False)
    except onnx.checker.ValidationError as error:
        raise EdgeInferError(f"onnx's checker refuses the graph: {error}; this is a defect of edgeinfer, please report it") from error
    sizes = output.stat().st_size, data.stat().st_size
    return ExportReport(dialect, tokens, len(exported.model.graph.node), *sizes, (data, output, config), exported.warnings)


def _genai_config(program: Program, file: GGUFFile, dialect: str, context: int, name: str) -> dict[str, Any]:
    """What onnxruntime-genai reads: names and shapes of a decoder, and how to search."""
    attention = next(operation for operation in program.operations if operation.kind == "attention")
    store = program.stores[0]
    inputs = {
        "input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }  # fmt: skip
    if dialect != "cpu":
        inputs["position_ids"] = "position_ids"
    ids = {key: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))}
    end = ids["eos"] if ids["eos"] is not None else 0
    return {
        "model": {
            "bos_token_id": ids["bos"] if ids["bos"] is not None else end,
            "eos_token_id": end,
            "pad_token_id": ids["pad"] if ids["pad"] is not None else end,
            "context_length": context,
            "vocab_size": program.vocabulary,
            "type": "decoder",
            "decoder": {
                "filename": name,
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "head_size": store.key_size,
                "hidden_size": program.width,
                "num_attention_heads": attention.attributes["heads"],
                "num_hidden_layers": len(program.stores),
                "num_key_value_heads": store.kv_heads,
                "inputs": inputs,
                "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
            },
        },
        "search": {
            "do_sample": False, "max_length": context, "min_length": 0, "num_beams": 1, "num_return_sequences": 1,
            "past_present_share_buffer": dialect == "cpu",
        },
    }  # fmt: skip

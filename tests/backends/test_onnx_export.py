"""Exported graphs against the float64 reference: every dialect, architecture and format, in one piece and in chunks; and what cannot be exported."""

from __future__ import annotations

import dataclasses
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.onnx import export, library
from edgeinfer.backends.onnx.cpu_dialect import CpuEmitter
from edgeinfer.backends.onnx.dialects import DIALECTS, build_graph
from edgeinfer.backends.onnx.emitter import Interface
from edgeinfer.backends.onnx.export import export_model
from edgeinfer.backends.onnx.graph import FileSink
from edgeinfer.core.errors import BackendUnavailableError, InvalidRequestError, ModelFileError, UnknownChoiceError, UnsupportedModelError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program, build_program, fuse
from edgeinfer.model.reference import reference_logits
from kernels_numba.formats import all_formats
from tests.backends.onnx_graphs import ExportedModel, distance, reference
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

pytestmark = pytest.mark.onnx

MODELS: dict[str, Callable[..., Path]] = {"llama": tiny_llama, "qwen2": tiny_qwen2, "gemma3": tiny_gemma3}
EXACT = 5e-6  # float32 sums against float64
ROUNDED = 0.05  # activations of 8 bits, in models of two layers with random weights
WIDE: dict[str, Any] = {"width": 256, "feed_forward": 256, "head_size": 32, "heads": 8}  # a row of every format is a whole number of blocks


def _mixed(name: str) -> str:
    """Formats that can and that cannot be held together."""
    parts = {"attn_q": "Q5_0", "attn_k": "Q5_0", "attn_v": "Q8_0", "ffn_gate": "Q4_1", "ffn_up": "Q4_1", "ffn_down": "Q5_1"}
    return next((kind for part, kind in parts.items() if part in name), "Q4_0")


def _tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(33, 280), k=count)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dialect `cpu` with float32 activations, so that only what is exported is judged."""
    monkeypatch.setattr(CpuEmitter, "accuracy_level", 0)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_architecture_in_every_dialect(model: str, dialect: str, tmp_path: Path, exact: None) -> None:
    path = MODELS[model](tmp_path / "model.gguf", weight_format=_mixed)
    report = export_model(path, tmp_path / "out.onnx", dialect, 128)
    assert report.dialect == dialect and report.context == 128 and report.nodes > 20 and report.weight_bytes > 10_000
    tokens = _tokens(60)
    exported = ExportedModel(tmp_path / "out.onnx")
    expected = reference(path, tokens)
    assert distance(exported.logits(tokens), expected) < EXACT
    assert distance(exported.logits(tokens, chunk=7), expected) < EXACT
    assert distance(exported.logits(tokens, chunk=1), expected) < EXACT


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("format_name", all_formats())
def test_every_format_in_every_dialect(format_name: str, dialect: str, tmp_path: Path, exact: None) -> None:
    path = tiny_llama(tmp_path / "model.gguf", weight_format=format_name, biases=True, tied=True, **WIDE)
    export_model(path, tmp_path / "out.onnx", dialect, 64)
    tokens = _tokens(20)
    assert distance(ExportedModel(tmp_path / "out.onnx").logits(tokens), reference(path, tokens)) < EXACT


@pytest.mark.parametrize("dialect", DIALECTS)
def test_activations_of_eight_bits_are_near(dialect: str, tmp_path: Path) -> None:
    path = tiny_qwen2(tmp_path / "model.gguf", weight_format="Q4_K", **WIDE)
    export_model(path, tmp_path / "out.onnx", dialect, 64)
    tokens = _tokens(40)
    found, expected = ExportedModel(tmp_path / "out.onnx", exact=False).logits(tokens), reference(path, tokens)
    assert distance(found, expected) < ROUNDED
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.8


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_no_architecture_here_asks_for_yet(dialect: str, tmp_path: Path) -> None:
    """A rope that leaves part of a head alone, capped scores, other activations: programs that were changed by hand."""
    changes: list[dict[str, dict[str, Any]]] = [{"rope_table": {"pairs": 8}, "rope": {"pairs": 8}}, {"attention": {"softcap": 2.0}}]
    changes += [{"activation": {"function": function}} for function in ("gelu_erf", "gelu_tanh", "relu_squared")]
    tokens = _tokens(30)
    for make in (tiny_llama, tiny_qwen2):
        with GGUFFile.open(make(tmp_path / "model.gguf", head_size=32)) as file:
            for change in changes:
                program = _changed(fuse(build_program(file)), change)
                with open(tmp_path / "out.onnx.data", "wb") as stream:
                    exported = build_graph(program, file, dialect, FileSink(stream, "out.onnx.data"), 64, Interface.FILE)
                (tmp_path / "out.onnx").write_bytes(exported.model.SerializeToString())
                expected = reference_logits(file, tokens, program=program)
                assert distance(ExportedModel(tmp_path / "out.onnx").logits(tokens, chunk=11), expected) < EXACT, change


def _changed(program: Program, attributes: dict[str, dict[str, Any]]) -> Program:
    operations = tuple(
        dataclasses.replace(operation, attributes={**operation.attributes, **attributes.get(operation.kind, {})}) for operation in program.operations
    )
    return dataclasses.replace(program, operations=operations)


def test_what_has_no_form_is_refused_by_name(tmp_path: Path) -> None:
    with GGUFFile.open(tiny_llama(tmp_path / "model.gguf")) as file:
        program = fuse(build_program(file))
        for changed, words in (
            (_changed(program, {"activation": {"function": "swish_of_tomorrow"}}), "swish_of_tomorrow"),
            (dataclasses.replace(program, stores=tuple(dataclasses.replace(store, value_size=8) for store in program.stores)), "values of 8"),
            (_changed(program, {"rope_table": {"pairs": 4}, "rope": {"pairs": 4}}), "a rope of 4 pairs"),
        ):
            with pytest.raises(UnsupportedModelError, match=f"llama.*{words}"):
                build_graph(changed, file, "cpu", FileSink(io.BytesIO(), "x"), 64, Interface.FILE)
        unknown = dataclasses.replace(program.operations[3])
        object.__setattr__(unknown, "kind", "telepathy")
        with pytest.raises(UnsupportedModelError, match="telepathy"):
            build_graph(dataclasses.replace(program, operations=(unknown,)), file, "opset21", FileSink(io.BytesIO(), "x"), 64, Interface.FILE)


def test_a_model_of_experts_does_not_even_become_a_program(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", metadata={"llama.expert_count": 8, "llama.expert_used_count": 2})
    with pytest.raises((UnsupportedModelError, ModelFileError), match="expert"):
        export_model(path, tmp_path / "out.onnx", "cpu")


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "model.gguf")
    with pytest.raises(UnknownChoiceError, match=r"'tpu'.*cpu, opset21, opset23"):
        export_model(path, tmp_path / "out.onnx", "tpu")
    with pytest.raises(InvalidRequestError, match=r"\.onnx"):
        export_model(path, tmp_path / "out.bin", "cpu")
    with pytest.raises(InvalidRequestError, match="cannot be written to .*No such file"):
        export_model(path, tmp_path / "nowhere" / "out.onnx", "cpu")
    broken = tiny_llama(tmp_path / "broken.gguf", tensors={"output_norm.weight": np.full(64, np.nan, np.float32)})
    with pytest.raises(ModelFileError, match=r"output_norm\.weight"):
        export_model(broken, tmp_path / "out.onnx", "cpu")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["broken.gguf", "model.gguf"]  # nothing half done
    monkeypatch.setattr(library, "import_problem", lambda module: "not installed")
    with pytest.raises(BackendUnavailableError, match=r"pip install 'edgeinfer\[onnx\]'"):
        export_model(path, tmp_path / "out.onnx", "cpu")


def test_the_configuration_for_the_generation_library(tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "model.gguf")
    report = export_model(path, tmp_path / "out.onnx", "cpu", 128)
    assert [file.name for file in report.files] == ["out.onnx.data", "out.onnx", export.GENAI_CONFIG]
    model = json.loads((tmp_path / export.GENAI_CONFIG).read_text())["model"]
    assert model["context_length"] == 128 and model["vocab_size"] > 280
    decoder = model["decoder"]
    assert (decoder["num_hidden_layers"], decoder["num_attention_heads"], decoder["num_key_value_heads"], decoder["head_size"]) == (6, 2, 1, 32)
    assert decoder["filename"] == "out.onnx"
    import onnx

    graph = onnx.load(str(tmp_path / "out.onnx"), load_external_data=False).graph
    names = {entry.name for entry in (*graph.input, *graph.output)}
    wanted = [*decoder["inputs"].values(), *decoder["outputs"].values()]
    assert {name.replace("%d", str(layer)) for name in wanted for layer in range(6)} == names


def test_warnings_say_how_weights_are_held(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", weight_format=lambda name: "Q5_0" if "ffn" in name else "F16" if "attn_q" in name else "Q8_0")
    warnings = export_model(path, tmp_path / "out.onnx", "cpu", 64).warnings
    assert sorted(warning.split(":")[0] for warning in warnings) == ["2 matrices of F16", "6 matrices of Q5_0"]
    assert "5.5" in next(warning for warning in warnings if "Q5_0" in warning)


def test_a_tied_table_is_stored_once_for_the_cpu(tmp_path: Path) -> None:
    sizes = [
        export_model(tiny_llama(tmp_path / "model.gguf", weight_format="Q8_0", tied=tied), tmp_path / "out.onnx", "cpu", 64).weight_bytes
        for tied in (True, False)
    ]
    assert sizes[1] - sizes[0] > 280 * 64

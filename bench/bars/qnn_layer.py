"""One decoder layer on QNN's HTP simulator, operator by operator; run by bar 23 with the Python that has onnxruntime-qnn.

    python bench/bars/qnn_layer.py DIALECT FORMAT

Prints a JSON object a line: for every different operator of the layer, as a graph of its own with fixed shapes, who ran it and its error against NumPy;
then the whole layer with norm and output matrix, with fixed shapes, and the error of its logits. NumPy is onnx's reference evaluator, and for ONNX Runtime's
own operators the few lines below; a value feeds the next operator as NumPy made it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_qnn
from onnx.reference import ReferenceEvaluator

from edgeinfer.backends.onnx.dialects import build_graph
from edgeinfer.backends.onnx.emitter import Interface
from edgeinfer.backends.onnx.graph import FileSink
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program, fuse
from tests.support.tiny_models import tiny_llama

QNN = "QNNExecutionProvider"
SIMULATOR = {"backend_type": "htp", "soc_model": "60", "htp_arch": "75"}
ROWS, CACHED = 8, 32
SIZES = {"batch": 1, "rows": ROWS, "outputs": ROWS, "cached": CACHED, "cache": CACHED + ROWS}
Values = dict[str, Any]


def main(dialect: str, weight_format: str) -> None:
    onnxruntime.register_execution_provider_library(QNN, onnxruntime_qnn.get_library_path())
    with tempfile.TemporaryDirectory() as folder:
        model = one_layer(Path(folder), dialect, weight_format)
        random = np.random.default_rng(0)
        values = {entry.name: given(entry, random) for entry in model.graph.input}
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        done = set()
        for node in model.graph.node:
            single = fixed(model, node, values, constants)
            results = in_numpy(node, single, values, constants)
            values.update(results)
            shapes = described(node, values, constants)
            if (node.op_type, shapes) in done or all(array.dtype.kind in "ib" for array in results.values()):
                continue  # the same again, or bookkeeping with whole numbers
            done.add((node.op_type, shapes))
            print(json.dumps({"operator": node.op_type, "shapes": shapes, **tried(single, values, results)}), flush=True)
        for entry in [*model.graph.input, *model.graph.output]:
            for size, length in zip(entry.type.tensor_type.shape.dim, values[entry.name].shape):
                size.dim_value = length
        found = tried(model, values, {"logits": values["logits"]})
        print(json.dumps({"operator": "whole", "shapes": f"{len(model.graph.node)} nodes", **found}), flush=True)


def one_layer(folder: Path, dialect: str, weight_format: str) -> Any:
    """A llama with one layer of SmolLM2's shapes, as our backend runs it."""
    path = tiny_llama(folder / "model.gguf", layers=1, width=576, heads=9, kv_heads=3, feed_forward=1536, weight_format=weight_format)
    with GGUFFile.open(path) as file, open(folder / "weights", "wb") as stream:
        exported = build_graph(fuse(build_program(file)), file, dialect, FileSink(stream, "weights"), CACHED + ROWS, Interface.STEP)
    (folder / "model.onnx").write_bytes(exported.model.SerializeToString())
    return onnx.load(str(folder / "model.onnx"))


def given(entry: Any, random: np.random.Generator) -> Any:
    """An input of the graph: rows behind a cache that is full."""
    fixed_inputs = {
        "cached_lengths": np.array([CACHED], np.int64), "output_rows": np.arange(ROWS), "seqlens_k": np.array([CACHED + ROWS - 1], np.int32),
        "total_sequence_length": np.array(CACHED + ROWS, np.int32),
    }  # fmt: skip
    if entry.name in fixed_inputs:
        return fixed_inputs[entry.name]
    shape = [size.dim_value or SIZES[size.dim_param] for size in entry.type.tensor_type.shape.dim]
    return random.standard_normal(shape).astype(np.float32)


def fixed(model: Any, node: Any, values: Values, constants: Values) -> Any:
    """A graph of one node, with the shapes that its inputs have."""
    helper = onnx.helper
    names = [name for name in dict.fromkeys(node.input) if name]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[name].dtype), values[name].shape) for name in names if name in values
    ]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs, [constants[name] for name in names if name in constants])
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def in_numpy(node: Any, single: Any, values: Values, constants: Values) -> Values:
    """The outputs of a node by name; the types and shapes that they have are noted in its graph."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    inputs = [values[name] if name in values else onnx.numpy_helper.to_array(constants[name]) if name else None for name in node.input]
    own = {
        "MatMulNBits": matmul_nbits, "QuickGelu": quick_gelu, "SkipSimplifiedLayerNormalization": skip_norm, "GroupQueryAttention": attention,
        "FusedMatMul": lambda given, x, y: [x @ (y.T if given.get("transB") else y)],
    }  # fmt: skip
    if node.op_type in own:
        results = own[node.op_type](attributes, *inputs)
    else:
        results = ReferenceEvaluator(single).run(None, {entry.name: values[entry.name] for entry in single.graph.input})
    arrays = dict(zip((name for name in node.output if name), (np.asarray(array) for array in results)))
    for entry in single.graph.output:
        array = arrays[entry.name]
        entry.CopyFrom(onnx.helper.make_tensor_value_info(entry.name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    return arrays


def matmul_nbits(given: Values, x: Any, codes: Any, scales: Any, zero_points: Any = None, order: Any = None, bias: Any = None) -> list[Any]:
    """Zero points are whole numbers, packed as the codes are, or float32."""
    rows, blocks = codes.shape[:2]

    def unpacked(packed: Any) -> Any:
        return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1) if given["bits"] == 4 else packed

    zeros: Any = 1 << (given["bits"] - 1)
    if zero_points is not None:
        whole = zero_points.reshape(rows, -1)
        zeros = (whole if whole.dtype == np.float32 else unpacked(whole)[:, :blocks]).reshape(rows, blocks, 1).astype(np.float64)
    weights = (unpacked(codes).astype(np.float64) - zeros) * scales.reshape(rows, blocks, 1)
    assert order is None
    product = x @ weights.reshape(given["N"], -1)[:, : given["K"]].T
    return [(product if bias is None else product + bias).astype(np.float32)]


def quick_gelu(given: Values, x: Any) -> list[Any]:
    return [x / (1 + np.exp(-given["alpha"] * x))]


def skip_norm(given: Values, x: Any, skip: Any, scale: Any) -> list[Any]:
    total = x + skip
    mean = (total.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)
    return [(total / np.sqrt(mean + given["epsilon"]) * scale).astype(np.float32), total]


def attention(given: Values, packed: Any, *rest: Any) -> list[Any]:
    """Of packed queries, keys and values behind a cache, turned by neighbouring pairs."""
    past_key, past_value, cosines, sines = rest[2], rest[3], rest[6], rest[7]
    heads, kv_heads, size = given["num_heads"], given["kv_num_heads"], past_key.shape[3]
    parts = packed.reshape(1, ROWS, -1, size).transpose(0, 2, 1, 3).astype(np.float64)

    def turned(x: Any) -> Any:
        first, second = x[..., 0::2], x[..., 1::2]
        cosine, sine = cosines[CACHED : CACHED + ROWS], sines[CACHED : CACHED + ROWS]
        return np.stack([first * cosine - second * sine, first * sine + second * cosine], axis=-1).reshape(x.shape)

    assert given["do_rotary"] and given["rotary_interleaved"]
    queries, keys, values = turned(parts[:, :heads]), turned(parts[:, heads : heads + kv_heads]), parts[:, heads + kv_heads :]
    present_key, present_value = past_key.copy(), past_value.copy()
    present_key[:, :, CACHED : CACHED + ROWS], present_value[:, :, CACHED : CACHED + ROWS] = keys, values
    repeated = heads // kv_heads
    scores = queries @ np.repeat(present_key, repeated, axis=1).transpose(0, 1, 3, 2) * given["scale"]
    scores = np.where(np.arange(CACHED + ROWS) <= CACHED + np.arange(ROWS)[:, np.newaxis], scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = shares / shares.sum(axis=-1, keepdims=True) @ np.repeat(present_value, repeated, axis=1)
    return [mixed.transpose(0, 2, 1, 3).reshape(1, ROWS, -1).astype(np.float32), present_key, present_value]


def described(node: Any, values: Values, constants: Values) -> str:
    """The shapes of its inputs, constants in brackets."""
    shapes = []
    for name in filter(None, node.input):
        if name in values:
            shapes.append("x".join(map(str, values[name].shape)) or "scalar")
        else:
            tensor = constants[name]
            shapes.append(f"[{'x'.join(map(str, tensor.dims)) or 'scalar'} {onnx.TensorProto.DataType.Name(tensor.data_type).lower()}]")
    return ", ".join(shapes)


def tried(model: Any, values: Values, expected: Values) -> Values:
    """Who ran it, and the error of the output that is furthest off, relative to NumPy's result or, where that is what two nearly equal inputs leave, to
    the inputs; or why it was refused."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_provider_for_devices([device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN][:1], SIMULATOR)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        placed: Counter[str] = Counter()
        left: Counter[str] = Counter()
        for part in session.get_provider_graph_assignment_info():
            placed[part.ep_name] += len(part.get_nodes())
            if part.ep_name != QNN:
                left.update(node.op_type for node in part.get_nodes())
        results = session.run(list(expected), {entry.name: values[entry.name] for entry in model.graph.input})
    except Exception as error:
        return {"refused": " ".join(str(error).split())[:160]}
    least = 1e-30
    if model.graph.node[0].op_type == "Sub" and len(model.graph.node) == 1:
        least = max(float(np.linalg.norm(values[entry.name])) for entry in model.graph.input)
    errors = [float(np.linalg.norm(found - array.astype(np.float64)) / max(np.linalg.norm(array), least)) for found, array in zip(results, expected.values())]
    return {"qnn": placed[QNN], "nodes": sum(placed.values()), "left": dict(left), "error": max(errors)}


if __name__ == "__main__":
    main(*sys.argv[1:])

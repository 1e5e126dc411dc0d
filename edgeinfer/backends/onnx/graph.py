"""Collecting an ONNX graph: nodes, small constants inside the model, large weights beside it. Called by the emitters; knows nothing of models.

Where weights go is the sink's business: `MemorySink` keeps the arrays for a session that is made at once, `FileSink` writes them to a file next to the
model as they come, so that a large model never is in memory as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 4096  # of a weight in the file: readers map it page by page

Array = NDArray[Any]


@dataclass(frozen=True)
class Place:
    """Where the bytes of a weight are: external data as ONNX names it."""

    location: str
    offset: int
    length: int


class Sink(Protocol):
    """Takes the bytes of large weights."""

    def store(self, name: str, array: Array) -> Place: ...


class MemorySink:
    """Keeps the arrays by name, without a copy."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def store(self, name: str, array: Array) -> Place:
        self.arrays[name] = array
        return Place("in memory", 0, array.nbytes)


class FileSink:
    """Appends to an open file; `location` is its name relative to the model's file."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        self._file = file
        self._location = location
        self._end = 0

    def store(self, name: str, array: Array) -> Place:
        padding = -self._end % _ALIGNMENT
        self._file.write(b"\0" * padding)
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        place = Place(self._location, self._end + padding, array.nbytes)
        self._end = place.offset + place.length
        return place


class Graph:
    """Nodes in the order in which they run. Names of values are strings; "" stands for an input that is left out."""

    def __init__(self, sink: Sink) -> None:
        import onnx

        self._onnx = onnx
        self._sink = sink
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._initializers: list[Any] = []
        self._places: dict[str, Place] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._numbers = itertools.count()

    def input(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        """Declares an input of the graph: `kind` is a NumPy name, a text in `shape` a size that varies."""
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, self._type(kind), list(shape)))
        return name

    def output(self, name: str, kind: str, shape: Sequence[int | str]) -> None:
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, self._type(kind), list(shape)))

    def add(self, kind: str, *inputs: str, domain: str = "", name: str | None = None, **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        return self.add_many(kind, inputs, [name or self._fresh(kind)], domain=domain, **attributes)[0]

    def add_many(self, kind: str, inputs: Sequence[str], outputs: Sequence[str] | int, *, domain: str = "", **attributes: Any) -> list[str]:
        """A node with several outputs: their names, or how many."""
        names = [self._fresh(kind) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        given = {key: value for key, value in attributes.items() if value is not None}
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, name=f"{kind}.{len(self._nodes)}", domain=domain, **given))
        return names

    def rename(self, name: str, to: str) -> None:
        """Gives a value another name, wherever it stands."""
        for node in self._nodes:
            node.input[:] = [to if other == name else other for other in node.input]
            node.output[:] = [to if other == name else other for other in node.output]

    def constant(self, value: Any, kind: str) -> str:
        """A small constant; the same one is stored once."""
        array = np.asarray(value, dtype=kind)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._fresh("constant")
            self._initializers.append(self._onnx.numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def has_weight(self, name: str) -> bool:
        return name in self._places

    def weight(self, name: str, array: Array, kind: str | None = None, shape: Sequence[int] | None = None) -> str:
        """A large constant. `kind` ("int4") and `shape` say what its bytes mean where the array's own type and shape do not."""
        self._places[name] = self._sink.store(name, array)
        self._initializers.append(self._external(name, kind or str(array.dtype), shape or array.shape))
        return name

    def same_weight(self, name: str, of: str, kind: str, shape: Sequence[int]) -> str:
        """A second name for the bytes of a weight, with another shape. Only where the sink writes a file."""
        self._places[name] = self._places[of]
        self._initializers.append(self._external(name, kind, shape))
        return name

    def model(self, name: str, opset: int, domains: Sequence[str], ir_version: int, metadata: dict[str, str]) -> Any:
        """The whole as a ModelProto."""
        helper = self._onnx.helper
        imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(domain, 1) for domain in domains]
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._initializers)
        model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version, producer_name="edgeinfer")
        helper.set_model_props(model, metadata)
        return model

    def _external(self, name: str, kind: str, shape: Sequence[int]) -> Any:
        place = self._places[name]
        tensor = self._onnx.TensorProto(name=name, data_type=self._type(kind), dims=shape, data_location=self._onnx.TensorProto.EXTERNAL)
        for key, value in (("location", place.location), ("offset", place.offset), ("length", place.length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def _type(self, kind: str) -> int:
        return int(self._onnx.TensorProto.DataType.Value({"float32": "FLOAT"}.get(kind, kind.upper())))

    def _fresh(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"

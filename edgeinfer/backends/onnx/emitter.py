"""What the ONNX dialects share: reading a program operation by operation and naming values; plain operations that every dialect writes the same way.

An activation is float32[batch, rows, width]. A dialect is a subclass that fills in the operations for which targets differ. Two interfaces: `STEP` is
what our own backend runs (embedded rows in, logits and hidden states of chosen rows out), `FILE` what other runtimes expect of a decoder (token ids and
a mask in, logits of every position out).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.numba.frequencies import rope_frequencies
from edgeinfer.backends.onnx.graph import Graph
from edgeinfer.backends.onnx.matrices import HeldMatrix, MatrixForm, held_matrix, is_exact, matrix_form
from edgeinfer.core.errors import ModelFileError, UnsupportedModelError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model.program import CacheStore, Operation, Program, Value, Weight
from kernels_numba.formats import format_by_name


class Interface(Enum):
    """Who runs the graph."""

    STEP = "step"
    FILE = "file"


class Emitter:
    """Writes one program into a graph. `context` is the number of positions that rope tables hold."""

    dialect: ClassVar[str]
    opset: ClassVar[int]
    ir_version: ClassVar[int]
    domains: ClassVar[tuple[str, ...]] = ()

    def __init__(self, program: Program, file: GGUFFile, graph: Graph, context: int, interface: Interface, exact_minima: bool = False) -> None:
        self.program = program
        self.exact_minima = exact_minima
        self.graph = graph
        self.context = context
        self.interface = interface
        self.warnings: list[str] = []
        self._file = file
        self._names: dict[Value, str] = {}
        self._deferred: dict[Value, Callable[[], str]] = {}
        self._block_sums: dict[tuple[str, int], str] = {}
        self._uses: dict[Value, int] = {program.logits: 1}
        for operation in program.operations:
            for value in operation.inputs:
                self._uses[value] = self._uses.get(value, 0) + 1

    def emit(self) -> Any:
        """The ModelProto. Raises UnsupportedModelError for what has no form in the dialect, by name."""
        emitters: dict[str, Callable[[Operation], None]] = {
            "embedding": self._embedding, "rope_table": self._rope_table, "rms_norm": self._rms_norm, "linear": self._linear, "rope": self._rope,
            "attention": self._attention, "activation": self._activation, "add": self._add, "scale": self._scale, "softcap": self._softcap,
            "select_outputs": self._select_outputs,
        }  # fmt: skip
        self._declare_inputs()
        for operation in self.program.operations:
            if operation.kind not in emitters:
                self._refuse(f"the operation {operation.kind!r}")
            emitters[operation.kind](operation)
        self.graph.rename(self._name(self.program.logits), "logits")
        outputs: list[int | str] = [1, "outputs"] if self.interface is Interface.STEP else ["batch", "rows"]
        self.graph.output("logits", "float32", [*outputs, self.program.vocabulary])
        if self.interface is Interface.STEP:
            self.graph.rename(self._name(self.program.hidden), "hidden")
            self.graph.output("hidden", "float32", [*outputs, self.program.width])
        self._say_how_weights_are_held()
        metadata = {"edgeinfer.dialect": self.dialect, "edgeinfer.architecture": self.program.architecture, "edgeinfer.context": str(self.context)}
        return self.graph.model(self.program.architecture, self.opset, self.domains, self.ir_version, metadata)

    # -- what differs between dialects

    def _declare_inputs(self) -> None:
        raise NotImplementedError

    def _rms_norm(self, operation: Operation) -> None:
        raise NotImplementedError

    def _table(self, table: Weight) -> str:
        """Rows of an embedding table for the token ids of the graph."""
        raise NotImplementedError

    def _linear(self, operation: Operation) -> None:
        raise NotImplementedError

    def _rope(self, operation: Operation) -> None:
        raise NotImplementedError

    def _attention(self, operation: Operation) -> None:
        raise NotImplementedError

    # -- what does not

    def _embedding(self, operation: Operation) -> None:
        if self.interface is Interface.STEP:
            rows = self.graph.input("embedded", "float32", ["batch", "rows", self.program.width])
        else:
            rows = self._table(operation.weights[0])
        scale = float(number(operation.attributes["scale"]))
        self._names[operation.outputs[0]] = rows if scale == 1.0 else self._times(rows, scale)

    def _rope_table(self, operation: Operation) -> None:
        """Cosines and sines of all positions as two weights float32[context, pairs], each rounded once from float64."""
        attributes, value = operation.attributes, operation.outputs[0]
        factors = self._decoded(operation.weights[0]) if attributes["frequency_factors"] is not None else None
        frequencies = rope_frequencies(number(attributes["base"]), whole(attributes["pairs"]), number(attributes["linear_factor"]), factors)
        angles = np.arange(self.context, dtype=np.float64)[:, np.newaxis] * frequencies
        self.graph.weight(f"{value.name}.cos", np.cos(angles).astype(np.float32))
        self.graph.weight(f"{value.name}.sin", np.sin(angles).astype(np.float32))
        self._names[value] = value.name

    def _activation(self, operation: Operation) -> None:
        function, output = str(operation.attributes["function"]), operation.outputs[0]
        activated = self._activated(function, self._name(operation.inputs[0]))
        if len(operation.inputs) > 1:
            activated = self.graph.add("Mul", activated, self._name(operation.inputs[1]), name=output.name)
        self._names[output] = activated

    def _activated(self, function: str, x: str) -> str:
        """Activations from operations that every runtime has."""
        add = self.graph.add
        if function == "silu":
            return add("Mul", x, add("Sigmoid", x))
        if function == "relu_squared":
            positive = add("Relu", x)
            return add("Mul", positive, positive)
        if function == "gelu_tanh":
            cubed = add("Mul", add("Mul", x, x), x)
            inner = self._times(add("Add", x, self._times(cubed, 0.044715)), float(np.sqrt(2.0 / np.pi)))
            return add("Mul", self._times(x, 0.5), add("Add", add("Tanh", inner), self._scalar(1.0)))
        if function == "gelu_erf":
            return add("Mul", self._times(x, 0.5), add("Add", add("Erf", self._times(x, float(np.sqrt(0.5)))), self._scalar(1.0)))
        return self._refuse(f"the activation {function!r}")

    def _add(self, operation: Operation) -> None:
        self._defer_sum(operation.outputs[0], self._name(operation.inputs[1]), self._name(operation.inputs[0]))

    def _scale(self, operation: Operation) -> None:
        self._names[operation.outputs[0]] = self._times(self._name(operation.inputs[0]), number(operation.attributes["factor"]))

    def _softcap(self, operation: Operation) -> None:
        cap = number(operation.attributes["cap"])
        turned = self.graph.add("Tanh", self._times(self._name(operation.inputs[0]), 1.0 / cap))
        self._names[operation.outputs[0]] = self._times(turned, cap, operation.outputs[0].name)

    def _select_outputs(self, operation: Operation) -> None:
        source, output = self._name(operation.inputs[0]), operation.outputs[0]
        if self.interface is Interface.FILE:
            self._names[output] = source
            return
        rows = self.graph.input("output_rows", "int64", ["outputs"])
        flat = self.graph.add("Reshape", source, self._shape(1, -1, output.width))
        self._names[output] = self.graph.add("Gather", flat, rows, name=output.name, axis=1)

    # -- names and small things

    def _name(self, value: Value) -> str:
        """The ONNX name of a value; what was put off until somebody asks is written now."""
        if value in self._deferred:
            self._names[value] = self._deferred.pop(value)()
        return self._names[value]

    def _defer_sum(self, output: Value, change: str, residual: str) -> None:
        """`output` = change + residual, when somebody asks for it."""
        self._deferred[output] = lambda: self.graph.add("Add", change, residual, name=output.name)

    def _times(self, name: str, factor: float, output: str | None = None) -> str:
        return self.graph.add("Mul", name, self._scalar(factor), name=output)

    def _scalar(self, value: float) -> str:
        return self.graph.constant(value, "float32")

    def _sums_of_blocks(self, source: str, columns: int, block: int) -> str:
        """float32[batch, rows, blocks]: sums of a value over each block, made once."""
        key = (source, block)
        if key not in self._block_sums:
            parted = self.graph.add("Reshape", source, self._shape(0, 0, columns // block, block))
            self._block_sums[key] = self.graph.add("ReduceSum", parted, self.graph.constant([-1], "int64"), keepdims=0)
        return self._block_sums[key]

    def _shape(self, *sizes: int) -> str:
        """A shape for Reshape: 0 keeps a size, -1 is what is left."""
        return self.graph.constant(sizes, "int64")

    def _caches(self, store: CacheStore) -> tuple[str, str, str, str]:
        """Declares past and present keys and values of a store; their names."""
        sizes: tuple[tuple[str, int], ...] = (("key", store.key_size), ("value", store.value_size))
        past, present = self._cache_lengths()
        names = []
        for what, size in sizes:
            shape: list[int | str] = ["batch", store.kv_heads, past, size]
            names.append(self.graph.input(f"past_key_values.{store.index}.{what}", "float32", shape))
        for what, size in sizes:
            shape = ["batch", store.kv_heads, present, size]
            self.graph.output(f"present.{store.index}.{what}", "float32", shape)
            names.append(f"present.{store.index}.{what}")
        return names[0], names[1], names[2], names[3]

    def _cache_lengths(self) -> tuple[str, str]:
        return "past", "total"

    # -- weights

    def _decoded(self, weight: Weight) -> NDArray[np.float32]:
        """A norm, a bias or frequency factors as float32[width]."""
        values = format_by_name(weight.format_name).decode_rows(self._file.tensor_bytes(weight.name).reshape(1, -1))[0]
        if not np.isfinite(values).all():
            raise ModelFileError(f"tensor {weight.name} holds a value that is not finite; the file is damaged, fetch it again")
        return values

    def _vector(self, weight: Weight) -> str:
        if not self.graph.has_weight(weight.name):
            self.graph.weight(weight.name, self._decoded(weight))
        return weight.name

    def _held(self, *weights: Weight) -> HeldMatrix:
        """Quantized matrices one below the other; their pages of the file are given back."""
        result = held_matrix([(weight.format_name, self._file.tensor_blocks(weight.name)) for weight in weights], weights[0].shape[1])
        self._check_and_release(weights, result.scales, *([] if result.offsets is None else [result.offsets]))
        return result

    def _check_and_release(self, weights: tuple[Weight, ...], *scales: NDArray[np.float32]) -> None:
        """Raises ModelFileError if what was made of the weights is not finite; else their pages of the file are given back."""
        if not all(np.isfinite(values).all() for values in scales):
            names = ", ".join(weight.name for weight in weights)
            raise ModelFileError(f"tensor {names} holds a scale that is not finite; the file is damaged, fetch it again")
        for weight in weights:
            self._file.release(weight.name)

    def _floats(self, weight: Weight) -> NDArray[np.float32]:
        """A matrix that is not quantized as float32[rows, columns]: a view of the file where it is stored so."""
        stored = self._file.tensor_blocks(weight.name)
        if weight.format_name == "F32":
            return stored.view(np.float32)
        return format_by_name(weight.format_name).decode_rows(stored)

    def _say_how_weights_are_held(self) -> None:
        formats: dict[str, set[str]] = {}
        for operation in self.program.operations:
            if operation.kind == "linear":
                formats.setdefault(operation.weights[0].format_name, set()).add(operation.weights[0].name)
        for name, tensors in formats.items():
            count = f"{len(tensors)} {'matrix' if len(tensors) == 1 else 'matrices'} of {name}"
            stored = format_by_name(name)
            if not is_exact(name):
                self.warnings.append(f"{count}: ONNX has no such format; requantized to 8 bits, which changes the weights a little")
            elif stored.quantized and self._held_bits(name) * stored.block_elements > 8 * stored.block_bytes:
                before = 8 * stored.block_bytes / stored.block_elements
                same = "the values are the same" if not self._has_zero_points(matrix_form(name)) else "minima are rounded to zero points, which verify shows"
                self.warnings.append(f"{count}: held with 8 bits a weight instead of {before:g}; {same}")
            elif not stored.quantized and name != "F32":
                self.warnings.append(f"{count}: held as float32, twice the memory; the values are the same")

    def _held_bits(self, format_name: str) -> int:
        return matrix_form(format_name).bits

    def _has_zero_points(self, form: MatrixForm) -> bool:
        """Whether a minimum is held in zero points instead of exactly."""
        return False

    def _refuse(self, what: str) -> str:
        raise UnsupportedModelError(
            f"{self.program.architecture} models need {what}, which has no form in edgeinfer's ONNX dialect {self.dialect!r}; "
            "use another dialect, or the numba backend"
        )


def number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def whole(value: object) -> int:
    assert isinstance(value, int)
    return value

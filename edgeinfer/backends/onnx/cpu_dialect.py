"""The dialect `cpu`: ONNX Runtime's own operators, for its CPU provider. Quantized matrices as MatMulNBits whose activations are quantized to 8 bits
too, attention with a cache that is written in place.

A minimum is kept exact in files: it is a second, small matrix product with the sums of the input over each block. Sessions of our own hold it in zero
points of 8 bits where the model is small enough (`zero_points`).
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.onnx.emitter import Emitter, Interface, number, whole
from edgeinfer.backends.onnx.matrices import MatrixForm, matrix_form
from edgeinfer.backends.onnx.zero_points import takes_zero_points, widens, zero_point_matrix
from edgeinfer.model.program import Operation, Value, Weight
from kernels_numba.formats import format_by_name

MICROSOFT = "com.microsoft"
ROPE_PAIRS = 8
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level; anything else multiplies in float32, 8-bit weights some 60 times as slowly


class CpuEmitter(Emitter):
    """See the module. `accuracy_level` is for tests: 0 computes with float32 activations."""

    dialect = "cpu"
    opset = 23
    ir_version = 11
    domains = (MICROSOFT,)
    accuracy_level = INT8_ACTIVATIONS

    def _declare_inputs(self) -> None:
        self._turned: dict[Value, tuple[Value, Operation]] = {}
        self._packed: dict[tuple[Value, ...], str] = {}  # outputs of one product -> its name
        self._sums: dict[Value, tuple[str, str]] = {}  # value -> the summands, while the sum is put off
        self._widened = widens(self.program)
        self._last_attention = [operation for operation in self.program.operations if operation.kind == "attention"][-1]
        self._gated = {value for operation in self.program.operations if operation.kind == "activation" for value in operation.inputs}
        graph = self.graph
        if self.interface is Interface.STEP:
            self._lengths = graph.input("seqlens_k", "int32", ["batch"])
            self._total = graph.input("total_sequence_length", "int32", [])
            return
        self._ids = graph.input("input_ids", "int64", ["batch", "rows"])
        mask = graph.input("attention_mask", "int64", ["batch", "total"])
        counted = graph.add("ReduceSum", mask, graph.constant([1], "int64"), keepdims=0)
        self._lengths = graph.add("Cast", graph.add("Sub", counted, graph.constant([1], "int64")), to=6)
        size = graph.add("Gather", graph.add("Shape", mask), graph.constant(1, "int64"))
        self._total = graph.add("Cast", size, to=6)

    def _cache_lengths(self) -> tuple[str, str]:
        return ("cache", "cache") if self.interface is Interface.STEP else ("past", "total")

    # -- operations

    def _table(self, table: Weight) -> str:
        graph, columns = self.graph, table.shape[1]
        if not format_by_name(table.format_name).quantized:
            name = table.name if graph.has_weight(table.name) else graph.weight(table.name, self._floats(table))
            return graph.add("Gather", name, self._ids)
        form = matrix_form(table.format_name)
        names = self._matrix((table,))
        codes = graph.same_weight(f"{table.name}.table", names[0], "uint8", (table.shape[0], columns * form.bits // 8))
        rows = graph.add(
            "GatherBlockQuantized", codes, self._ids, names[1], domain=MICROSOFT, bits=form.bits, block_size=form.block, gather_axis=0,
            quantize_axis=1,
        )  # fmt: skip
        if not form.has_offsets:
            return rows
        offsets = graph.add("Unsqueeze", graph.add("Gather", names[2], self._ids, axis=1), graph.constant([-1], "int64"))
        blocks = graph.add("Reshape", rows, self._shape(0, 0, columns // form.block, form.block))
        # the offsets lie as [blocks, rows of the table]
        offsets = graph.add("Transpose", offsets, perm=[1, 2, 0, 3])
        return graph.add("Reshape", graph.add("Add", blocks, offsets), self._shape(0, 0, columns))

    def _rms_norm(self, operation: Operation) -> None:
        """Files have one operator for a sum and its norm, sessions of our own have two, which on 128 rows take 0.6 of its time."""
        source, output, weight = operation.inputs[0], operation.outputs[0], operation.weights[0]
        epsilon, segment = number(operation.attributes["epsilon"]), whole(operation.attributes["segment"])
        scale = self._vector(weight)
        if self.interface is Interface.FILE and source in self._sums and source in self._deferred:
            change, residual = self._sums[source]
            del self._deferred[source]
            self.graph.add_many(
                "SkipSimplifiedLayerNormalization", [change, residual, scale], [output.name, "", "", source.name], domain=MICROSOFT, epsilon=epsilon
            )
            self._names[source] = source.name
            self._names[output] = output.name
            return
        name = self._name(source)
        if segment == output.width:
            self._names[output] = self.graph.add("RMSNormalization", name, scale, name=output.name, axis=-1, epsilon=epsilon)
            return
        parted = self.graph.add("Reshape", name, self._shape(0, 0, output.width // segment, segment))
        normed = self.graph.add("RMSNormalization", parted, scale, axis=-1, epsilon=epsilon)
        self._names[output] = self.graph.add("Reshape", normed, self._shape(0, 0, output.width), name=output.name)

    def _linear(self, operation: Operation) -> None:
        if operation.outputs[0] in self._names or operation.outputs[0] in self._deferred:
            return  # made together with another product of the same input
        if not format_by_name(operation.weights[0].format_name).quantized:
            self._float_linear(operation)
            return
        members = self._members(operation)
        source = self._name(operation.inputs[0])
        matrices = tuple(member.weights[0] for member in members)
        form = matrix_form(matrices[0].format_name)
        columns, rows = matrices[0].shape[1], sum(matrix.shape[0] for matrix in matrices)
        bias = self._bias(members)
        gives_logits = self.interface is Interface.STEP and rows == self.program.vocabulary and not form.has_offsets and bias is None
        if gives_logits:
            source = self._in_two_parts(source, columns, form.block)
        if self._has_zero_points(form):
            inputs = [source, *self._zero_point_matrix(matrices), *(["", bias] if bias else [])]
            form = MatrixForm(8, form.block, False)
        else:
            names = self._matrix(matrices)
            inputs = [source, names[0], names[1], *(["", "", bias] if bias and not form.has_offsets else [])]
        product = self.graph.add(
            "MatMulNBits", *inputs, domain=MICROSOFT, K=columns, N=rows, bits=form.bits, block_size=form.block, accuracy_level=self.accuracy_level
        )
        if gives_logits:
            product = self._sum_of_two_parts(product, rows)
        if form.has_offsets:
            product = self.graph.add("Add", product, self.graph.add("MatMul", self._sums_of_blocks(source, columns, form.block), names[2]))
            product = self.graph.add("Add", product, bias) if bias else product
        self._part(members, product)

    def _in_two_parts(self, source: str, columns: int, block: int) -> str:
        """float32[2, rows, columns]: what the operator's 8 bits hold of the input of the output matrix, and the rest, as if it were computed with 16 bits.

        Few rows pass here, and reading the matrix is what takes the time. In SmolLM2-135M 43 % of the divergence from the reference came from this product.
        """
        add = self.graph.add
        blocks = add("Reshape", source, self._shape(0, 0, columns // block, block))
        largest = add("ReduceMax", add("Abs", blocks), self.graph.constant([-1], "int64"), keepdims=1)
        step = add("Max", self._times(largest, 1.0 / 127.0), self._scalar(float(np.finfo(np.float32).tiny)))
        high = add("Mul", add("Round", add("Div", blocks, step)), step)
        return add("Reshape", add("Concat", high, add("Sub", blocks, high), axis=0), self._shape(0, 0, columns))

    def _sum_of_two_parts(self, product: str, columns: int) -> str:
        """float32[2, rows, columns] -> float32[1, rows, columns], as a product with ones: ReduceSum took 0.13 ms for 49,152 columns, this a tenth."""
        flat = self.graph.add("Reshape", product, self._shape(2, -1))
        summed = self.graph.add("MatMul", self.graph.constant([[1.0, 1.0]], "float32"), flat)
        return self.graph.add("Reshape", summed, self._shape(1, -1, columns))

    def _rope(self, operation: Operation) -> None:
        self._turned[operation.outputs[0]] = (operation.inputs[0], operation)

    def _attention(self, operation: Operation) -> None:
        queries, keys, values = operation.inputs
        attributes = operation.attributes
        store = self.program.stores[whole(attributes["store"])]
        if store.key_size != store.value_size:
            self._refuse(f"attention with keys of {store.key_size} and values of {store.value_size}")
        turned = [self._turned.get(value) for value in (queries, keys)]
        rotary: dict[str, int] = {}
        tables = ["", ""]
        if turned[0] is not None and turned[1] is not None:
            first, second = turned[0][1], turned[1][1]
            if first.inputs[1] != second.inputs[1] or first.attributes["pairing"] != second.attributes["pairing"]:
                self._refuse("queries and keys that are turned differently")
            queries, keys = turned[0][0], turned[1][0]
            if whole(first.attributes["pairs"]) % ROPE_PAIRS or whole(second.attributes["pairs"]) % ROPE_PAIRS:
                self._refuse(f"a rope of {first.attributes['pairs']} pairs (the operator takes multiples of {ROPE_PAIRS})")
            table = self._name(first.inputs[1])
            tables = [f"{table}.cos", f"{table}.sin"]
            rotary = {"do_rotary": 1, "rotary_interleaved": int(first.attributes["pairing"] == "neighbours")}
        elif turned != [None, None]:
            self._refuse("turned queries beside keys that are not, or the other way round")
        past_key, past_value, present_key, present_value = self._caches(store)
        together = self._packed.get((queries, keys, values))
        inputs = [together, "", ""] if together is not None else [self._name(queries), self._name(keys), self._name(values)]
        self.graph.add_many(
            "GroupQueryAttention", [*inputs, past_key, past_value, self._lengths, self._total, *tables],
            [operation.outputs[0].name, present_key, present_value], domain=MICROSOFT, num_heads=whole(attributes["heads"]),
            kv_num_heads=store.kv_heads, scale=number(attributes["scale"]), local_window_size=whole(attributes["window"]) or -1,
            softcap=number(attributes["softcap"]), **rotary,
        )  # fmt: skip
        self._names[operation.outputs[0]] = operation.outputs[0].name
        if operation is self._last_attention and self.interface is Interface.STEP:
            self._keep_wanted_rows(operation)

    def _keep_wanted_rows(self, attention: Operation) -> None:
        """What comes after the last attention works row by row, so of the values that it takes only the rows are kept whose logits are wanted."""
        later = self.program.operations[self.program.operations.index(attention) + 1 :]
        made = {value for operation in later for value in operation.outputs}
        taken = dict.fromkeys(value for operation in later for value in operation.inputs if value not in made)
        rows = self.graph.input("output_rows", "int64", ["outputs"])
        for value in taken:
            flat = self.graph.add("Reshape", self._name(value), self._shape(1, -1, value.width))
            self._names[value] = self.graph.add("Gather", flat, rows, axis=1)

    def _select_outputs(self, operation: Operation) -> None:
        source, output = operation.inputs[0], operation.outputs[0]
        if source in self._deferred and source in self._sums:  # still to be summed, by the norm that comes next
            self._deferred[output], self._sums[output] = self._deferred.pop(source), self._sums[source]
        else:
            self._names[output] = self._name(source)

    def _activated(self, function: str, x: str) -> str:
        if function == "silu":
            return self.graph.add("QuickGelu", x, domain=MICROSOFT, alpha=1.0)
        if function in ("gelu_tanh", "gelu_erf"):
            return self.graph.add("Gelu", x, approximate="tanh" if function == "gelu_tanh" else "none")
        return super()._activated(function, x)

    # -- products

    def _members(self, operation: Operation) -> list[Operation]:
        """The products of one input that one operator can make: they have the same form, and nothing is added to them.

        In sessions of our own gate and up stay apart unless each would need a second product for its minimum: to take the two from one result, a single
        thread copies it, which in prefill takes longer than quantizing the input twice.
        """
        if operation.attributes["has_residual"]:
            return [operation]
        form = matrix_form(operation.weights[0].format_name)
        if self.interface is Interface.STEP and operation.outputs[0] in self._gated and (self._has_zero_points(form) or not form.has_offsets):
            return [operation]
        return [
            other
            for other in self.program.operations
            if other.kind == "linear"
            and other.inputs == operation.inputs
            and not other.attributes["has_residual"]
            and format_by_name(other.weights[0].format_name).quantized
            and matrix_form(other.weights[0].format_name) == form
        ]

    def _matrix(self, matrices: tuple[Weight, ...]) -> tuple[str, str, str]:
        """Codes uint8[N, blocks, bytes], scales float32[N, blocks] and, with a minimum, offsets float32[blocks, N] as weights; their names."""
        name = "+".join(matrix.name for matrix in matrices)
        names = (name, f"{name}.scales", f"{name}.offsets")
        if not self.graph.has_weight(name):
            held = self._held(*matrices)
            blocks = held.scales.shape[1]
            self.graph.weight(names[0], held.codes.reshape(len(held.codes), blocks, -1))
            self.graph.weight(names[1], held.scales)
            if held.offsets is not None:
                self.graph.weight(names[2], held.offsets.T.copy())
        return names

    def _has_zero_points(self, form: MatrixForm) -> bool:
        return self.interface is Interface.STEP and not self.exact_minima and takes_zero_points(form, self._widened)

    def _held_bits(self, format_name: str) -> int:
        form = matrix_form(format_name)
        return 8 if self._has_zero_points(form) else form.bits

    def _zero_point_matrix(self, matrices: tuple[Weight, ...]) -> tuple[str, str, str]:
        """Codes uint8[N, blocks, 32], scales float32[N, blocks] and zero points uint8[N * blocks] as weights; their names."""
        name = "+".join(matrix.name for matrix in matrices)
        names = (name, f"{name}.scales", f"{name}.zero_points")
        if not self.graph.has_weight(name):
            sources = [(matrix.format_name, self._file.tensor_blocks(matrix.name)) for matrix in matrices]
            held = zero_point_matrix(sources, matrices[0].shape[1])
            self._check_and_release(matrices, held.scales)
            self.graph.weight(names[0], held.codes.reshape(len(held.codes), -1, 32))
            self.graph.weight(names[1], held.scales)
            self.graph.weight(names[2], held.zero_points.reshape(-1))
        return names

    def _bias(self, members: list[Operation]) -> str | None:
        """The biases of products that are made together, end to end; zeros for those without."""
        if not any(member.attributes["has_bias"] for member in members):
            return None
        if len(members) == 1:
            return self._vector(members[0].weights[1])
        parts = [
            self._decoded(member.weights[1]) if member.attributes["has_bias"] else np.zeros(member.outputs[0].width, np.float32) for member in members
        ]
        return self.graph.weight("+".join(member.outputs[0].name for member in members) + ".bias", np.concatenate(parts))

    def _float_linear(self, operation: Operation) -> None:
        weight = operation.weights[0]
        name = weight.name if self.graph.has_weight(weight.name) else self.graph.weight(weight.name, self._floats(weight))
        product = self.graph.add("FusedMatMul", self._name(operation.inputs[0]), name, domain=MICROSOFT, transB=1)
        if operation.attributes["has_bias"]:
            product = self.graph.add("Add", product, self._vector(operation.weights[1]))
        self._part([operation], product)

    def _part(self, members: list[Operation], product: str) -> None:
        """Gives each output its columns of the product, when somebody asks; a single one takes all, with its residual added."""
        outputs = tuple(member.outputs[0] for member in members)
        if len(members) == 1:
            if members[0].attributes["has_residual"]:
                self._defer_sum(outputs[0], product, self._name(members[0].inputs[1]))
            else:
                self._names[outputs[0]] = product
            return
        self._packed[outputs] = product

        def split(wanted: Value) -> str:
            sizes = self.graph.constant([output.width for output in outputs], "int64")
            self.graph.add_many("Split", [product, sizes], [output.name for output in outputs], axis=-1)
            for output in outputs:
                self._deferred.pop(output, None)
                self._names[output] = output.name
            return wanted.name

        for output in outputs:
            self._deferred[output] = lambda wanted=output: split(wanted)  # type: ignore[misc]

    def _defer_sum(self, output: Value, change: str, residual: str) -> None:
        super()._defer_sum(output, change, residual)
        self._sums[output] = (change, residual)

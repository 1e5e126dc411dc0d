"""The dialects `opset21` and `opset23`: only operators of the ONNX standard, so that any runtime may take the graph.

`opset21` spells attention, rope and norms out in plain operations; `opset23` has operators for them. Both hold quantized matrices as DequantizeLinear
over blocks, which runtimes fuse with the matrix product behind it.

In a file the cache grows by concatenation, as other runtimes expect: every token has a position (`position_ids`) and every cached token a mark whether it
counts (`attention_mask`); the last `rows` cached tokens are those of the step. That copies the whole cache for every token. For a step of ours a graph
reads `cached` places of the cache, of which the first `cached_lengths` count, and gives back the keys and values of the new rows alone: scores are made
with both parts apart, and whoever calls writes the new rows behind the old ones. Only attention's operator of `opset23` cannot do that, so a step has it
spelled out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.onnx.emitter import Emitter, Interface, number, whole
from edgeinfer.backends.onnx.matrices import BlockMatrix, block_matrix, matrix_form, pair_nibbles
from edgeinfer.model.program import CacheStore, Operation, Weight
from kernels_numba.formats import format_by_name

_NOWHERE = 1 << 30  # the position of a place in the cache that holds nothing: after every row
_HIDDEN = -6e4  # added to the score of a token that may not be seen; finite in half precision too, and a row of padding that sees nothing is no NaN
_TRANSPOSED_ROWS = 256


class StandardEmitter(Emitter):
    """`opset21`; see the module."""

    dialect = "opset21"
    opset = 21
    ir_version = 10

    def _declare_inputs(self) -> None:
        graph, add = self.graph, self.graph.add
        self._tables: dict[str, tuple[str, str]] = {}
        self._masks: dict[int, str] = {}
        zero, one = graph.constant(0, "int64"), graph.constant(1, "int64")
        if self.interface is Interface.STEP:
            self._lengths = graph.input("cached_lengths", "int64", ["batch"])
            return  # the rest when the rows are declared
        self._ids = graph.input("input_ids", "int64", ["batch", "rows"])
        self._mask = graph.input("attention_mask", "int64", ["batch", "total"])
        self._positions = graph.input("position_ids", "int64", ["batch", "rows"])
        total = add("Gather", add("Shape", self._mask), one)
        rows = add("Gather", add("Shape", self._positions), one)
        self._keys_at = add("Range", zero, total, one)  # [total]
        self._rows_at = add("Unsqueeze", add("Range", add("Sub", total, rows), total, one), graph.constant([1], "int64"))  # [rows, 1]
        self._counts = add("Unsqueeze", add("Cast", self._mask, to=9), graph.constant([1, 2], "int64"))  # bool[batch, 1, 1, total]

    def _embedding(self, operation: Operation) -> None:
        super()._embedding(operation)
        if self.interface is not Interface.STEP:
            return
        graph, add = self.graph, self.graph.add
        zero, one = graph.constant(0, "int64"), graph.constant(1, "int64")
        rows = add("Gather", add("Shape", "embedded"), one)
        cached = add("Gather", add("Shape", f"past_key_values.{self.program.stores[0].index}.key"), graph.constant(2, "int64"))
        lengths = add("Unsqueeze", self._lengths, graph.constant([1], "int64"))  # [batch, 1]
        places = add("Range", zero, cached, one)
        held = add("Where", add("Less", places, lengths), places, graph.constant(_NOWHERE, "int64"))  # [batch, cached]
        self._positions = add("Add", lengths, add("Range", zero, rows, one))  # [batch, rows]
        self._keys_at = add("Unsqueeze", add("Concat", held, self._positions, axis=1), graph.constant([1, 2], "int64"))  # [batch, 1, 1, cached + rows]
        self._rows_at = add("Unsqueeze", self._positions, graph.constant([1, 3], "int64"))  # [batch, 1, rows, 1]
        self._counts = ""
        self._old_and_new = add("Concat", *(add("Unsqueeze", size, graph.constant([0], "int64")) for size in (cached, rows)), axis=0)

    def _mask_of(self, window: int) -> str:
        """float32[batch, 1, rows, keys]: 0 where a row may look, else so low that nothing is left of it."""
        if window not in self._masks:
            add = self.graph.add
            seen = add("LessOrEqual", self._keys_at, self._rows_at)
            if window:
                first = add("Sub", self._rows_at, self.graph.constant(window, "int64"))
                seen = add("And", seen, add("Greater", self._keys_at, first))
            if self._counts:
                seen = add("And", self._counts, seen)
            self._masks[window] = add("Where", seen, self._scalar(0.0), self._scalar(_HIDDEN))
        return self._masks[window]

    def _cache_lengths(self) -> tuple[str, str]:
        return ("cached", "rows") if self.interface is Interface.STEP else ("past", "total")

    # -- operations

    def _table(self, table: Weight) -> str:
        """Gathers the codes and scales of the rows that are needed: no float32 table is ever made."""
        graph, add, columns = self.graph, self.graph.add, table.shape[1]
        name = f"{table.name}.table"
        if not format_by_name(table.format_name).quantized:
            return add("Gather", graph.weight(name, self._floats(table)), self._ids)
        form = matrix_form(table.format_name)
        blocks = columns // form.block
        codes, scales, offsets = self._table_parts(table)
        graph.weight(name, codes)
        graph.weight(f"{name}.scales", scales)
        parted = add("Reshape", add("Cast", add("Gather", name, self._ids), to=1), self._shape(0, 0, blocks, form.block))
        last = graph.constant([-1], "int64")
        rows = add("Mul", add("Sub", parted, self._scalar(2 ** (form.bits - 1))), add("Unsqueeze", add("Gather", f"{name}.scales", self._ids), last))
        if offsets is not None:
            graph.weight(f"{name}.offsets", offsets)
            rows = add("Add", rows, add("Unsqueeze", add("Gather", f"{name}.offsets", self._ids), last))
        return add("Reshape", rows, self._shape(0, 0, columns))

    def _rms_norm(self, operation: Operation) -> None:
        source, output = operation.inputs[0], operation.outputs[0]
        name, scale = self._name(source), self._vector(operation.weights[0])
        epsilon, segment = number(operation.attributes["epsilon"]), whole(operation.attributes["segment"])
        if segment != output.width:
            name = self.graph.add("Reshape", name, self._shape(0, 0, output.width // segment, segment))
        name = self._normed(name, scale, epsilon)
        if segment != output.width:
            name = self.graph.add("Reshape", name, self._shape(0, 0, output.width))
        self._names[output] = name

    def _normed(self, name: str, scale: str, epsilon: float) -> str:
        """RMS norm over the last axis."""
        add = self.graph.add
        mean = add("ReduceMean", add("Mul", name, name), self.graph.constant([-1], "int64"), keepdims=1)
        return add("Mul", add("Div", name, add("Sqrt", add("Add", mean, self._scalar(epsilon)))), scale)

    def _linear(self, operation: Operation) -> None:
        weight, add = operation.weights[0], self.graph.add
        source = self._name(operation.inputs[0])
        if format_by_name(weight.format_name).quantized:
            product = self._quantized_product(source, weight)
        else:
            name = f"{weight.name}.transposed"
            if not self.graph.has_weight(name):
                self.graph.weight(name, np.ascontiguousarray(self._floats(weight).T))
            product = add("MatMul", source, name)
        if operation.attributes["has_bias"]:
            product = add("Add", product, self._vector(operation.weights[1]))
        if operation.attributes["has_residual"]:
            product = add("Add", product, self._name(operation.inputs[1]))
        self._names[operation.outputs[0]] = product

    def _quantized_product(self, source: str, weight: Weight) -> str:
        form, (rows, columns) = matrix_form(weight.format_name), weight.shape
        add, name = self.graph.add, f"{weight.name}.transposed"
        if not self.graph.has_weight(name):
            codes, scales, offsets = self._transposed_parts(weight)
            self.graph.weight(name, codes, f"int{form.bits}", (columns, rows))
            self.graph.weight(f"{name}.scales", scales)
            if offsets is not None:
                self.graph.weight(f"{name}.offsets", offsets)
        product = add("MatMul", source, add("DequantizeLinear", name, f"{name}.scales", axis=0, block_size=form.block))
        if form.has_offsets:
            product = add("Add", product, add("MatMul", self._sums_of_blocks(source, columns, form.block), f"{name}.offsets"))
        return product

    def _rope(self, operation: Operation) -> None:
        add, attributes, output = self.graph.add, operation.attributes, operation.outputs[0]
        cosines, sines = self._turns(self._name(operation.inputs[1]))
        heads, size, pairs = (whole(attributes[key]) for key in ("heads", "head_size", "pairs"))
        x = add("Reshape", self._name(operation.inputs[0]), self._shape(0, 0, heads, size))
        rest = ""
        if 2 * pairs < size:
            x, rest = self.graph.add_many("Split", [x, self.graph.constant([2 * pairs, size - 2 * pairs], "int64")], 2, axis=-1)
        neighbours = attributes["pairing"] == "neighbours"
        if neighbours:
            x = add("Reshape", x, self._shape(0, 0, heads, pairs, 2))
            cosines, sines = (add("Unsqueeze", part, self.graph.constant([-1], "int64")) for part in (cosines, sines))
        half = 1 if neighbours else pairs
        first, second = self.graph.add_many("Split", [x, self.graph.constant([half, half], "int64")], 2, axis=-1)
        turned = add(
            "Concat", add("Sub", add("Mul", first, cosines), add("Mul", second, sines)), add("Add", add("Mul", first, sines), add("Mul", second, cosines)),
            axis=-1,
        )  # fmt: skip
        if neighbours:
            turned = add("Reshape", turned, self._shape(0, 0, heads, 2 * pairs))
        if rest:
            turned = add("Concat", turned, rest, axis=-1)
        self._names[output] = add("Reshape", turned, self._shape(0, 0, output.width))

    def _turns(self, table: str) -> tuple[str, str]:
        """Cosines and sines of the step's positions: float32[batch, rows, 1, pairs] each."""
        if table not in self._tables:
            add, axis = self.graph.add, self.graph.constant([2], "int64")
            cosines, sines = (add("Unsqueeze", add("Gather", f"{table}.{part}", self._positions), axis) for part in ("cos", "sin"))
            self._tables[table] = (cosines, sines)
        return self._tables[table]

    def _attention(self, operation: Operation) -> None:
        """Heads that share keys and values are rows of one matrix product: nothing is repeated."""
        add, attributes, output = self.graph.add, operation.attributes, operation.outputs[0]
        store, heads = self.program.stores[whole(attributes["store"])], whole(attributes["heads"])
        past_key, past_value, present_key, present_value = self._caches(store)
        queries, keys, values = (self._name(value) for value in operation.inputs)
        queries = self._by_head(self._times(queries, number(attributes["scale"])), heads, store.key_size)
        shared = heads != store.kv_heads
        if shared:
            queries = add("Reshape", queries, self._shape(0, store.kv_heads, -1, store.key_size))
        in_step = self.interface is Interface.STEP
        keys = self._by_head(keys, store.kv_heads, store.key_size, present_key if in_step else None)
        values = self._by_head(values, store.kv_heads, store.value_size, present_value if in_step else None)
        if in_step:
            scores = add("Concat", *(add("MatMul", queries, add("Transpose", part, perm=[0, 1, 3, 2])) for part in (past_key, keys)), axis=-1)
        else:
            keys = add("Concat", past_key, keys, axis=2, name=present_key)
            values = add("Concat", past_value, values, axis=2, name=present_value)
            scores = add("MatMul", queries, add("Transpose", keys, perm=[0, 1, 3, 2]))
        cap = number(attributes["softcap"])
        if cap > 0:
            scores = self._times(add("Tanh", self._times(scores, 1.0 / cap)), cap)
        if shared:
            scores = add("Reshape", scores, self._shape(0, heads, -1, 0), allowzero=0)
        shares = add("Softmax", add("Add", scores, self._mask_of(whole(attributes["window"]))), axis=-1)
        if shared:
            shares = add("Reshape", shares, self._shape(0, store.kv_heads, -1, 0), allowzero=0)
        if in_step:
            old, new = self.graph.add_many("Split", [shares, self._old_and_new], 2, axis=-1)
            mixed = add("Add", add("MatMul", old, past_value), add("MatMul", new, values))
        else:
            mixed = add("MatMul", shares, values)
        if shared:
            mixed = add("Reshape", mixed, self._shape(0, heads, -1, store.value_size))
        self._names[output] = add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), self._shape(0, 0, output.width))

    def _by_head(self, name: str, heads: int, size: int, output: str | None = None) -> str:
        """float32[batch, heads, rows, size]"""
        return self.graph.add("Transpose", self.graph.add("Reshape", name, self._shape(0, 0, heads, size)), perm=[0, 2, 1, 3], name=output)

    # -- weights

    def _parts(self, weight: Weight) -> Iterator[tuple[slice, BlockMatrix]]:
        """Yields (rows as a slice, their block matrix), a few rows at a time."""
        stored = self._file.tensor_blocks(weight.name)
        for start in range(0, weight.shape[0], _TRANSPOSED_ROWS):
            rows = slice(start, min(start + _TRANSPOSED_ROWS, weight.shape[0]))
            yield rows, block_matrix(weight.format_name, stored[rows])
        self._file.release(weight.name)

    def _table_parts(self, table: Weight) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32] | None]:
        """codes uint8[rows, columns], one a byte, scales and offsets float32[rows, blocks]."""
        form, (rows, columns) = matrix_form(table.format_name), table.shape
        codes, scales = np.empty((rows, columns), np.uint8), np.empty((rows, columns // form.block), np.float32)
        offsets = np.empty_like(scales) if form.has_offsets else None
        for here, part in self._parts(table):
            codes[here], scales[here] = part.codes, part.scales
            if offsets is not None:
                offsets[here] = part.offsets
        return codes, scales, offsets

    def _transposed_parts(self, weight: Weight) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32] | None]:
        """Signed codes (as bytes, 4 bits in pairs along a row) of [columns, rows], scales and offsets float32[blocks, rows]."""
        form, (rows, columns) = matrix_form(weight.format_name), weight.shape
        codes, scales = np.empty((columns, rows), np.uint8), np.empty((columns // form.block, rows), np.float32)
        offsets = np.empty_like(scales) if form.has_offsets else None
        for here, part in self._parts(weight):
            codes[:, here] = (part.codes ^ np.uint8(1 << (form.bits - 1))).T  # unsigned around the middle -> two's complement
            scales[:, here] = part.scales.T
            if offsets is not None and part.offsets is not None:
                offsets[:, here] = part.offsets.T
        if form.bits == 4:
            flat = codes.reshape(-1)
            codes = pair_nibbles(np.append(flat, np.uint8(0)) if flat.size % 2 else flat)
        return codes, scales, offsets


class Opset23Emitter(StandardEmitter):
    """`opset23`; see the module."""

    dialect = "opset23"
    opset = 23
    ir_version = 11

    def _normed(self, name: str, scale: str, epsilon: float) -> str:
        return self.graph.add("RMSNormalization", name, scale, axis=-1, epsilon=epsilon)

    def _rope(self, operation: Operation) -> None:
        attributes = operation.attributes
        heads, size, pairs = (whole(attributes[key]) for key in ("heads", "head_size", "pairs"))
        table = self._name(operation.inputs[1])
        self._names[operation.outputs[0]] = self.graph.add(
            "RotaryEmbedding", self._name(operation.inputs[0]), f"{table}.cos", f"{table}.sin", self._positions, num_heads=heads,
            interleaved=int(attributes["pairing"] == "neighbours"), rotary_embedding_dim=2 * pairs if 2 * pairs < size else 0,
        )  # fmt: skip

    def _attention(self, operation: Operation) -> None:
        attributes, output = operation.attributes, operation.outputs[0]
        # the operator only grows a cache, and opset 23 leaves open whether a score is capped before or after the mask is added
        if self.interface is Interface.STEP or number(attributes["softcap"]) > 0:
            super()._attention(operation)
            return
        store: CacheStore = self.program.stores[whole(attributes["store"])]
        names = [self._name(value) for value in operation.inputs]
        past_key, past_value, present_key, present_value = self._caches(store)
        self.graph.add_many(
            "Attention", [*names, self._mask_of(whole(attributes["window"])), past_key, past_value], [output.name, present_key, present_value],
            q_num_heads=whole(attributes["heads"]), kv_num_heads=store.kv_heads, scale=number(attributes["scale"]),
        )  # fmt: skip
        self._names[output] = output.name


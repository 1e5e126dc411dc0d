"""The emitter: a program becomes tape entries. It gives values their slots, chooses the kernels, and decides where workers must wait for each other.

A linear operation with quantized weights reads its input as quantized blocks, so whatever makes such an input writes blocks as well as or instead of
float32 rows: a norm and an activation do both in one pass, everything else is followed by `quantize`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.numba.arena import Arena, Slot, blocks_bytes, row_stride, rows_bytes
from edgeinfer.backends.numba.burst_ends import DrawingEnd, ScreeningEnd
from edgeinfer.backends.numba.drafts import READ_OWN, ROW_WISE, Address, Draft, Operand, Split, with_hints
from edgeinfer.backends.numba.frequencies import rope_frequencies
from edgeinfer.backends.numba.weights import matrix_in_planes
from edgeinfer.core.errors import InvalidRequestError, UnsupportedModelError
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS
from edgeinfer.model.program import CacheStore, Operation, Program, Value, Weight
from kernels_numba.executor.store import KernelName
from kernels_numba.executor.tape import float_operand
from kernels_numba.formats import format_by_name
from kernels_numba.layouts import PLANES
from kernels_numba.ops import activation, attention, elementwise, embedding, greedy, linear, norm, pages, quantize, rope
from kernels_numba.ops.cache_types import CACHE_TYPES


class Emitter:
    """Writes the drafts of one program for steps of at most `rows` rows and `workers` workers."""

    def __init__(
        self, program: Program, rows: int, workers: int, context: int, cache_type: str, frequency_factors: dict[str, NDArray[np.float32]]
    ) -> None:
        self.program = program
        self.rows = rows
        self.workers = workers
        self.cache_type = cache_type
        self.factors = frequency_factors
        self.arena = Arena()
        self.drafts: list[Draft] = []
        self.constants: list[NDArray[np.float64]] = []
        self.groups = list(dict.fromkeys(store.group for store in program.stores))
        self._slots: dict[tuple[Value, str], Slot] = {}
        self._caches = [Slot(0) for _ in program.stores]  # stand for the stores, so that attention waits for the keys and values
        self._pending_writes: dict[int, Split | None] = {}  # slot -> how the entry that wrote it since the last barrier was split
        self._pending_reads: set[int] = set()
        self._dead_slots: list[Slot] = []  # of dead values; free from the next barrier on, so that nobody waits only to write there
        self._as_blocks, self._as_rows = _forms(program)
        self._last_use = _last_uses(program)
        self._kept = {program.hidden, program.logits}  # stay where they are until the step ends
        self.scratch = self.arena.take(workers * embedding.MAPPED_SCRATCH_BYTES)
        self.attention_scratch_bytes = max(
            (attention.attention_scratch_bytes(store.key_size, store.value_size, context) for store in program.stores), default=0
        )
        self.maxima = self.arena.take(rows_bytes(MAXIMUM_OUTPUT_ROWS, elementwise.maxima_width(program.vocabulary)))
        self._planes = matrix_in_planes(program)
        output = next(operation for operation in program.operations if operation.outputs[0] == program.logits)
        self.screening = ScreeningEnd(self.arena, output, workers) if self._planes is not None else None
        self._drawing = DrawingEnd(self.arena, program.vocabulary)
        self.attention_scratch = self.arena.take(workers * self.attention_scratch_bytes)

    def emit(self) -> None:
        """Fills `drafts`, `arena` and `constants`."""
        emitters = {
            "embedding": self._embedding, "rope_table": self._rope_table, "rms_norm": self._rms_norm, "linear": self._linear, "rope": self._rope,
            "attention": self._attention, "activation": self._activation, "add": self._add, "scale": self._scale, "softcap": self._softcap,
            "select_outputs": self._select_outputs,
        }  # fmt: skip
        for index, operation in enumerate(self.program.operations):
            emitters[operation.kind](operation)
            for value in {*operation.inputs, *operation.outputs}:
                if self._last_use[value] <= index and value not in self._kept:
                    for form in ("rows", "blocks"):
                        slot = self._slots.pop((value, form), None)
                        if slot is not None:
                            self._dead_slots.append(slot)
        self._end_of_pass(self.program.logits)
        self.drafts = with_hints(self.drafts)

    def _end_of_pass(self, logits: Value) -> None:
        """What stands between the logits and the next pass."""
        maxima, maxima_stride = Address("slot", self.maxima), row_stride(elementwise.maxima_width(logits.width))
        source: dict[str, Operand] = {"input": self._at(logits), "input_stride": row_stride(logits.width), "width": logits.width}
        self._entry(
            KernelName("ops.elementwise", "check_logits"), elementwise.CHECK_LOGITS_OPERANDS, "check logits", reads=[self._rows_of(logits)],
            writes=[self.maxima], split=None, **source, maxima=maxima, maxima_stride=maxima_stride,
        )  # fmt: skip
        self._entry(
            KernelName("ops.greedy", "choose_tokens"), greedy.CHOOSE_TOKENS_OPERANDS, "choose tokens", reads=[self._rows_of(logits), self.maxima],
            writes=[], split=None, **source, block_maxima=maxima, block_maxima_stride=maxima_stride,
        )  # fmt: skip

    def drawing_drafts(self) -> list[Draft]:
        """What stands before the last of the drafts in bursts that draw tokens."""
        return self._drawing.drafts(self.logits_slot(), self.maxima)

    def screening_drafts(self) -> list[Draft]:
        """What stands behind the final normed states in bursts that find their tokens from bounds; nothing if the output matrix is not in two planes."""
        return self.screening.drafts(self._blocks_of(self.program.hidden), self.logits_slot()) if self.screening is not None else []

    def logits_slot(self) -> Slot:
        return self._slots[self.program.logits, "rows"]

    def hidden_slot(self) -> Slot:
        """Where the final normed states lie as rows after a step."""
        return self._slots[self.program.hidden, "rows"]

    @property
    def hidden_end(self) -> int:
        """How many of the drafts make the final normed states: all before the output matrix."""
        return max(index for index, draft in enumerate(self.drafts) if draft.kernel.module == "ops.linear")

    # -- one method a kind of operation

    def _embedding(self, operation: Operation) -> None:
        table, output = operation.weights[0], operation.outputs[0]
        is_packed = any(other.kind == "linear" and other.weights[0].name == table.name for other in self.program.operations)
        function = "embedding" if is_packed else "embedding_mapped"
        kernel = KernelName("ops.embedding", function if format_by_name(table.format_name).quantized else f"{function}_float", (table.format_name,))
        names, more = list(embedding.EMBEDDING_OPERANDS), dict[str, Operand]()
        if table.name == self._planes:
            kernel = KernelName("ops.embedding", "embedding", (PLANES,))
            names, more["row_tiles"] = list(embedding.EMBEDDING_PLANES_OPERANDS), -(-table.shape[0] // 16)
        self._entry(
            kernel, names, f"embedding {table.name}", reads=[], writes=[self._rows_of(output), self.scratch], split=None,
            table=Address("packed" if is_packed else "mapped", table.name), columns=table.shape[1],
            scale=float_operand(float(operation.attributes["scale"] or 1.0)), scratch=Address("slot", self.scratch),
            output=self._at(output), output_stride=row_stride(output.width), **more,
        )  # fmt: skip
        self._blocks_after(output)

    def _rope_table(self, operation: Operation) -> None:
        attributes, output = operation.attributes, operation.outputs[0]
        factors = attributes["frequency_factors"]
        frequencies = rope_frequencies(
            _number(attributes["base"]), int(_number(attributes["pairs"])), _number(attributes["linear_factor"]),
            self.factors[str(factors)] if factors is not None else None,
        )  # fmt: skip
        self.constants.append(frequencies)
        self._entry(
            KernelName("ops.rope", "rope_table"), rope.ROPE_TABLE_OPERANDS, f"rope table {output.name}", reads=[], writes=[self._rows_of(output)],
            frequencies=Address("constant", len(self.constants) - 1), pairs=len(frequencies), output=self._at(output), output_stride=row_stride(output.width),
        )  # fmt: skip

    def _rms_norm(self, operation: Operation) -> None:
        source, output, weight = operation.inputs[0], operation.outputs[0], operation.weights[0]
        segment = int(_number(operation.attributes["segment"]))
        epsilon = float_operand(_number(operation.attributes["epsilon"]))
        if output in self._as_blocks and segment == output.width:
            keep_rows = output in self._as_rows
            writes = [self._blocks_of(output)] + ([self._rows_of(output)] if keep_rows else [])
            self._entry(
                KernelName("ops.norm", "rms_norm_quantize"), norm.RMS_NORM_QUANTIZE_OPERANDS, f"norm {weight.name}",
                reads=[self._rows_of(source)], writes=writes, input=self._at(source), input_stride=row_stride(source.width),
                weight=Address("rows", weight.name), width=output.width, epsilon=epsilon, per_output=int(output.per_output),
                output=self._at(output) if keep_rows else 0, output_stride=row_stride(output.width), blocks=self._at_blocks(output),
            )  # fmt: skip
            return
        self._entry(
            KernelName("ops.norm", "rms_norm"), norm.RMS_NORM_OPERANDS, f"norm {weight.name}", reads=[self._rows_of(source)],
            writes=[self._rows_of(output)], split=("heads", output.width // segment), input=self._at(source), input_stride=row_stride(source.width),
            weight=Address("rows", weight.name), segment=segment, segments=output.width // segment, epsilon=epsilon,
            per_output=int(output.per_output), output=self._at(output), output_stride=row_stride(output.width),
        )  # fmt: skip
        self._blocks_after(output)

    def _linear(self, operation: Operation) -> None:
        weight, source, output = operation.weights[0], operation.inputs[0], operation.outputs[0]
        quantized = format_by_name(weight.format_name).quantized
        bias = operation.weights[1] if operation.attributes["has_bias"] else None
        residual = operation.inputs[1] if operation.attributes["has_residual"] else None
        reads = [self._blocks_of(source) if quantized else self._rows_of(source)] + ([self._rows_of(residual)] if residual is not None else [])
        tag = PLANES if weight.name == self._planes else weight.format_name
        self._entry(
            KernelName("ops.linear", "linear" if quantized else "linear_float", (tag,)), linear.LINEAR_OPERANDS, f"linear {weight.name}",
            reads=reads, writes=[self._rows_of(output)], split=("columns", output.width), weights=Address("packed", weight.name),
            row_tiles=-(-weight.shape[0] // 16), columns=weight.shape[1], input=self._at_blocks(source) if quantized else self._at(source),
            input_stride=row_stride(source.width), bias=Address("rows", bias.name) if bias is not None else 0,
            residual=self._at(residual) if residual is not None else 0, residual_stride=row_stride(output.width),
            per_output=int(output.per_output), output=self._at(output), output_stride=row_stride(output.width),
        )  # fmt: skip
        self._blocks_after(output)

    def _rope(self, operation: Operation) -> None:
        source, table = operation.inputs
        output, attributes = operation.outputs[0], operation.attributes
        self._entry(
            KernelName("ops.rope", "rope", (str(attributes["pairing"]),)), rope.ROPE_OPERANDS, f"rope {output.name}",
            reads=[self._rows_of(source), self._rows_of(table)], writes=[self._rows_of(output)], split=("heads", _whole(attributes["heads"])),
            input=self._at(source), input_stride=row_stride(source.width), table=self._at(table), table_stride=row_stride(table.width),
            heads=_whole(attributes["heads"]),
            head_size=_whole(attributes["head_size"]), pairs=_whole(attributes["pairs"]), output=self._at(output), output_stride=row_stride(output.width),
        )  # fmt: skip

    def _attention(self, operation: Operation) -> None:
        queries, keys, values = operation.inputs
        output, attributes = operation.outputs[0], operation.attributes
        store = self.program.stores[_whole(attributes["store"])]
        place: dict[str, Operand] = {
            "store": Address("store", store.index), "page_bytes": page_bytes(store, self.cache_type), "group": self.groups.index(store.group),
            "kv_heads": store.kv_heads, "key_size": store.key_size, "value_size": store.value_size,
        }  # fmt: skip
        cache = self._caches[store.index]
        self._entry(
            KernelName("ops.pages", "store_keys_values", (self.cache_type,)), pages.STORE_KEYS_VALUES_OPERANDS, f"cache {store.index}",
            reads=[self._rows_of(keys), self._rows_of(values)], writes=[cache], keys=self._at(keys), keys_stride=row_stride(keys.width),
            values=self._at(values), values_stride=row_stride(values.width), split=("heads", store.kv_heads), **place,
        )  # fmt: skip
        self._entry(
            KernelName("ops.attention", "attention", (self.cache_type,)), attention.ATTENTION_OPERANDS, f"attention {store.index}",
            reads=[self._rows_of(queries), cache], writes=[self._rows_of(output), self.attention_scratch], queries=self._at(queries),
            queries_stride=row_stride(queries.width), heads=_whole(attributes["heads"]), scale=float_operand(_number(attributes["scale"])),
            window=_whole(attributes["window"]), softcap=float_operand(_number(attributes["softcap"])),
            scratch=Address("slot", self.attention_scratch), scratch_bytes_per_worker=self.attention_scratch_bytes, output=self._at(output),
            output_stride=row_stride(output.width), split=None, **place,
        )  # fmt: skip
        self._blocks_after(output)

    def _activation(self, operation: Operation) -> None:
        gate, output = operation.inputs[0], operation.outputs[0]
        up = operation.inputs[1] if len(operation.inputs) > 1 else None
        reads = [self._rows_of(value) for value in operation.inputs]
        tags = (str(operation.attributes["function"]),)
        inputs: dict[str, Operand] = {
            "gate": self._at(gate), "gate_stride": row_stride(gate.width), "up": self._at(up) if up is not None else 0, "up_stride": row_stride(gate.width),
            "width": output.width,
        }  # fmt: skip
        if output in self._as_blocks and output not in self._as_rows:
            self._entry(
                KernelName("ops.activation", "activation_quantize", tags), activation.ACTIVATION_QUANTIZE_OPERANDS, f"activation {output.name}", reads=reads,
                writes=[self._blocks_of(output)], split=("columns", output.width), **inputs, output=self._at_blocks(output),
            )  # fmt: skip
            return
        self._entry(
            KernelName("ops.activation", "activation", tags), activation.ACTIVATION_OPERANDS, f"activation {output.name}", reads=reads,
            writes=[self._rows_of(output)], split=("columns", output.width), **inputs, output=self._at(output),
            output_stride=row_stride(output.width),
        )  # fmt: skip
        self._blocks_after(output)

    def _add(self, operation: Operation) -> None:
        other = operation.inputs[1]
        self._elementwise(operation, "add", elementwise.ADD_OPERANDS, other=self._at(other), other_stride=row_stride(other.width))

    def _scale(self, operation: Operation) -> None:
        self._elementwise(operation, "scale", elementwise.SCALE_OPERANDS, factor=float_operand(_number(operation.attributes["factor"])))

    def _softcap(self, operation: Operation) -> None:
        self._elementwise(operation, "softcap", elementwise.SOFTCAP_OPERANDS, cap=float_operand(_number(operation.attributes["cap"])))

    def _elementwise(self, operation: Operation, function: str, names: Sequence[str], **operands: Operand) -> None:
        source, output = operation.inputs[0], operation.outputs[0]
        self._entry(
            KernelName("ops.elementwise", function), names, f"{function} {output.name}", reads=[self._rows_of(value) for value in operation.inputs],
            writes=[self._rows_of(output)], input=self._at(source), input_stride=row_stride(source.width), width=output.width,
            per_output=int(output.per_output), output=self._at(output), output_stride=row_stride(output.width), split=None, **operands,
        )  # fmt: skip
        self._blocks_after(output)

    def _select_outputs(self, operation: Operation) -> None:
        source, output = operation.inputs[0], operation.outputs[0]
        self._entry(
            KernelName("ops.elementwise", "select_outputs"), elementwise.SELECT_OUTPUTS_OPERANDS, "select outputs", reads=[self._rows_of(source)],
            writes=[self._rows_of(output)], input=self._at(source), input_stride=row_stride(source.width), width=output.width, output=self._at(output),
            output_stride=row_stride(output.width),
        )  # fmt: skip
        self._blocks_after(output)

    # -- slots, operands, barriers

    def _blocks_after(self, value: Value) -> None:
        """Quantizes a value that was written as rows, if a linear operation wants blocks of it."""
        if value in self._as_blocks:
            self._entry(
                KernelName("ops.quantize", "quantize"), quantize.QUANTIZE_OPERANDS, f"quantize {value.name}", reads=[self._rows_of(value)],
                writes=[self._blocks_of(value)], input=self._at(value), input_stride=row_stride(value.width), width=-(-value.width // 32) * 32,
                per_output=int(value.per_output), output=self._at_blocks(value),
            )  # fmt: skip

    def _row_count(self, value: Value) -> int:
        return MAXIMUM_OUTPUT_ROWS if value.per_output else self.rows

    def _rows_of(self, value: Value) -> Slot:
        key = (value, "rows")
        if key not in self._slots:
            self._slots[key] = self.arena.take(rows_bytes(self._row_count(value), value.width))
        return self._slots[key]

    def _blocks_of(self, value: Value) -> Slot:
        key = (value, "blocks")
        if key not in self._slots:
            self._slots[key] = self.arena.take(blocks_bytes(self._row_count(value), value.width))
        return self._slots[key]

    def _at(self, value: Value) -> Address:
        return Address("slot", self._rows_of(value))

    def _at_blocks(self, value: Value) -> Address:
        return Address("slot", self._blocks_of(value))

    def _entry(
        self, kernel: KernelName, names: Sequence[str], label: str, *, reads: list[Slot], writes: list[Slot], split: Split | None = None,
        **operands: Operand,
    ) -> None:  # fmt: skip
        """Adds a draft; the one before it gets a barrier if this one touches what entries since the last barrier wrote, or writes what they read.

        `split` says how its output is divided, where that matters. The kernels of `READ_OWN` need no barrier after entries of the same split.
        """
        if set(operands) != set(names):
            raise ValueError(f"operands of {kernel.symbol}: {sorted(operands)} given, {sorted(names)} wanted")
        read, written = {id(slot) for slot in reads}, {id(slot) for slot in writes}
        touching = [self._pending_writes[slot] for slot in read if slot in self._pending_writes]
        own = kernel.module in READ_OWN and all(other == split for other in touching)
        hazard = (touching and not own) or written & (self._pending_reads | set(self._pending_writes))
        if self.drafts:
            last = self.drafts[-1]
            self.drafts[-1] = dataclasses.replace(last, barrier_after=bool(hazard))
        if hazard:
            self._pending_writes.clear()
            self._pending_reads.clear()
            for slot in self._dead_slots:
                self.arena.give_back(slot)
            self._dead_slots.clear()
        self._pending_reads |= read
        self._pending_writes.update(dict.fromkeys(written, split))
        row_wise = kernel.function in ROW_WISE and not operands.get("per_output", 0)
        self.drafts.append(Draft(kernel, tuple(operands[name] for name in names), label, row_wise=row_wise))


def page_bytes(store: CacheStore, cache_type: str) -> int:
    """Bytes of a page of a store."""
    return pages.page_bytes(cache_type, store.kv_heads, store.key_size, store.value_size)


def _forms(program: Program) -> tuple[set[Value], set[Value]]:
    """The values that are read as quantized blocks, and those that are read as float32 rows."""
    as_blocks: set[Value] = set()
    as_rows: set[Value] = {program.logits, program.hidden}
    for operation in program.operations:
        for index, value in enumerate(operation.inputs):
            quantized = operation.kind == "linear" and index == 0 and format_by_name(operation.weights[0].format_name).quantized
            (as_blocks if quantized else as_rows).add(value)
    return as_blocks, as_rows


def _last_uses(program: Program) -> Counter[Value]:
    last: Counter[Value] = Counter()
    for index, operation in enumerate(program.operations):
        for value in (*operation.inputs, *operation.outputs):
            last[value] = index
    return last


def check_supported(program: Program, cache_type: str) -> None:
    """Raises UnsupportedModelError for what the kernels cannot do, by name."""
    if cache_type not in CACHE_TYPES:
        raise InvalidRequestError(f"there is no cache type {cache_type!r}; choose one of {', '.join(CACHE_TYPES)}")
    for store in program.stores:
        if store.key_size % 16 or store.value_size % 16:
            raise UnsupportedModelError(
                f"the model has heads of {store.key_size} (keys) and {store.value_size} (values); the numba backend needs multiples of 16. "
                "Use --backend llamacpp"
            )
    for operation in program.operations:
        if operation.kind == "linear":
            weight: Weight = operation.weights[0]
            if format_by_name(weight.format_name).quantized and weight.shape[1] % 32:
                raise UnsupportedModelError(f"tensor {weight.name} has rows of {weight.shape[1]} elements; quantized rows must be a multiple of 32 long")


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value

"""What loading a model on the onnx backend will take, decided from its program before memory is taken. Called by the backend."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.onnx.cache import token_bytes
from edgeinfer.backends.onnx.matrices import matrix_form
from edgeinfer.backends.onnx.zero_points import takes_zero_points, widens
from edgeinfer.core import host
from edgeinfer.core.memory_plan import MemoryPlan
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS
from edgeinfer.model import Program
from edgeinfer.model.program import Weight
from kernels_numba.formats import format_by_name

PROCESS_GROWTH = 60_000_000
"""Bytes that importing onnxruntime and onnx adds to a process; measured."""

DEFAULT_CACHED_CONTEXTS = 4
TOKENS_PER_PAGE = 32

ROWS_AT_ONCE = 128
"""Rows of a sequence that a run of the session takes. ONNX Runtime's attention keeps scores of all rows for the whole length of the cache, and computes those
behind the diagonal as well: 128 rows took 8 % less processor time than 512 on SmolLM2-135M, with a quarter of the memory for activations."""


@dataclass(frozen=True)
class LoadPlan:
    """What is decided before memory is taken."""

    memory: MemoryPlan
    threads: host.UsableCores
    cache_tokens: int


def make_plan(program: Program, options: BackendOptions, in_pieces: bool) -> LoadPlan:
    """ONNX Runtime packs weights by itself; this is the arithmetic of what it will take. `in_pieces`: a run takes ROWS_AT_ONCE rows at most."""
    available = host.available_memory()
    weights = {operation.weights[0].name: operation.weights[0] for operation in program.operations if operation.kind == "linear"}
    widened = widens(program)
    kept = sum(_kept_bytes(weight, widened) for weight in weights.values())
    table = next(operation.weights[0] for operation in program.operations if operation.kind == "embedding")
    mapped = table.shape[0] * format_by_name(table.format_name).row_bytes(table.shape[1]) + sum(_mapped_bytes(weight, widened) for weight in weights.values())
    widest = max(value.width for operation in program.operations for value in operation.outputs if not value.per_output)
    heads = max(int(str(operation.attributes["heads"])) for operation in program.operations if operation.kind == "attention")
    rows = max(min(options.maximum_step_rows, ROWS_AT_ONCE), options.maximum_sequences) if in_pieces else options.maximum_step_rows
    arena = 4 * rows * (6 * widest + heads * options.context) + 4 * MAXIMUM_OUTPUT_ROWS * program.vocabulary

    def memory(tokens: int) -> MemoryPlan:
        return MemoryPlan(
            weights=kept,
            cache=pages(tokens) * TOKENS_PER_PAGE * token_bytes(program.stores),
            arena=arena,
            process=PROCESS_GROWTH,
            peak_while_packing=max(_codes_bytes(weight, widened) + _mapped_bytes(weight, widened) for weight in weights.values()),
            mapped=mapped,
            available=available.size,
            available_reason=available.reason,
        )

    tokens = options.cache_tokens
    if tokens is None:
        tokens = options.context * min(DEFAULT_CACHED_CONTEXTS, options.maximum_sequences)
        if memory(tokens).peak > available.size // 2:
            tokens = options.context
    return LoadPlan(memory(tokens), host.worker_threads(options.threads), tokens)


def _codes_bytes(weight: Weight, widened: bool) -> int:
    """Of a matrix without its scales."""
    elements = weight.shape[0] * weight.shape[1]
    if not format_by_name(weight.format_name).quantized:
        return 4 * elements
    form = matrix_form(weight.format_name)
    return elements if takes_zero_points(form, widened) else elements * form.bits // 8


def _kept_bytes(weight: Weight, widened: bool) -> int:
    """Of a matrix as the session packs it: with the codes of a block go its scale and their sum."""
    if not format_by_name(weight.format_name).quantized:
        return _codes_bytes(weight, widened)
    return _codes_bytes(weight, widened) + 8 * weight.shape[0] * weight.shape[1] // matrix_form(weight.format_name).block


def _mapped_bytes(weight: Weight, widened: bool) -> int:
    """What stays in the mapped file of weights: scales, and zero points or offsets where there are some."""
    if not format_by_name(weight.format_name).quantized:
        return 0
    form = matrix_form(weight.format_name)
    each = 4 if not form.has_offsets else 5 if takes_zero_points(form, widened) else 8
    return each * weight.shape[0] * weight.shape[1] // form.block


def pages(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // TOKENS_PER_PAGE)

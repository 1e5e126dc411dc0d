"""What loading a model on the onnx backend will take, decided from its program before memory is taken. Called by the backend."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.onnx.cache import token_bytes
from edgeinfer.backends.onnx.matrices import matrix_form
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


@dataclass(frozen=True)
class LoadPlan:
    """What is decided before memory is taken."""

    memory: MemoryPlan
    threads: host.UsableCores
    cache_tokens: int


def make_plan(program: Program, options: BackendOptions) -> LoadPlan:
    """ONNX Runtime packs weights by itself; this is the arithmetic of what it will take."""
    available = host.available_memory()
    weights = {operation.weights[0].name: operation.weights[0] for operation in program.operations if operation.kind == "linear"}
    kept = sum(_kept_bytes(weight) for weight in weights.values())
    table = next(operation.weights[0] for operation in program.operations if operation.kind == "embedding")
    mapped = table.shape[0] * format_by_name(table.format_name).row_bytes(table.shape[1]) + sum(_mapped_bytes(weight) for weight in weights.values())
    widest = max(value.width for operation in program.operations for value in operation.outputs if not value.per_output)
    heads = max(int(str(operation.attributes["heads"])) for operation in program.operations if operation.kind == "attention")
    arena = 4 * options.maximum_step_rows * (6 * widest + heads * options.context) + 4 * MAXIMUM_OUTPUT_ROWS * program.vocabulary

    def memory(tokens: int) -> MemoryPlan:
        return MemoryPlan(
            weights=kept,
            cache=pages(tokens) * TOKENS_PER_PAGE * token_bytes(program.stores),
            arena=arena,
            process=PROCESS_GROWTH,
            peak_while_packing=max(_codes_bytes(weight) + _mapped_bytes(weight) for weight in weights.values()),
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


def _codes_bytes(weight: Weight) -> int:
    """Of a matrix without its scales."""
    elements = weight.shape[0] * weight.shape[1]
    return elements * matrix_form(weight.format_name).bits // 8 if format_by_name(weight.format_name).quantized else 4 * elements


def _kept_bytes(weight: Weight) -> int:
    """Of a matrix as the session packs it: with the codes of a block go its scale and their sum."""
    if not format_by_name(weight.format_name).quantized:
        return _codes_bytes(weight)
    return _codes_bytes(weight) + 8 * weight.shape[0] * weight.shape[1] // matrix_form(weight.format_name).block


def _mapped_bytes(weight: Weight) -> int:
    """What stays in the mapped file of weights: scales, and offsets where there are some."""
    if not format_by_name(weight.format_name).quantized:
        return 0
    form = matrix_form(weight.format_name)
    return (2 if form.has_offsets else 1) * 4 * weight.shape[0] * weight.shape[1] // form.block


def pages(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // TOKENS_PER_PAGE)

"""The reference: a program run in NumPy with float64 throughout, the plainest reading of each operation, to compare kernels with.

It is slow and small: one tensor is dequantized at a time, in blocks of rows, so a model needs far less memory than its weights. It computes one
sequence from position 0, all positions at once. It shares the program with the kernels, so it is no oracle of an architecture (llama.cpp is); it is
one of the arithmetic. `verify` and tests call it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.errors import InvalidRequestError, NonFiniteError
from edgeinfer.model.build import build_program
from edgeinfer.model.program import Operation, Program, Value, Weight
from edgeinfer.model.source import ModelFile
from kernels_numba.formats import format_by_name

Matrix = NDArray[np.float64]
Observer = Callable[[Operation, Matrix], None]
Outputs = str | Sequence[int] | NDArray[np.integer]

DEFAULT_BLOCK = 128
"""Output rows at a time: 128 rows of 262,144 float64 logits are 268 MB."""

_DECODED_ELEMENTS = 1 << 22  # of a weight at a time: 34 MB as float64
_QUERY_BLOCK = 512  # rows of the score matrix at a time


def reference_logits(
    file: ModelFile,
    token_ids: Sequence[int] | NDArray[np.integer],
    outputs: Outputs = "all",
    *,
    program: Program | None = None,
    observe: Observer | None = None,
) -> Matrix:
    """Logits float64[outputs, vocabulary] after each of the positions asked for; see `reference_logit_blocks` for arguments and errors."""
    return np.concatenate(list(reference_logit_blocks(file, token_ids, outputs, program=program, observe=observe)))


def reference_logit_blocks(
    file: ModelFile,
    token_ids: Sequence[int] | NDArray[np.integer],
    outputs: Outputs = "all",
    *,
    block: int = DEFAULT_BLOCK,
    program: Program | None = None,
    observe: Observer | None = None,
) -> Iterator[Matrix]:
    """Yields logits float64[at most `block`, vocabulary] until every output row is given, in order; what is as wide as the vocabulary runs in blocks.

    outputs: "all", "last", or positions in any order. program: the file's program in another form (fused), else it is built. observe: called with
    each operation and its output float64[rows, width], to find where a kernel differs; operations from `select_outputs` on are seen once per block.
    Raises InvalidRequestError for no token, an id outside the vocabulary or a position that does not exist, and NonFiniteError for logits with a NaN
    or an infinity.
    """
    program = program or build_program(file)
    tokens = _checked("token id", token_ids, program.vocabulary)
    if isinstance(outputs, str):
        if outputs not in ("all", "last"):
            raise InvalidRequestError(f"outputs is {outputs!r}; expected 'all', 'last' or positions")
        wanted = np.arange(len(tokens)) if outputs == "all" else np.array([len(tokens) - 1])
    else:
        wanted = _checked("position", outputs, len(tokens))
    if block < 1:
        raise InvalidRequestError(f"block is {block}; it must be a whole number of at least 1")
    return _blocks(_Run(file, program, tokens, observe), wanted, block)


def _blocks(run: _Run, wanted: NDArray[np.intp], block: int) -> Iterator[Matrix]:
    for start in range(0, len(wanted), block):
        logits = run.logits(wanted[start : start + block])
        if not np.isfinite(logits).all():
            raise NonFiniteError("the reference computed a logit that is no finite number: a weight of the file is damaged, or the model overflows")
        yield logits


def _checked(what: str, values: Sequence[int] | NDArray[np.integer], limit: int) -> NDArray[np.intp]:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise InvalidRequestError(f"expected a list of at least one {what}, found {array.dtype}[{', '.join(map(str, array.shape))}]")
    outside = array[(array < 0) | (array >= limit)]
    if outside.size:
        raise InvalidRequestError(f"the {what} {outside[0]} does not exist; it must be from 0 to {limit - 1}")
    return array.astype(np.intp)


class _Run:
    """One evaluation: everything before `select_outputs` once, when the first logits are asked for, and the rest for each block of output rows."""

    def __init__(self, file: ModelFile, program: Program, tokens: NDArray[np.intp], observe: Observer | None) -> None:
        self._weights = _Weights(file)
        self._tokens = tokens
        self._observe = observe
        self._logits = program.logits
        first = next(index for index, operation in enumerate(program.operations) if operation.kind == "select_outputs")
        self._body, self._head = program.operations[:first], program.operations[first:]
        self._hidden: dict[Value, Matrix] | None = None

    def logits(self, rows: NDArray[np.intp]) -> Matrix:
        """float64[len(rows), vocabulary]"""
        if self._hidden is None:
            made = {value for operation in self._head for value in operation.outputs}
            needed = {value for operation in self._head for value in operation.inputs} - made
            self._hidden = self._evaluate(self._body, {}, needed, self._tokens)
        return self._evaluate(self._head, self._hidden, {self._logits}, rows)[self._logits]

    def _evaluate(
        self, operations: tuple[Operation, ...], given: Mapping[Value, Matrix], wanted: set[Value], rows: NDArray[np.intp]
    ) -> dict[Value, Matrix]:
        """Runs the operations; a value is dropped after its last use. `rows`: token ids for the body, positions of the outputs for the head."""
        values = dict(given)
        last_use = {value: index for index, operation in enumerate(operations) for value in operation.inputs}
        for index, operation in enumerate(operations):
            inputs = [values[value] for value in operation.inputs]
            result = _EVALUATORS[operation.kind](operation, inputs, self._weights, rows)
            if self._observe is not None:
                self._observe(operation, result)
            values[operation.outputs[0]] = result
            for value in operation.inputs:
                if last_use[value] == index and value not in wanted:
                    values.pop(value, None)
        return {value: values[value] for value in wanted}


class _Weights:
    """Weights of a file as float64, a few rows at a time."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file

    def vector(self, weight: Weight) -> Matrix:
        """float64[width] of a norm or a bias."""
        return format_by_name(weight.format_name).decode_rows(self._rows(weight)).astype(np.float64).reshape(-1)

    def gathered(self, weight: Weight, rows: NDArray[np.intp]) -> Matrix:
        """float64[len(rows), width]: some rows of a matrix."""
        return format_by_name(weight.format_name).decode_rows(self._rows(weight)[rows]).astype(np.float64)

    def row_blocks(self, weight: Weight) -> Iterator[tuple[slice, Matrix]]:
        """The whole matrix, in blocks of rows that are small enough."""
        stored, decode = self._rows(weight), format_by_name(weight.format_name).decode_rows
        step = max(1, _DECODED_ELEMENTS // weight.shape[-1])
        for start in range(0, weight.shape[0], step):
            rows = slice(start, min(start + step, weight.shape[0]))
            yield rows, decode(stored[rows]).astype(np.float64)

    def _rows(self, weight: Weight) -> NDArray[np.uint8]:
        rows = weight.shape[0] if len(weight.shape) > 1 else 1
        return self._file.tensor_blocks(weight.name).reshape(rows, -1)


def _number(operation: Operation, key: str) -> float:
    value = operation.attributes[key]
    assert isinstance(value, int | float), f"{operation.kind} has no number {key!r}"
    return value


def _count(operation: Operation, key: str) -> int:
    return int(_number(operation, key))


def _embedding(operation: Operation, inputs: list[Matrix], weights: _Weights, tokens: NDArray[np.intp]) -> Matrix:
    return weights.gathered(operation.weights[0], tokens) * _number(operation, "scale")


def _rope_table(operation: Operation, inputs: list[Matrix], weights: _Weights, tokens: NDArray[np.intp]) -> Matrix:
    """float64[rows, 2 * pairs]: the cosines of all pairs, then their sines."""
    pairs = _count(operation, "pairs")
    frequencies = _number(operation, "base") ** (-np.arange(pairs) / pairs) / _number(operation, "linear_factor")
    if operation.attributes["frequency_factors"] is not None:
        frequencies = frequencies / weights.vector(operation.weights[0])
    angles = np.arange(len(tokens))[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _rms_norm(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    segments = inputs[0].reshape(len(inputs[0]), -1, _count(operation, "segment"))
    scale = 1.0 / np.sqrt(np.mean(segments * segments, axis=2, keepdims=True) + _number(operation, "epsilon"))
    return (segments * scale * weights.vector(operation.weights[0])).reshape(inputs[0].shape)


def _linear(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    result = np.empty((len(inputs[0]), operation.outputs[0].width))
    for columns, block in weights.row_blocks(operation.weights[0]):
        result[:, columns] = inputs[0] @ block.T
    if operation.attributes["has_bias"]:
        result += weights.vector(operation.weights[1])
    if operation.attributes["has_residual"]:
        result += inputs[1]
    return result


def _rope(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    x, table = inputs
    pairs = _count(operation, "pairs")
    heads = x.reshape(len(x), _count(operation, "heads"), _count(operation, "head_size"))
    cosines, sines = table[:, None, :pairs], table[:, None, pairs:]
    if operation.attributes["pairing"] == "halves":
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    else:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    turned = heads.copy()
    turned[:, :, first] = heads[:, :, first] * cosines - heads[:, :, second] * sines
    turned[:, :, second] = heads[:, :, first] * sines + heads[:, :, second] * cosines
    return turned.reshape(x.shape)


def _attention(operation: Operation, inputs: list[Matrix], weights: _Weights, tokens: NDArray[np.intp]) -> Matrix:
    heads, kv_heads, window = (_count(operation, key) for key in ("heads", "kv_heads", "window"))
    scale, softcap = _number(operation, "scale"), _number(operation, "softcap")
    count = len(inputs[0])
    queries = inputs[0].reshape(count, heads, -1)
    keys, values = (matrix.reshape(count, kv_heads, -1) for matrix in inputs[1:])
    result = np.empty((count, heads, values.shape[2]))
    for start in range(0, count, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, count)
        first = max(0, start - window + 1) if window else 0  # the first position that any row of the block sees
        distance = np.arange(start, stop)[:, None] - np.arange(first, stop)
        hidden = (distance < 0) | (distance >= window) if window else distance < 0
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = _capped(queries[start:stop, head] @ keys[first:stop, shared].T * scale, softcap)
            scores[hidden] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            shares = np.exp(scores, out=scores)
            result[start:stop, head] = shares @ values[first:stop, shared] / shares.sum(axis=1, keepdims=True)
    return result.reshape(count, -1)


def _capped(values: Matrix, cap: float) -> Matrix:
    return cap * np.tanh(values / cap) if cap > 0 else values


def _silu(x: Matrix) -> Matrix:
    with np.errstate(over="ignore"):  # exp of a large -x is infinite, and x / infinity the right 0
        return x / (1.0 + np.exp(-x))


def _gelu_tanh(x: Matrix) -> Matrix:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_erf(x: Matrix) -> Matrix:
    return 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))


def _relu_squared(x: Matrix) -> Matrix:
    return np.square(np.maximum(x, 0.0))


_FUNCTIONS: Mapping[str, Callable[[Matrix], Matrix]] = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "relu_squared": _relu_squared,
}


def _activation(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    activated = _FUNCTIONS[str(operation.attributes["function"])](inputs[0])
    return activated * inputs[1] if len(inputs) > 1 else activated


def _add(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    return inputs[0] + inputs[1]


def _scale(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    return inputs[0] * _number(operation, "factor")


def _softcap(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    return _capped(inputs[0], _number(operation, "cap"))


def _select_outputs(operation: Operation, inputs: list[Matrix], weights: _Weights, rows: NDArray[np.intp]) -> Matrix:
    return inputs[0][rows]


_EVALUATORS: Mapping[str, Callable[[Operation, list[Matrix], _Weights, NDArray[np.intp]], Matrix]] = {
    "embedding": _embedding,
    "rope_table": _rope_table,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope": _rope,
    "attention": _attention,
    "activation": _activation,
    "add": _add,
    "scale": _scale,
    "softcap": _softcap,
    "select_outputs": _select_outputs,
}

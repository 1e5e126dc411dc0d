"""The program: a printable list of operations that one forward pass consists of.

`decoder.build_decoder` writes it, `rewrite` fuses it, and its readers run or translate it: `reference` in NumPy, the numba backend as a tape of
kernels, the ONNX exporter as a graph. The program is mathematics as data: it knows values, weights and attributes, never bytes, threads or kernels.

A value is a matrix of float32 with one row per token of the step (`rows`) or per requested output (`outputs`). Weights are names of GGUF tensors; a
linear weight has shape [output width, input width]. The vocabulary of operations is `OPERATIONS`; anything else is refused when the program is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Attribute = int | float | str | bool | None

OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        # kind: meaning (inputs; weights -> outputs; attributes)
        "embedding": "(; table) -> x. Row of the table for each token id of the step, times `scale`.",
        "rope_table": "() -> t[rows, 2 * pairs]. cos then sin of position * frequency for each pair; attributes `base` (float), `pairs` (int), "
        "`linear_factor` (frequency divisor, 1.0), `frequency_factors` (weight name of divisors per pair, or None).",
        "rms_norm": "(x; weight) -> h. x / sqrt(mean(x^2) + epsilon) * weight over segments of `segment` columns (the whole width, or a head).",
        "linear": "(h [, residual]; weight [, bias]) -> y = h @ weight.T + bias + residual. Attributes `has_bias`, `has_residual`.",
        "rope": "(x, t) -> y. Rotates pairs of each head; `pairing` is `halves` (i with i + pairs: NEOX) or `neighbours` (2i with 2i + 1); "
        "`heads`, `head_size`, `pairs` (2 * pairs <= head_size; the rest passes through).",
        "attention": "(q, k, v) -> a. Appends k and v to cache store `store`, then causal softmax(q k^T * scale) v over the cached positions; "
        "`heads`, `kv_heads`, `head_size`, `value_size`, `scale`, `window` (0: all; w: position p sees p-w+1 .. p), "
        "`softcap` (0.0: none; else cap * tanh(score / cap)).",
        "activation": "(gate, up) -> m = f(gate) * up, or (x) -> f(x); `function` is `silu`, `gelu_tanh`, `gelu_erf`, `relu_squared`.",
        "add": "(x, y) -> x + y.",
        "scale": "(x) -> x * `factor`.",
        "softcap": "(x) -> `cap` * tanh(x / `cap`).",
        "select_outputs": "(x[rows]) -> y[outputs]. Keeps the rows whose logits (or hidden states) were asked for.",
    }
)


@dataclass(frozen=True)
class Value:
    """A named float32 matrix [rows or outputs, width]."""

    name: str
    width: int
    per_output: bool = False  # one row per requested output instead of one per token


@dataclass(frozen=True)
class Weight:
    """A GGUF tensor as an operand. `shape` in NumPy order ([output width, input width] for a linear weight, [width] for a norm)."""

    name: str
    format_name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CacheStore:
    """What one attention op keeps per token: `kv_heads` keys of `key_size` and values of `value_size`, in the cache group `group`."""

    index: int
    group: str  # "paged" | "paged_window"
    kv_heads: int
    key_size: int
    value_size: int
    window: int  # 0: unbounded


@dataclass(frozen=True)
class Operation:
    """One line of the program."""

    kind: str
    inputs: tuple[Value, ...]
    weights: tuple[Weight, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in OPERATIONS:
            raise ValueError(f"unknown operation {self.kind!r}; known: {', '.join(OPERATIONS)}")

    def __str__(self) -> str:
        weights = "".join(f", {weight.name}[{weight.format_name.lower()}]" for weight in self.weights)
        inputs = ", ".join(value.name for value in self.inputs) or "-"
        attributes = "".join(f", {key}={_show(value)}" for key, value in self.attributes.items())
        return f"{self.kind:<15}{inputs}{weights}{attributes} -> {' '.join(f'{value.name}[{value.width}]' for value in self.outputs)}"


@dataclass(frozen=True)
class Program:
    """A forward pass. The value named `logits` (one row per requested output) is the result; `hidden` names the final normed state."""

    architecture: str
    operations: tuple[Operation, ...]
    stores: tuple[CacheStore, ...]
    vocabulary: int
    width: int
    context_length: int  # what the file says the model was trained for
    logits: Value

    @property
    def hidden(self) -> Value:
        """The final normed state, which the output matrix multiplies: the last matrix on the way back from the logits."""
        made_by = {value: operation for operation in self.operations for value in operation.outputs}
        operation = made_by[self.logits]
        while operation.kind != "linear":
            operation = made_by[operation.inputs[0]]
        return operation.inputs[0]

    def __str__(self) -> str:
        lines = [f"{number:4} {operation}" for number, operation in enumerate(self.operations)]
        return "\n".join(lines) + "\n"


def _show(value: Attribute) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

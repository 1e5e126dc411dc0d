"""The tensor table: which tensor of the file plays which role, each taken exactly once and checked against the shape that the sizes demand.

Biases follow the file: a weight has one where the file stores it. `decoder` reads the table; nothing here looks at the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.core.errors import ModelFileError, UnsupportedModelError
from edgeinfer.model.dims import Dims
from edgeinfer.model.program import Weight
from edgeinfer.model.source import TensorRecord
from edgeinfer.model.spec import ArchSpec


@dataclass(frozen=True)
class LinearWeights:
    """`weight` [output width, input width] and, where the file has one, `bias` [output width]."""

    weight: Weight
    bias: Weight | None


@dataclass(frozen=True)
class LayerTensors:
    """Tensors of one block. Norms that the architecture does not have are None."""

    attention_norm: Weight | None
    query: LinearWeights
    key: LinearWeights
    value: LinearWeights
    query_norm: Weight | None
    key_norm: Weight | None
    attention_output: LinearWeights
    post_attention_norm: Weight | None
    feed_forward_norm: Weight | None
    gate: LinearWeights
    up: LinearWeights
    down: LinearWeights
    post_feed_forward_norm: Weight | None


@dataclass(frozen=True)
class TensorTable:
    """Tensors of a model. With a tied output, `output.weight` is `token_embedding`."""

    token_embedding: Weight
    rope_factors: Weight | None
    layers: tuple[LayerTensors, ...]
    output_norm: Weight
    output: LinearWeights

    @property
    def tied(self) -> bool:
        return self.output.weight == self.token_embedding


class _Directory:
    """The tensors of a file while roles are filled; what is left over at the end is refused."""

    def __init__(self, spec: ArchSpec, tensors: Mapping[str, TensorRecord]) -> None:
        self._spec = spec
        self._tensors = tensors
        self._taken: set[str] = set()

    def name(self, role: str, layer: int, suffix: str = "weight") -> str:
        return f"{self._spec.tensor_names[role].replace('{layer}', str(layer))}.{suffix}"

    def optional(self, role: str, shape: tuple[int, ...], layer: int = 0, suffix: str = "weight") -> Weight | None:
        name = self.name(role, layer, suffix)
        record = self._tensors.get(name)
        if record is None:
            return None
        if tuple(record.shape) != shape:
            raise ModelFileError(
                f"the tensor {name} has the shape {_shape(record.shape)}, but the metadata asks for {_shape(shape)}; "
                "the file contradicts itself, convert it again"
            )
        self._taken.add(name)
        return Weight(name, record.format_name, shape)

    def required(self, role: str, shape: tuple[int, ...], layer: int = 0) -> Weight:
        weight = self.optional(role, shape, layer)
        if weight is None:
            strangers = self._strangers()
            hint = f"; the file has {_some(strangers)}, which edgeinfer does not know" if strangers else ""
            raise ModelFileError(
                f"the tensor {self.name(role, layer)} {_shape(shape)}, which {self._spec.name} models need, is not in the file{hint}"
            )
        return weight

    def linear(self, role: str, outputs: int, inputs: int, layer: int = 0) -> LinearWeights:
        return LinearWeights(self.required(role, (outputs, inputs), layer), self.optional(role, (outputs,), layer, "bias"))

    def _strangers(self) -> list[str]:
        """Tensors that have no role: neither now nor in any layer."""
        stems = {pattern.split("{layer}")[-1] for pattern in self._spec.tensor_names.values()}
        return [name for name in self._tensors if not any(name.removesuffix(".weight").removesuffix(".bias").endswith(stem) for stem in stems)]

    def refuse_rest(self) -> None:
        rest = [name for name in self._tensors if name not in self._taken]
        if rest:
            raise UnsupportedModelError(
                f"the file has {_some(rest)}, which a {self._spec.name} model with this metadata does not use; "
                "without it the result would differ from what was trained, so the file is refused"
            )


def read_tensor_table(spec: ArchSpec, dims: Dims, tensors: Mapping[str, TensorRecord]) -> TensorTable:
    """Gives every tensor its role.

    Raises ModelFileError for a missing tensor or a wrong shape and UnsupportedModelError for a tensor without a role; both name it.
    """
    directory = _Directory(spec, tensors)
    embedding = directory.required("token_embedding", (dims.vocabulary, dims.width))
    factors = directory.optional("rope_factors", (dims.rope_pairs,)) if spec.rope_frequency_factors else None
    layers = tuple(_layer(spec, dims, directory, layer) for layer in range(dims.layers))
    output_norm = directory.required("output_norm", (dims.width,))
    output: Weight | None = None
    if spec.output_tied == "never":
        output = directory.required("output", (dims.vocabulary, dims.width))
    elif spec.output_tied == "when_absent":
        output = directory.optional("output", (dims.vocabulary, dims.width))
    output_bias = directory.optional("output", (dims.vocabulary,), suffix="bias")
    directory.refuse_rest()
    return TensorTable(embedding, factors, layers, output_norm, LinearWeights(output or embedding, output_bias))


def _layer(spec: ArchSpec, dims: Dims, directory: _Directory, layer: int) -> LayerTensors:
    def norm(role: str, present: bool, size: int) -> Weight | None:
        return directory.required(role, (size,), layer) if present else None

    query_width, key_width, value_width = dims.heads * dims.head_size, dims.kv_heads * dims.head_size, dims.kv_heads * dims.value_size
    return LayerTensors(
        attention_norm=norm("attention_norm", spec.pre_norms, dims.width),
        query=directory.linear("query", query_width, dims.width, layer),
        key=directory.linear("key", key_width, dims.width, layer),
        value=directory.linear("value", value_width, dims.width, layer),
        query_norm=norm("query_norm", spec.qk_norm, dims.head_size),
        key_norm=norm("key_norm", spec.qk_norm, dims.head_size),
        attention_output=directory.linear("attention_output", dims.width, dims.heads * dims.value_size, layer),
        post_attention_norm=norm("post_attention_norm", spec.post_norms, dims.width),
        feed_forward_norm=norm("feed_forward_norm", spec.pre_norms, dims.width),
        gate=directory.linear("gate", dims.feed_forward, dims.width, layer),
        up=directory.linear("up", dims.feed_forward, dims.width, layer),
        down=directory.linear("down", dims.width, dims.feed_forward, layer),
        post_feed_forward_norm=norm("post_feed_forward_norm", spec.post_norms, dims.width),
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _some(names: list[str]) -> str:
    """A few names of a list that may be long."""
    shown = ", ".join(names[:3])
    return f"the tensor {shown}" if len(names) == 1 else f"the tensors {shown}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")

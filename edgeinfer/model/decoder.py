"""The forward pass: `build_decoder` writes the program of a model from its verbs, sizes and tensors. It is the only forward pass there is.

No architecture is named here: what differs between them is a verb in `ArchSpec`. `rewrite.fuse` makes the program shorter, its readers run it.
Names of values are unique: `x` is the residual (x3 enters block 3, y3 is between its halves), the rest is named for what it holds.
"""

from __future__ import annotations

from edgeinfer.model.dims import Dims, LayerRope
from edgeinfer.model.program import Attribute, CacheStore, Operation, Program, Value, Weight
from edgeinfer.model.spec import ArchSpec
from edgeinfer.model.tensors import LayerTensors, LinearWeights, TensorTable


def build_decoder(spec: ArchSpec, dims: Dims, tensors: TensorTable) -> Program:
    """The program of one forward pass: token ids in, logits of the requested outputs out."""
    writer = _Writer(dims)
    tables = _rope_tables(writer, dims, tensors)
    residual = writer.add("embedding", (), (tensors.token_embedding,), Value("x0", dims.width), scale=dims.embedding_scale)
    for layer, layer_tensors in enumerate(tensors.layers):
        table = tables[dims.layer_rope(layer)]
        between = writer.residual_add(residual, _attention(writer, spec, dims, layer_tensors, layer, residual, table), f"y{layer}")
        residual = writer.residual_add(between, _feed_forward(writer, spec, dims, layer_tensors, layer, between), f"x{layer + 1}")
    selected = writer.add("select_outputs", (residual,), (), Value("selected", dims.width, per_output=True))
    hidden = writer.norm(selected, tensors.output_norm, "hidden")
    logits = writer.linear(hidden, tensors.output, "logits" if dims.output_softcap == 0 else "scores")
    if dims.output_softcap > 0:
        logits = writer.add("softcap", (logits,), (), Value("logits", dims.vocabulary, per_output=True), cap=dims.output_softcap)
    return Program(
        architecture=spec.name,
        operations=tuple(writer.operations),
        stores=tuple(writer.stores),
        vocabulary=dims.vocabulary,
        width=dims.width,
        context_length=dims.context_length,
        logits=logits,
    )


class _Writer:
    """Appends operations and makes the values that they yield."""

    def __init__(self, dims: Dims) -> None:
        self.operations: list[Operation] = []
        self.stores: list[CacheStore] = []
        self._dims = dims

    def add(self, kind: str, inputs: tuple[Value, ...], weights: tuple[Weight, ...], output: Value, **attributes: Attribute) -> Value:
        self.operations.append(Operation(kind, inputs, weights, (output,), attributes))
        return output

    def norm(self, value: Value, weight: Weight | None, name: str) -> Value:
        """The normed value over segments as long as the weight; without a weight the value itself, for architectures that have no such norm."""
        if weight is None:
            return value
        output = Value(name, value.width, value.per_output)
        return self.add("rms_norm", (value,), (weight,), output, epsilon=self._dims.norm_epsilon, segment=weight.shape[0])

    def linear(self, value: Value, weights: LinearWeights, name: str) -> Value:
        operands = (weights.weight,) if weights.bias is None else (weights.weight, weights.bias)
        output = Value(name, weights.weight.shape[0], value.per_output)
        return self.add("linear", (value,), operands, output, has_bias=weights.bias is not None, has_residual=False)

    def residual_add(self, residual: Value, change: Value, name: str) -> Value:
        return self.add("add", (residual, change), (), Value(name, residual.width))


def _rope_tables(writer: _Writer, dims: Dims, tensors: TensorTable) -> dict[LayerRope, Value]:
    """One table of cosines and sines for each way in which layers turn their heads."""
    tables: dict[LayerRope, Value] = {}
    weights = () if tensors.rope_factors is None else (tensors.rope_factors,)
    for rope in map(dims.layer_rope, range(dims.layers)):
        if rope not in tables:
            tables[rope] = writer.add(
                "rope_table",
                (),
                weights,
                Value(f"t{len(tables)}", 2 * dims.rope_pairs),
                base=rope.base,
                pairs=dims.rope_pairs,
                linear_factor=rope.linear_factor,
                frequency_factors=weights[0].name if weights else None,
            )
    return tables


def _attention(writer: _Writer, spec: ArchSpec, dims: Dims, tensors: LayerTensors, layer: int, residual: Value, table: Value) -> Value:
    """The first half of a block; what it yields is to be added to the residual."""
    normed = writer.norm(residual, tensors.attention_norm, f"h{layer}")
    query = writer.norm(writer.linear(normed, tensors.query, f"q{layer}"), tensors.query_norm, f"q{layer}_normed")
    key = writer.norm(writer.linear(normed, tensors.key, f"k{layer}"), tensors.key_norm, f"k{layer}_normed")
    value = writer.linear(normed, tensors.value, f"v{layer}")
    shape: dict[str, Attribute] = {"pairing": spec.rope_pairing, "head_size": dims.head_size, "pairs": dims.rope_pairs}
    query = writer.add("rope", (query, table), (), Value(f"q{layer}_turned", query.width), heads=dims.heads, **shape)
    key = writer.add("rope", (key, table), (), Value(f"k{layer}_turned", key.width), heads=dims.kv_heads, **shape)
    window = dims.windows[layer]
    writer.stores.append(CacheStore(layer, "paged_window" if window else "paged", dims.kv_heads, dims.head_size, dims.value_size, window))
    mixed = writer.add(
        "attention",
        (query, key, value),
        (),
        Value(f"a{layer}", dims.heads * dims.value_size),
        store=layer,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_size=dims.head_size,
        value_size=dims.value_size,
        scale=dims.attention_scale,
        window=window,
        softcap=dims.attention_softcap,
    )
    return writer.norm(writer.linear(mixed, tensors.attention_output, f"o{layer}"), tensors.post_attention_norm, f"o{layer}_normed")


def _feed_forward(writer: _Writer, spec: ArchSpec, dims: Dims, tensors: LayerTensors, layer: int, residual: Value) -> Value:
    """The second half of a block; what it yields is to be added to the residual."""
    normed = writer.norm(residual, tensors.feed_forward_norm, f"f{layer}")
    gate = writer.linear(normed, tensors.gate, f"g{layer}")
    up = writer.linear(normed, tensors.up, f"u{layer}")
    gated = writer.add("activation", (gate, up), (), Value(f"m{layer}", dims.feed_forward), function=spec.activation)
    return writer.norm(writer.linear(gated, tensors.down, f"d{layer}"), tensors.post_feed_forward_norm, f"d{layer}_normed")

"""The sizes and constants of one model, read from the metadata of its file.

Every key `{architecture}.*` is read here, listed as one that changes nothing, or refused: what is not understood and changes the result must not be
passed over. Missing keys have the defaults of llama.cpp (`llama_model_base::load_hparams` and the `load_arch_hparams` of the architecture), because
files are written for it. `tensors` and `decoder` read the `Dims`; so may anyone who wants to describe a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from edgeinfer.core.errors import EdgeInferError, ModelFileError, UnsupportedModelError
from edgeinfer.model.spec import ArchSpec, NeutralValue

MAXIMUM_LAYERS = 512
MAXIMUM_SIZE = 2**31 - 1

# Change no result of any architecture here.
_IGNORABLE_KEYS = frozenset(
    {
        "rope.scaling.finetuned",  # says how the model was trained, not how it runs
        "attention.layer_norm_epsilon",  # the architectures here have RMS norms only
        "pooling_type",  # what `Engine.embed` makes of hidden states
    }
)

# Would change the result; at these values they do not.
_NEUTRAL_VALUES: Mapping[str, NeutralValue] = {
    "attention.causal": True,
    "attention.max_alibi_bias": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.value_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "nextn_predict_layers": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "use_parallel_residual": False,
}


@dataclass(frozen=True)
class LayerRope:
    """How a layer turns its queries and keys: the angle of pair i at position p is p * base^(-i / pairs) / linear_factor (/ factor of the pair)."""

    base: float
    linear_factor: float


@dataclass(frozen=True)
class Dims:
    """Sizes in elements, counts and constants of a model. `windows[layer]` 0: the layer sees everything; w: position p sees p-w+1 .. p."""

    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int  # of queries and keys
    value_size: int
    vocabulary: int
    context_length: int
    norm_epsilon: float
    rope_pairs: int
    rope: LayerRope
    window_rope: LayerRope
    windows: tuple[int, ...]
    embedding_scale: float
    attention_scale: float
    attention_softcap: float  # 0: none
    output_softcap: float  # 0: none

    def layer_rope(self, layer: int) -> LayerRope:
        return self.window_rope if self.windows[layer] else self.rope


class _Metadata:
    """The keys of one architecture while they are read; remembers which were asked for."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix
        self._read: set[str] = set()

    def name(self, key: str) -> str:
        return f"{self._prefix}.{key}"

    def has(self, key: str) -> bool:
        return self.name(key) in self._metadata

    def value(self, key: str) -> Any:
        self._read.add(key)
        return _plain(self._metadata.get(self.name(key)))

    def wrong(self, key: str, expected: str) -> ModelFileError:
        return ModelFileError(f"the metadata key {self.name(key)} is {_shown(self.value(key))}; expected {expected}; convert the file again")

    def whole(self, key: str, default: int | None = None, lowest: int = 1, highest: int = MAXIMUM_SIZE) -> int:
        """A whole number; a missing key without a default is refused."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self.missing(key) if value is None else self.wrong(key, f"a whole number from {lowest} to {highest}")
        return value

    def whole_of_all_layers(self, key: str, layers: int, default: int | None = None) -> int:
        """A whole number, or a list with one for each layer, all equal."""
        value = self.value(key)
        if not isinstance(value, list):
            return self.whole(key, default)
        if len(value) != layers or any(isinstance(entry, bool) or not isinstance(entry, int) or not 1 <= entry <= MAXIMUM_SIZE for entry in value):
            raise self.wrong(key, f"a whole number of at least 1, or {layers} of them, one for each layer")
        if len(set(value)) > 1:
            raise UnsupportedModelError(f"the metadata key {self.name(key)} is {_shown(value)}; edgeinfer runs models where all layers agree")
        return cast(int, value[0])

    def number(self, key: str, default: float | None = None, positive: bool = False) -> float:
        """A finite number that is not negative."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf or (positive and value == 0):
            raise self.missing(key) if value is None else self.wrong(key, "a finite number above 0" if positive else "a finite number of at least 0")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def missing(self, key: str) -> ModelFileError:
        return ModelFileError(f"the metadata key {self.name(key)} is missing, and no model runs without it; convert the file again")

    def refuse_unread(self, ignorable: frozenset[str], neutral: Mapping[str, NeutralValue]) -> None:
        """Refuses the first key that was neither read nor is ignorable nor has the value at which it changes nothing."""
        for full_name in self._metadata:
            key = full_name.removeprefix(f"{self._prefix}.")
            if key == full_name or key in self._read or key in ignorable:
                continue
            value = _plain(self._metadata[full_name])
            if key not in neutral:
                raise UnsupportedModelError(
                    f"the metadata key {full_name} (value {_shown(value)}) is not understood and may change the result, so the file is refused"
                )
            if isinstance(value, list | str) or value != neutral[key]:
                raise UnsupportedModelError(
                    f"the metadata key {full_name} is {_shown(value)}; edgeinfer runs {self._prefix} models only with {neutral[key]!r}, "
                    "at which it has no effect"
                )


def read_dims(spec: ArchSpec, metadata: Mapping[str, Any]) -> Dims:
    """Reads the metadata of a file whose general.architecture is `spec.name`.

    Raises ModelFileError for a missing, wrong or contradictory value and UnsupportedModelError for one that asks for what the decoder does not have.
    """
    keys = _Metadata(metadata, spec.name)
    for key in spec.required_keys:
        if not keys.has(key):
            raise keys.missing(key)
    layers = keys.whole("block_count", highest=MAXIMUM_LAYERS)
    width = keys.whole("embedding_length")
    heads = keys.whole_of_all_layers("attention.head_count", layers)
    kv_heads = keys.whole_of_all_layers("attention.head_count_kv", layers, default=heads)
    if heads % kv_heads:
        raise ModelFileError(
            f"the metadata contradicts itself: {heads} attention heads ({keys.name('attention.head_count')}) cannot evenly share {kv_heads} "
            f"key and value heads ({keys.name('attention.head_count_kv')}); convert the file again"
        )
    head_size, value_size = _head_sizes(keys, width, heads)
    windows = _windows(spec, keys, layers)
    linear_factor = _linear_factor(keys)
    rope = LayerRope(keys.number("rope.freq_base", 10000.0, positive=True), linear_factor)
    # Scaling stretches the reach of the layers that see everything; windowed layers never look far, and llama.cpp leaves theirs alone.
    window_rope = LayerRope(keys.number("rope.freq_base_swa", spec.window_rope_base, positive=True), 1.0) if spec.window_rope_base else rope
    dims = Dims(
        layers=layers,
        width=width,
        feed_forward=keys.whole_of_all_layers("feed_forward_length", layers),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        value_size=value_size,
        vocabulary=_vocabulary(keys, metadata),
        context_length=_context_length(keys, linear_factor),
        norm_epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        rope_pairs=_rope_pairs(spec, keys, head_size),
        rope=rope,
        window_rope=window_rope,
        windows=windows,
        embedding_scale=math.sqrt(width) if spec.embedding_scale == "sqrt_width" else 1.0,
        attention_scale=_attention_scale(spec, layers, width, heads, head_size),
        attention_softcap=keys.number("attn_logit_softcapping", 0.0) if spec.attention_softcap else 0.0,
        output_softcap=keys.number("final_logit_softcapping", 0.0) if spec.output_softcap else 0.0,
    )
    keys.refuse_unread(_IGNORABLE_KEYS | spec.ignorable_keys, {**_NEUTRAL_VALUES, **spec.neutral_values})
    return dims


def _head_sizes(keys: _Metadata, width: int, heads: int) -> tuple[int, int]:
    """Head sizes of keys and of values: as stored, else width / heads."""
    if not (keys.has("attention.key_length") and keys.has("attention.value_length")) and width % heads:
        raise ModelFileError(
            f"the metadata contradicts itself: a width of {width} ({keys.name('embedding_length')}) is no multiple of {heads} heads, and "
            f"{keys.name('attention.key_length')} and {keys.name('attention.value_length')}, which would give the size of a head, are not both there"
        )
    head_size = keys.whole("attention.key_length", width // heads)
    value_size = keys.whole("attention.value_length", width // heads)
    if head_size != value_size:
        raise UnsupportedModelError(
            f"keys have {head_size} elements per head ({keys.name('attention.key_length')}) but values {value_size} "
            f"({keys.name('attention.value_length')}); edgeinfer runs models where both are equal"
        )
    return head_size, value_size


def _rope_pairs(spec: ArchSpec, keys: _Metadata, head_size: int) -> int:
    turned = keys.whole("rope.dimension_count", head_size)
    if turned % 2 or turned > head_size:
        raise keys.wrong("rope.dimension_count", f"an even number of at most {head_size}, the size of a head")
    if turned != head_size and not spec.rope_partial:
        raise keys.wrong("rope.dimension_count", f"{head_size}, the size of a head: {spec.name} turns whole heads")
    return turned // 2


def _linear_factor(keys: _Metadata) -> float:
    """The divisor of all rope frequencies: `rope.scaling.factor`, or its old name, where the type is linear (also when no type is given)."""
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"the metadata key {keys.name('rope.scaling.type')} is {kind!r}; edgeinfer has 'linear', 'none' and scaling by a tensor of factors. "
            "Without its scaling the model would write nonsense in long contexts, so it is refused"
        )
    old_factor = keys.number("rope.scale_linear", 0.0)
    factor = keys.number("rope.scaling.factor", old_factor)
    return factor if kind == "linear" and factor else 1.0  # llama.cpp takes a factor of 0 as none


def _context_length(keys: _Metadata, linear_factor: float) -> int:
    """What the file was made for; where it tells the length before scaling, at least that times the factor."""
    context_length = keys.whole("context_length")
    original = keys.whole("rope.scaling.original_context_length", context_length)
    if not keys.has("rope.scaling.original_context_length"):
        return context_length
    return max(context_length, min(int(original * linear_factor), MAXIMUM_SIZE))


def trained_context(metadata: Mapping[str, Any]) -> int | None:
    """Tokens that the model was trained for, linear scaling included; for files of any architecture, also such as only other backends can run.

    None where the file does not tell. It is a hint for choosing a context: `read_dims` is what refuses wrong metadata.
    """
    keys = _Metadata(metadata, str(metadata.get("general.architecture")))
    unscaled = keys.value("context_length")
    if isinstance(unscaled, bool) or not isinstance(unscaled, int) or unscaled < 2:
        return None
    try:
        return _context_length(keys, _linear_factor(keys))
    except EdgeInferError:
        return unscaled


def _windows(spec: ArchSpec, keys: _Metadata, layers: int) -> tuple[int, ...]:
    """The window of each layer. The pattern is a list of true for windowed layers, or a number n: of n layers the last sees everything."""
    if not spec.windowed:
        window = keys.whole("attention.sliding_window", default=0, lowest=0)
        if window and window < keys.whole("context_length"):
            raise UnsupportedModelError(
                f"the metadata key {keys.name('attention.sliding_window')} is {window}, but edgeinfer knows {spec.name} models "
                "without windowed layers only; beyond the window the result would differ, so the file is refused"
            )
        return (0,) * layers
    window = keys.whole("attention.sliding_window", default=0, lowest=0)
    pattern = keys.value("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(isinstance(entry, bool | int) for entry in pattern):
            raise keys.wrong("attention.sliding_window_pattern", f"true or false for each of {layers} layers")
        windowed = [bool(entry) for entry in pattern]
    else:
        global_every = keys.whole("attention.sliding_window_pattern", default=spec.window_global_every, lowest=0)
        windowed = [global_every == 0 or layer % global_every < global_every - 1 for layer in range(layers)]
    return tuple(window if entry else 0 for entry in windowed)


def _attention_scale(spec: ArchSpec, layers: int, width: int, heads: int, head_size: int) -> float:
    scale = spec.attention_scale_by_layers.get(layers, spec.attention_scale)
    return 1.0 / math.sqrt(width // heads if scale == "inverse_sqrt_width_per_head" else head_size)


def _vocabulary(keys: _Metadata, metadata: Mapping[str, Any]) -> int:
    """The number of tokens: the length of the tokenizer's list, else `vocab_size`. Both must agree; the tensor table checks the embedding."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence | np.ndarray):
        return keys.whole("vocab_size")
    vocabulary = keys.whole("vocab_size", len(tokens))
    if vocabulary != len(tokens):
        raise ModelFileError(
            f"the metadata contradicts itself: {keys.name('vocab_size')} is {vocabulary}, but tokenizer.ggml.tokens has {len(tokens)} entries; "
            "convert the file again"
        )
    return vocabulary


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as Python values, other sequences as lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _shown(value: object) -> str:
    """A value in a message: a file may hold a megabyte of text."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Architectures as data: `models/architectures/NAME.toml` is a list of verbs of the decoder, validated here into a frozen `ArchSpec`.

The folder is the registry: a file that is put there is known from then on. `dims`, `tensors` and `decoder` read the spec; the faces list the names.
A key that is not known, a value of a wrong type and a value without a meaning are refused with the file and the key: a misspelt verb must not
quietly become its default.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeinfer.core.errors import ArchitectureFileError, UnsupportedModelError
from edgeinfer.core.paths import data_path
from edgeinfer.model.tensor_names import DEFAULT_TENSOR_NAMES

PAIRINGS = ("neighbours", "halves")
ACTIVATIONS = ("silu", "gelu_tanh", "gelu_erf", "relu_squared")
ATTENTION_SCALES = ("inverse_sqrt_head_size", "inverse_sqrt_width_per_head")
EMBEDDING_SCALES = ("none", "sqrt_width")
TIED_OUTPUTS = ("when_absent", "always", "never")

NeutralValue = int | float | bool | str


@dataclass(frozen=True)
class ArchSpec:
    """What an architecture does, in verbs of the decoder. The comment of each field is its meaning; its key in the file stands in `read_spec`."""

    name: str  # value of general.architecture, and prefix of the metadata keys
    rope_pairing: str  # which two columns of a head are turned together: PAIRINGS
    rope_partial: bool  # rope.dimension_count may be below the head size; the remaining columns pass unchanged
    rope_frequency_factors: bool  # an optional tensor divides the frequency of each pair
    qk_norm: bool  # queries and keys are normed per head before the rotation
    pre_norms: bool  # attention and feed-forward read a normed residual
    post_norms: bool  # attention and feed-forward outputs are normed before they are added to the residual
    activation: str  # of the gate: ACTIVATIONS
    embedding_scale: str  # EMBEDDING_SCALES
    attention_scale: str  # ATTENTION_SCALES
    attention_scale_by_layers: Mapping[int, str]  # exceptions of one size of the family, which the metadata tells only by the number of layers
    attention_softcap: bool  # reads attn_logit_softcapping
    windowed: bool  # reads attention.sliding_window and its pattern
    window_global_every: int  # of so many layers the last sees everything; 0: all layers are windowed
    window_rope_base: float  # rope base of windowed layers unless rope.freq_base_swa says otherwise; 0: that of the other layers
    output_softcap: bool  # reads final_logit_softcapping
    output_tied: str  # whether the token embedding is the output matrix: TIED_OUTPUTS
    required_keys: tuple[str, ...]  # beyond those that every model needs
    ignorable_keys: frozenset[str]  # change no result
    neutral_values: Mapping[str, NeutralValue]  # keys that would change the result, with the value at which they don't
    tensor_names: Mapping[str, str]  # role -> name pattern with {layer}


class _Table:
    """A TOML table while it is read: every key must be asked for once, what is left over is refused."""

    def __init__(self, file: Path, name: str, values: Any) -> None:
        self._file = file
        self._name = name
        if not isinstance(values, dict):
            raise ArchitectureFileError(f"{file}: {name} is {values!r}; expected a table")
        self._values = dict(values)

    def _key(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def refuse(self, key: str, found: object, expected: str) -> ArchitectureFileError:
        return ArchitectureFileError(f"{self._file}: {self._key(key)} is {found!r}; expected {expected}")

    def table(self, key: str) -> _Table:
        return _Table(self._file, self._key(key), self._values.pop(key, {}))

    def text(self, key: str) -> str:
        value = self._values.pop(key, None)
        if not isinstance(value, str) or not value:
            raise self.refuse(key, value, "a text")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        value = self._values.pop(key, default)
        if value not in choices:
            raise self.refuse(key, value, f"one of {', '.join(choices)}")
        return str(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._values.pop(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, value, "true or false")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._values.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.refuse(key, value, "a number of at least 0")
        return float(value)

    def whole(self, key: str, default: int) -> int:
        value = self._values.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refuse(key, value, "a whole number of at least 0")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._values.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
            raise self.refuse(key, value, "a list of texts")
        return tuple(value)

    def entries(self) -> dict[str, Any]:
        """All that is left, for tables whose keys are free."""
        values, self._values = self._values, {}
        return values

    def finish(self) -> None:
        if self._values:
            names = ", ".join(self._key(key) for key in self._values)
            raise ArchitectureFileError(f"{self._file}: unknown key {names}; the keys that exist are described in edgeinfer/model/spec.py")


def read_spec(file: Path) -> ArchSpec:
    """Reads and validates an architecture file. Raises ArchitectureFileError naming the file and the key."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArchitectureFileError(f"{file}: not a TOML file: {error}") from error
    top = _Table(file, "", values)
    tables = {name: top.table(name) for name in ("rope", "block", "embedding", "attention", "window", "output", "keys", "tensors")}
    rope, block, attention, window, output, keys = (tables[name] for name in ("rope", "block", "attention", "window", "output", "keys"))
    scale_by_layers, neutral = attention.table("scale_by_layers"), keys.table("neutral")
    windowed = "window" in values
    spec = ArchSpec(
        name=top.text("name"),
        rope_pairing=rope.choice("pairing", PAIRINGS),
        rope_partial=rope.boolean("partial", False),
        rope_frequency_factors=rope.boolean("frequency_factors", False),
        qk_norm=block.boolean("qk_norm", False),
        pre_norms=block.boolean("pre_norms", True),
        post_norms=block.boolean("post_norms", False),
        activation=block.choice("activation", ACTIVATIONS),
        embedding_scale=tables["embedding"].choice("scale", EMBEDDING_SCALES, "none"),
        attention_scale=attention.choice("scale", ATTENTION_SCALES, "inverse_sqrt_head_size"),
        attention_scale_by_layers=_scale_exceptions(scale_by_layers),
        attention_softcap=attention.boolean("softcap", False),
        windowed=windowed,
        window_global_every=window.whole("global_every", 0),
        window_rope_base=window.number("rope_base", 0.0),
        output_softcap=output.boolean("softcap", False),
        output_tied=output.choice("tied", TIED_OUTPUTS, "when_absent"),
        required_keys=keys.texts("required"),
        ignorable_keys=frozenset(keys.texts("ignorable")),
        neutral_values=_neutral_values(neutral),
        tensor_names=_tensor_names(tables["tensors"]),
    )
    for table in (top, *tables.values(), scale_by_layers, neutral):
        table.finish()
    if spec.name != file.stem:
        raise top.refuse("name", spec.name, f"{file.stem!r}, the name of the file")
    return spec


def _scale_exceptions(table: _Table) -> Mapping[int, str]:
    exceptions = {}
    for layers, scale in table.entries().items():
        if not layers.isascii() or not layers.isdigit() or scale not in ATTENTION_SCALES:
            raise table.refuse(layers, scale, f"a number of layers as the key, and one of {', '.join(ATTENTION_SCALES)}")
        exceptions[int(layers)] = scale
    return MappingProxyType(exceptions)


def _neutral_values(table: _Table) -> Mapping[str, NeutralValue]:
    values = table.entries()
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise table.refuse(key, value, "a number, a text, true or false")
    return MappingProxyType(values)


def _tensor_names(table: _Table) -> Mapping[str, str]:
    names = dict(DEFAULT_TENSOR_NAMES)
    for role, pattern in table.entries().items():
        if role not in names:
            raise table.refuse(role, pattern, f"a role that exists: {', '.join(names)}")
        per_layer = "{layer}" in DEFAULT_TENSOR_NAMES[role]
        if not isinstance(pattern, str) or not pattern or ("{layer}" in pattern) != per_layer or set("{}") & set(pattern.replace("{layer}", "")):
            raise table.refuse(role, pattern, f"a name {'with' if per_layer else 'without'} {{layer}}, such as {DEFAULT_TENSOR_NAMES[role]!r}")
        names[role] = pattern
        if list(names.values()).count(pattern) > 1:
            raise table.refuse(role, pattern, "a name that no other role has")
    return MappingProxyType(names)


def architecture_names(folder: Path | None = None) -> tuple[str, ...]:
    """The architectures that have a file, in alphabetical order. `folder` None: the one that ships with the package."""
    return tuple(sorted(file.stem for file in (folder or data_path("architectures")).glob("*.toml")))


def load_spec(name: str, folder: Path | None = None) -> ArchSpec:
    """The spec of an architecture, by the value of general.architecture.

    Raises UnsupportedModelError for a name without a file and ArchitectureFileError for a file that is wrong.
    """
    return _load_spec(name, folder or data_path("architectures"))


@functools.lru_cache(maxsize=64)
def _load_spec(name: str, folder: Path) -> ArchSpec:
    known = architecture_names(folder)
    if name not in known:  # also keeps a name with slashes from a hostile file away from the file system
        raise UnsupportedModelError(f"the model has the architecture {name!r}, which edgeinfer does not have; supported: {', '.join(known)}")
    return read_spec(folder / f"{name}.toml")

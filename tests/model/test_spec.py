"""Architecture files: those that ship are valid, and a mistake in one is refused with the file and the key."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from edgeinfer.core.errors import ArchitectureFileError, UnsupportedModelError
from edgeinfer.core.paths import data_path
from edgeinfer.model.spec import ArchSpec, architecture_names, load_spec, read_spec

SMALLEST = 'name = "new"\nrope.pairing = "halves"\nblock.activation = "silu"\n'


def read(folder: Path, text: str, name: str = "new") -> ArchSpec:
    file = folder / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    return read_spec(file)


@pytest.mark.parametrize("name", architecture_names())
def test_every_file_that_ships_is_valid(name: str) -> None:
    assert load_spec(name).name == name


def test_the_folder_is_the_registry(tmp_path: Path) -> None:
    read(tmp_path, SMALLEST)
    read(tmp_path, SMALLEST.replace("new", "newer"), "newer")
    assert architecture_names(tmp_path) == ("new", "newer")
    assert load_spec("newer", tmp_path).rope_pairing == "halves"
    assert {"llama", "qwen2", "gemma3"} <= set(architecture_names())


def test_what_a_file_leaves_out_has_a_default(tmp_path: Path) -> None:
    spec = read(tmp_path, SMALLEST)
    assert (spec.pre_norms, spec.post_norms, spec.qk_norm, spec.windowed, spec.output_tied) == (True, False, False, False, "when_absent")
    assert spec.tensor_names["query"] == "blk.{layer}.attn_q"


def test_an_architecture_may_rename_tensors(tmp_path: Path) -> None:
    spec = read(tmp_path, SMALLEST + 'tensors.query = "blk.{layer}.q_proj"\n')
    assert spec.tensor_names["query"] == "blk.{layer}.q_proj"


def test_a_spec_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_spec("llama").qk_norm = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        load_spec("llama").tensor_names["query"] = "other"  # type: ignore[index]


@pytest.mark.parametrize(
    ("added", "key", "found"),
    [
        ("rope.paring = 1", "rope.paring", "unknown key"),
        ("speed = 3", "speed", "unknown key"),
        ("block.qk_norm = 1", "block.qk_norm", "1"),
        ('block.post_norms = "yes"', "block.post_norms", "'yes'"),
        ('output.tied = "perhaps"', "output.tied", "'perhaps'"),
        ('attention.scale = "large"', "attention.scale", "'large'"),
        ('attention.scale_by_layers.sixty = "inverse_sqrt_head_size"', "attention.scale_by_layers.sixty", "inverse_sqrt_head_size"),
        ('attention.scale_by_layers.6 = "large"', "attention.scale_by_layers.6", "'large'"),
        ("window.global_every = -1", "window.global_every", "-1"),
        ("window.global_every = 2.5", "window.global_every", "2.5"),
        ('window.rope_base = "10"', "window.rope_base", "'10'"),
        ("window.rope_base = inf", "window.rope_base", "inf"),
        ("window = 3", "window", "3"),
        ('keys.ignorable = "a"', "keys.ignorable", "'a'"),
        ("keys.required = [1]", "keys.required", "[1]"),
        ("keys.neutral.a = [1]", "keys.neutral.a", "[1]"),
        ('tensors.qwery = "blk.{layer}.q"', "tensors.qwery", "blk.{layer}.q"),
        ('tensors.query = "attn_q"', "tensors.query", "attn_q"),
        ('tensors.query = "blk.{layer}.{x}"', "tensors.query", "{x}"),
        ('tensors.query = "blk.{layer}.attn_k"', "tensors.query", "no other role"),
        ('tensors.output = "blk.{layer}.output"', "tensors.output", "blk.{layer}.output"),
    ],
)
def test_a_mistake_is_refused_with_file_and_key(added: str, key: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureFileError) as error:
        read(tmp_path, SMALLEST + added + "\n")
    assert str(tmp_path / "new.toml") in str(error.value)
    assert key in str(error.value)
    assert found in str(error.value)


@pytest.mark.parametrize("key", ["rope.pairing", "block.activation"])
def test_what_has_no_default_must_be_there(key: str, tmp_path: Path) -> None:
    text = "".join(line + "\n" for line in SMALLEST.splitlines() if not line.startswith(key))
    with pytest.raises(ArchitectureFileError, match=key):
        read(tmp_path, text)


def test_a_file_is_named_as_its_architecture(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureFileError, match="'other'"):
        read(tmp_path, SMALLEST, "other")


@pytest.mark.parametrize("text", ["name = ", "\udcff"])
def test_a_file_that_is_no_toml_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ArchitectureFileError, match="new.toml"):
        read_spec(file)


@pytest.mark.parametrize("name", ["mamba", "", "../architectures/llama", "Llama"])
def test_an_unknown_architecture_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="gemma3, llama, qwen2") as error:
        load_spec(name)
    assert repr(name) in str(error.value)


def test_the_decoder_names_no_architecture() -> None:
    package = Path(load_spec.__code__.co_filename).parent
    for file in sorted(package.glob("*.py")):
        code = "\n".join(line for line in file.read_text(encoding="utf-8").splitlines() if "llama.cpp" not in line)
        for name in architecture_names():
            assert f'"{name}"' not in code, f"{file.name} names the architecture {name}: what differs belongs into {data_path('architectures')}"

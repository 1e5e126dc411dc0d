"""Writes split models, as llama.cpp's gguf-split names and marks them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.gguf.writer import TensorData, typed, write_gguf


def split_path(folder: Path, stem: str, number: int, count: int) -> Path:
    """The path of a shard; `number` counts from 1, as names do."""
    return folder / f"{stem}-{number:05d}-of-{count:05d}.gguf"


def write_split(folder: Path, stem: str, metadata: Mapping[str, Any], tensors: Mapping[str, TensorData], count: int) -> list[Path]:
    """Write `count` shards that share the tensors out in order; the first holds all metadata, as gguf-split does it."""
    names = list(tensors)
    share = -(-len(names) // count)
    paths = []
    for number in range(count):
        keys: dict[str, Any] = dict(metadata) if number == 0 else {}
        keys["split.no"] = typed(number, "UINT16")
        keys["split.count"] = typed(count, "UINT16")
        keys["split.tensors.count"] = typed(len(names), "INT32")
        paths.append(split_path(folder, stem, number + 1, count))
        write_gguf(paths[-1], keys, {name: tensors[name] for name in names[number * share : (number + 1) * share]})
    return paths


def split_file(path: Path, folder: Path, stem: str, count: int) -> list[Path]:
    """Split an unsplit GGUF file."""
    with GGUFFile.open(path) as file:
        tensors = {name: TensorData(file.tensor_bytes(name), info.format_name, info.shape) for name, info in file.tensors.items()}
        keys = {
            key: typed(file.metadata[key], (declared.element or declared.kind).name) for key in file.metadata if (declared := file.value_type(key))
        }
        return write_split(folder, stem, keys, tensors, count)

"""The GGUF reader: `GGUFFile.open` maps a file, or all files of a split model, and gives metadata and tensor bytes without copying them.

Everything above that needs a model's file goes through here. Opening reads the header alone; tensor data is touched when it is asked for, and
`release` lets its pages leave memory again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.errors import ModelFileError, UnsupportedModelError
from edgeinfer.core.memory_map import map_file, release_pages
from edgeinfer.core.printable import printable, printable_path
from edgeinfer.gguf.metadata import Metadata
from edgeinfer.gguf.parse import ParsedFile, TensorInfo, parse_file
from edgeinfer.gguf.split import SplitSet, find_split_set
from edgeinfer.gguf.values import DeclaredType
from kernels_numba.formats import all_formats

__all__ = ["GGUFFile", "TensorInfo"]


class GGUFFile:
    """An open model: `metadata` and `tensors`, and the bytes of the tensors. Use `open`; a context manager.

    For a split model the metadata is that of the first shard, and `tensors` holds those of all shards. Arrays handed out are read-only views of the
    mapped file: they stay valid after `close` (the mapping lives as long as its views do), but a file that somebody shortens while it is mapped
    ends the process when the lost part is read.
    """

    def __init__(self, paths: tuple[str, ...], mappings: list[mmap.mmap], parsed: list[ParsedFile], tensors: dict[str, TensorInfo]) -> None:
        """Not for callers: see `open`."""
        self.path = paths[0]
        self.paths = paths
        self.version = parsed[0].version
        self.alignment = parsed[0].alignment
        self.metadata: Metadata = parsed[0].metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self._mappings: list[mmap.mmap] | None = mappings

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Open a GGUF file, or the whole split model that it is a shard of.

        ModelNotFoundError: no such file. ModelFileError: not a GGUF file, damaged, cut off, or a split set that is incomplete or contradicts itself.
        UnsupportedModelError: well-formed, but a version, byte order or type that is not read.
        """
        text = os.fspath(path)
        with _closed_on_error() as mappings:
            parsed = _map_and_parse(text, 0, mappings)
            split = find_split_set(text, parsed.metadata)
            if split is None:
                return cls((text,), mappings, [parsed], parsed.tensors)
            opened = mappings.pop()
            shards: list[ParsedFile] = []
            for number, shard_path in enumerate(split.paths):
                if number == split.opened:
                    mappings.append(opened)
                    placed = {name: replace(info, shard=number) for name, info in parsed.tensors.items()}
                    shards.append(replace(parsed, tensors=placed))
                else:
                    shards.append(_map_and_parse(shard_path, number, mappings))
            return cls(split.paths, mappings, shards, _merge(split, shards))

    def value_type(self, key: str) -> DeclaredType:
        """The type that the file declares for a metadata key (`DeclaredType(kind, element)`); a KeyError if there is no such key."""
        return self.metadata.declared_type(key)

    def tensor_bytes(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor: a read-only view, uint8[nbytes]. A KeyError if there is no such tensor."""
        info = self.tensors[name]
        return np.frombuffer(self._mapping(info.shard), np.uint8, info.nbytes, info.offset)

    def tensor_blocks(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor by rows: a read-only view, uint8[rows, row_bytes]. A KeyError if there is no such tensor."""
        info = self.tensors[name]
        return self.tensor_bytes(name).reshape(info.rows, info.nbytes // info.rows)

    def release(self, name: str, start: int = 0, length: int | None = None) -> int:
        """Let the whole pages of a tensor, or of `length` bytes of it from `start`, leave memory (reading them again reads the file again); the bytes
        given back."""
        info = self.tensors[name]
        return release_pages(self._mapping(info.shard), info.offset + start, info.nbytes - start if length is None else length)

    def refuse_unsupported_formats(self) -> None:
        """An UnsupportedModelError that names the tensors whose type edgeinfer cannot compute with; nothing if there is none."""
        strangers = [info for info in self.tensors.values() if info.format_name not in all_formats()]
        if not strangers:
            return
        first = strangers[0]
        more = f" (and {len(strangers) - 1} more)" if len(strangers) > 1 else ""
        kinds = ", ".join(sorted({info.format_name for info in strangers}))
        raise UnsupportedModelError(
            f"{printable_path(self.path)}: tensor '{printable(first.name)}'{more} has a type that edgeinfer cannot compute with: {kinds}; get the "
            f"model in one of {', '.join(all_formats())}"
        )

    def close(self) -> None:
        """Give the mappings back. Views that are still alive keep theirs until they are gone. A second call does nothing."""
        mappings, self._mappings = self._mappings, None
        _close_all(mappings or [])

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._mappings is None

    def _mapping(self, shard: int) -> mmap.mmap:
        if self._mappings is None:
            raise ValueError(f"{printable_path(self.path)} was closed")
        return self._mappings[shard]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({printable_path(self.path)}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"


def _map_and_parse(path: str, shard: int, mappings: list[mmap.mmap]) -> ParsedFile:
    mapping = map_file(path)
    if mapping is not None:
        mappings.append(mapping)
    return parse_file(mapping, path, shard)


def _merge(split: SplitSet, shards: list[ParsedFile]) -> dict[str, TensorInfo]:
    """All tensors of a split model, once its shards agree with each other."""
    tensors: dict[str, TensorInfo] = {}
    for number, (path, shard) in enumerate(zip(split.paths, shards, strict=True)):
        split.check_shard(number, shard.metadata)
        for name, info in shard.tensors.items():
            if name in tensors:
                raise ModelFileError(
                    f"the tensor '{printable(name)}' is both in {printable_path(split.paths[tensors[name].shard])} and in {printable_path(path)}; "
                    "the files do not belong together, fetch them again"
                )
            tensors[name] = info
    split.check_total(len(tensors), shards[0].metadata)
    return tensors


@contextmanager
def _closed_on_error() -> Iterator[list[mmap.mmap]]:
    mappings: list[mmap.mmap] = []
    try:
        yield mappings
    except BaseException:
        _close_all(mappings)
        raise


def _close_all(mappings: list[mmap.mmap]) -> None:
    for mapping in mappings:
        try:
            mapping.close()
        except BufferError:  # a NumPy view is alive and holds the mapping; it goes with the view
            pass

"""The metadata of a GGUF file as a read-only mapping that reads values from the mapped file when they are asked for. `parse` fills it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.gguf.values import NUMPY_DTYPES, DeclaredType, StringArray, ValueType

MetadataValue = bool | int | float | str | NDArray[Any] | StringArray

_SCALARS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


@dataclass(frozen=True)
class Entry:
    """Where a value lies: `offset` of its first byte, and `count` of bytes (STRING) or elements (ARRAY)."""

    declared: DeclaredType
    offset: int
    count: int
    strings: StringArray | None = None


class Metadata(Mapping[str, MetadataValue]):
    """Keys in the order of the file. Scalars and strings are Python values, numeric arrays are read-only NumPy views of the mapped file (BOOL: bool),
    arrays of strings are `StringArray`s. Strings are decoded as UTF-8 with "surrogateescape".
    """

    def __init__(self, file: mmap.mmap, entries: Mapping[str, Entry]) -> None:
        self._file = file
        self._entries = entries

    def __getitem__(self, key: str) -> MetadataValue:
        entry = self._entries[key]
        kind = entry.declared.kind
        if kind is ValueType.STRING:
            return self._file[entry.offset : entry.offset + entry.count].decode("utf-8", "surrogateescape")
        if kind is not ValueType.ARRAY:
            value: bool | int | float = _SCALARS[kind].unpack_from(self._file, entry.offset)[0]
            return value
        if entry.strings is not None:
            return entry.strings
        assert entry.declared.element is not None
        return np.frombuffer(self._file, NUMPY_DTYPES[entry.declared.element], entry.count, entry.offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def declared_type(self, key: str) -> DeclaredType:
        """The type that the file declares for a key; a KeyError if there is none."""
        return self._entries[key].declared

    def __repr__(self) -> str:
        return f"Metadata of {len(self)} keys"

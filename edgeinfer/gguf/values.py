"""The value types of GGUF metadata: their numbers, sizes and NumPy dtypes, and lazy arrays of strings. Reader and writer build on it."""

from __future__ import annotations

import enum
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray


class ValueType(enum.IntEnum):
    """`gguf_metadata_value_type` of the GGUF specification."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# Little-endian dtypes of everything with a fixed size. A BOOL is a byte that must be 0 or 1.
NUMPY_DTYPES: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True)
class DeclaredType:
    """The type that a file declares for a key: `element` is the type of an array's elements, and None for anything else."""

    kind: ValueType
    element: ValueType | None = None

    def __str__(self) -> str:
        return self.kind.name if self.element is None else f"ARRAY[{self.element.name}]"


class StringArray(Sequence[str]):
    """An array of strings that stays in the file: only where each string starts and ends is in memory.

    Strings are decoded as UTF-8; bytes that are none become lone surrogates ("surrogateescape"), so that nothing is lost. `raw` gives the bytes.
    Once the file is closed, reading raises a ValueError.
    """

    def __init__(self, file: mmap.mmap, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """starts, ends: int64[count], the byte range of each string in the file."""
        self._file = file
        self._starts = starts
        self._ends = ends

    def __len__(self) -> int:
        return len(self._starts)

    def raw(self, index: int) -> bytes:
        """The bytes of one string; an IndexError outside -len ... len - 1."""
        return self._file[int(self._starts[index]) : int(self._ends[index])]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringArray: ...
    def __getitem__(self, index: int | slice) -> str | StringArray:
        if isinstance(index, slice):
            return StringArray(self._file, self._starts[index], self._ends[index])
        return self.raw(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def to_bytes_list(self) -> list[bytes]:
        """All strings as bytes, many times faster than one by one."""
        if not len(self):
            return []
        first = int(self._starts.min())
        region = self._file[first : int(self._ends.max())]
        return [region[start:end] for start, end in zip((self._starts - first).tolist(), (self._ends - first).tolist(), strict=True)]

    def to_list(self) -> list[str]:
        """All strings, decoded, many times faster than one by one."""
        raw = self.to_bytes_list()
        try:
            return list(map(bytes.decode, raw))  # strict, and twice as fast: nearly every vocabulary is valid UTF-8
        except UnicodeDecodeError:
            return [text.decode("utf-8", "surrogateescape") for text in raw]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"StringArray of {len(self)} strings"

"""GGUF files built byte by byte, valid or not, independently of the writer. Remembers where each number lies, for the fuzzer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)


@dataclass
class RawFile:
    """Bytes that grow; `numbers` are (offset, size) of every count, length, type, dimension and offset that was appended."""

    data: bytearray = field(default_factory=bytearray)
    numbers: list[tuple[int, int]] = field(default_factory=list)

    def u32(self, value: int) -> RawFile:
        self.numbers.append((len(self.data), 4))
        self.data += struct.pack("<I", value)
        return self

    def u64(self, value: int) -> RawFile:
        self.numbers.append((len(self.data), 8))
        self.data += struct.pack("<Q", value)
        return self

    def raw(self, data: bytes) -> RawFile:
        self.data += data
        return self

    def string(self, text: str | bytes) -> RawFile:
        encoded = text.encode() if isinstance(text, str) else text
        return self.u64(len(encoded)).raw(encoded)

    def header(self, tensors: int, keys: int, version: int = 3) -> RawFile:
        return self.raw(b"GGUF").u32(version).u64(tensors).u64(keys)

    def key(self, name: str | bytes, kind: int, payload: bytes) -> RawFile:
        """A key with a value of fixed size, or with any bytes as its value."""
        return self.string(name).u32(kind).raw(payload)

    def text_key(self, name: str, text: str | bytes) -> RawFile:
        return self.string(name).u32(STRING).string(text)

    def array_key(self, name: str, element: int, count: int, payload: bytes) -> RawFile:
        return self.string(name).u32(ARRAY).u32(element).u64(count).raw(payload)

    def strings_key(self, name: str, texts: Sequence[str | bytes]) -> RawFile:
        self.string(name).u32(ARRAY).u32(STRING).u64(len(texts))
        for text in texts:
            self.string(text)
        return self

    def tensor(self, name: str | bytes, dimensions: Sequence[int], ggml_type: int, offset: int) -> RawFile:
        self.string(name).u32(len(dimensions))
        for length in dimensions:
            self.u64(length)
        return self.u32(ggml_type).u64(offset)

    def pad(self, alignment: int = 32) -> RawFile:
        return self.raw(bytes(-len(self.data) % alignment))


def one_tensor(dimensions: Sequence[int], ggml_type: int = 0, offset: int = 0, data: bytes = bytes(256), name: str | bytes = "t") -> bytes:
    """A file without metadata and with one tensor."""
    return bytes(RawFile().header(1, 0).tensor(name, dimensions, ggml_type, offset).pad().raw(data).data)


def one_key(key: RawFile, count: int = 1) -> bytes:
    """A file without tensors, whose metadata is what `key` holds."""
    return bytes(RawFile().header(0, count).raw(bytes(key.data)).data)

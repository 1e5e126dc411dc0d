"""Parses the header of one GGUF file: its metadata and the table of its tensors. Only the reader calls it.

Nothing here trusts the file. Every length is compared with the bytes that are left before it is used, sizes are unbounded Python integers, and no
value makes the parser recurse or allocate more than a small multiple of the file's own size. Layout: the GGUF specification in ggml's docs/gguf.md.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from array import array
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from edgeinfer.core.errors import ModelFileError, UnsupportedModelError
from edgeinfer.core.printable import printable, printable_path
from edgeinfer.gguf.diagnosis import HEADER_BYTES, describe_stranger, part_hint
from edgeinfer.gguf.metadata import Entry, Metadata
from edgeinfer.gguf.values import NUMPY_DTYPES, DeclaredType, StringArray, ValueType
from kernels_numba.formats.ggml_types import GGML_TYPES, REMOVED_GGML_TYPES

DEFAULT_ALIGNMENT = 32
# Far above anything that exists, and low enough that a hostile file is refused within seconds.
MOST_KEYS = 1 << 16
MOST_TENSORS = 1 << 18
MOST_STRINGS = 1 << 22
LONGEST_KEY = (1 << 16) - 1
LONGEST_TENSOR_NAME = 256
MOST_DIMENSIONS = 4
LARGEST_ALIGNMENT = 1 << 20

# Both a key and a tensor's description begin with a length of 8 bytes and have a number of 4 bytes at least.
_SMALLEST_RECORD = 12
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: `shape` in NumPy's order (rows first; the reverse of GGML's `ne`), `offset` of its first byte in the file of shard `shard`.

    `format_name` is GGML's name of its type, which may be one that edgeinfer cannot compute with.
    """

    name: str
    shape: tuple[int, ...]
    format_name: str
    ggml_type: int
    offset: int
    nbytes: int
    shard: int

    @property
    def rows(self) -> int:
        """The number of rows: the product of all dimensions but the last."""
        return self.elements // self.shape[-1]

    @property
    def elements(self) -> int:
        """The number of elements."""
        product = 1
        for length in self.shape:
            product *= length
        return product


@dataclass(frozen=True)
class ParsedFile:
    """What one file declares. `data_offset` is where its tensor data begins."""

    version: int
    alignment: int
    data_offset: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


class _Cursor:
    """A position in the mapped file that refuses to pass its end."""

    def __init__(self, file: mmap.mmap, shown: str, hint: str) -> None:
        self.file = file
        self.size = len(file)
        self.position = 0
        self.shown = shown
        self.hint = hint

    def fail(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.shown}: {problem}")

    def need(self, count: int, what: str) -> int:
        """Step over `count` bytes and return where they begin."""
        start = self.position
        left = self.size - start
        if count > left:
            raise self.fail(
                f"{what} needs {count} bytes, but only {left} of the file's {self.size} bytes are left; the file is damaged or its download was "
                f"interrupted, fetch it again{self.hint}"
            )
        self.position = start + count
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.file, self.need(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.file, self.need(8, what))[0]
        return value

    def text(self, what: str, longest: int) -> str:
        length = self.u64(f"the length of {what}")
        if longest < length <= self.size - self.position:
            raise self.fail(f"{what} is {length} bytes long, expected at most {longest}; the file is damaged")
        start = self.need(length, what)
        return self.file[start : self.position].decode("utf-8", "surrogateescape")


def parse_file(file: mmap.mmap | None, path: str, shard: int) -> ParsedFile:
    """Parse a mapped file (None: an empty one). `path` is for messages, `shard` is recorded in the tensors.

    A ModelFileError says what is wrong with the file; an UnsupportedModelError names what a well-formed file has that we do not read.
    """
    shown = printable_path(path)
    name = PurePath(path).name
    stranger = describe_stranger(b"" if file is None else file[:512], 0 if file is None else len(file), name)
    if file is None or stranger is not None:
        raise ModelFileError(f"{shown} {stranger}")
    cursor = _Cursor(file, shown, part_hint(name))
    cursor.position = 4
    version = cursor.u32("the version")
    _check_version(version, shown)
    tensor_count = cursor.u64("the number of tensors")
    key_count = cursor.u64("the number of metadata keys")
    left = cursor.size - HEADER_BYTES
    for count, most, what in ((key_count, MOST_KEYS, "metadata keys"), (tensor_count, MOST_TENSORS, "tensors")):
        if count * _SMALLEST_RECORD > left or count > most:
            raise cursor.fail(f"the header announces {count} {what}, which {left} bytes cannot hold; the file is damaged, fetch it again")

    entries: dict[str, Entry] = {}
    for index in range(key_count):
        key, entry = _parse_entry(cursor, index)
        if key in entries:
            raise cursor.fail(f"the metadata key '{printable(key)}' appears twice; the file is damaged or was written by a faulty tool")
        entries[key] = entry
    metadata = Metadata(file, entries)
    alignment = _alignment(cursor, metadata)

    declarations = [_parse_tensor(cursor, index) for index in range(tensor_count)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = _place_tensors(cursor, declarations, data_offset, alignment, shard)
    return ParsedFile(version, alignment, data_offset, metadata, tensors)


def _check_version(version: int, shown: str) -> None:
    if version in (2, 3):
        return
    if version & 0xFFFF == 0 and version != 0:
        raise UnsupportedModelError(
            f"{shown} is a big-endian GGUF file; edgeinfer reads little-endian files: convert it with gguf-py's gguf_convert_endian"
        )
    if version == 1:
        raise UnsupportedModelError(f"{shown} is a GGUF file of version 1, which is obsolete; versions 2 and 3 are read: convert the model again")
    raise UnsupportedModelError(f"{shown} says that it is a GGUF file of version {version}; versions 2 and 3 are read")


def _parse_entry(cursor: _Cursor, index: int) -> tuple[str, Entry]:
    key = cursor.text(f"metadata key number {index}", LONGEST_KEY)
    if not key:
        raise cursor.fail(f"metadata key number {index} is empty; the file is damaged")
    what = f"the value of metadata key '{printable(key)}'"
    kind = _value_type(cursor, cursor.u32(f"the type of {what}"), what)
    if kind is ValueType.ARRAY:
        return key, _parse_array(cursor, what)
    if kind is ValueType.STRING:
        length = cursor.u64(f"the length of {what}")
        return key, Entry(DeclaredType(kind), cursor.need(length, what), length)
    start = cursor.need(NUMPY_DTYPES[kind].itemsize, what)
    if kind is ValueType.BOOL and cursor.file[start] > 1:
        raise cursor.fail(f"{what} is a BOOL with the byte {cursor.file[start]}, expected 0 or 1; the file is damaged")
    return key, Entry(DeclaredType(kind), start, 1)


def _value_type(cursor: _Cursor, number: int, what: str) -> ValueType:
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.fail(f"{what} has the unknown value type {number}, expected 0 to 12; the file is damaged") from None


def _parse_array(cursor: _Cursor, what: str) -> Entry:
    element = _value_type(cursor, cursor.u32(f"the element type of {what}"), what)
    count = cursor.u64(f"the number of elements of {what}")
    if element is ValueType.ARRAY:
        raise UnsupportedModelError(f"{cursor.shown}: {what} is an array of arrays, which edgeinfer does not read (nor does llama.cpp)")
    declared = DeclaredType(ValueType.ARRAY, element)
    if element is ValueType.STRING:
        return _parse_strings(cursor, declared, count, what)
    start = cursor.need(count * NUMPY_DTYPES[element].itemsize, f"{what} ({count} elements)")
    if element is ValueType.BOOL and count and int(np.frombuffer(cursor.file, np.uint8, count, start).max()) > 1:
        raise cursor.fail(f"{what} is an array of BOOL with a byte other than 0 and 1; the file is damaged")
    return Entry(declared, start, count)


def _parse_strings(cursor: _Cursor, declared: DeclaredType, count: int, what: str) -> Entry:
    """Walk over the strings once, to find where each ends. Vocabularies have 262,144 of them: the loop holds no more than it must."""
    left = cursor.size - cursor.position
    if count * 8 > left or count > MOST_STRINGS:
        raise cursor.fail(f"{what} announces {count} strings, which {left} bytes cannot hold (and {MOST_STRINGS} is the limit); the file is damaged")
    begin = position = cursor.position
    ends = array("q")
    append, read_length, file = ends.append, _U64.unpack_from, cursor.file
    try:
        for _ in range(count):
            position += 8 + read_length(file, position)[0]
            append(position)
    except (struct.error, OverflowError):  # the previous length led beyond the end of the file, or of what an int64 holds
        position = cursor.size + 1
    if position > cursor.size:
        raise cursor.fail(
            f"{what} is cut off: string number {max(len(ends) - 1, 0)} of {count} leads beyond the file's {cursor.size} bytes; the file is damaged "
            f"or its download was interrupted, fetch it again{cursor.hint}"
        )
    cursor.position = position
    end_offsets = np.frombuffer(ends, np.int64) if count else np.empty(0, np.int64)
    start_offsets = np.empty(count, np.int64)
    if count:
        start_offsets[0] = begin + 8
        start_offsets[1:] = end_offsets[:-1] + 8
    return Entry(declared, begin, count, StringArray(file, start_offsets, end_offsets))


def _alignment(cursor: _Cursor, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    declared = metadata.declared_type(key)
    if declared.kind is not ValueType.UINT32:
        raise cursor.fail(f"{key} has the type {declared}, expected UINT32; the file is damaged or was written by a faulty tool")
    alignment = metadata[key]
    assert isinstance(alignment, int)
    if alignment < 8 or alignment > LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail(f"{key} is {alignment}, expected a power of two from 8 to {LARGEST_ALIGNMENT}; the file is damaged")
    return alignment


@dataclass(frozen=True)
class _Declaration:
    """A tensor as the header describes it: `offset` counts from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    nbytes: int
    offset: int


def _parse_tensor(cursor: _Cursor, index: int) -> _Declaration:
    name = cursor.text(f"the name of tensor number {index}", LONGEST_TENSOR_NAME)
    if not name:
        raise cursor.fail(f"tensor number {index} has no name; the file is damaged")
    what = f"tensor '{printable(name)}'"
    dimensions = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise cursor.fail(f"{what} has n_dims = {dimensions}, expected 1 to {MOST_DIMENSIONS}; the file is damaged")
    lengths = [cursor.u64(f"dimension {axis} of {what}") for axis in range(dimensions)]
    if min(lengths) < 1:
        raise cursor.fail(f"{what} has the dimensions {lengths}, each must be at least 1; the file is damaged")
    number = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    if number in REMOVED_GGML_TYPES:
        raise UnsupportedModelError(
            f"{cursor.shown}: {what} has the type {REMOVED_GGML_TYPES[number]} ({number}), which llama.cpp has removed; get the model in another "
            "quantization"
        )
    if number not in GGML_TYPES:
        raise UnsupportedModelError(f"{cursor.shown}: {what} has the unknown ggml type {number}; the file is damaged or newer than this edgeinfer")
    ggml_type = GGML_TYPES[number]
    if lengths[0] % ggml_type.block_elements:
        raise cursor.fail(
            f"{what} has rows of {lengths[0]} elements, expected a multiple of the {ggml_type.block_elements} elements of a {ggml_type.name} block; "
            "the file is damaged"
        )
    nbytes = ggml_type.block_bytes
    for length in (lengths[0] // ggml_type.block_elements, *lengths[1:]):
        nbytes *= length
    return _Declaration(name, tuple(reversed(lengths)), number, nbytes, offset)


def _place_tensors(cursor: _Cursor, declarations: list[_Declaration], data_offset: int, alignment: int, shard: int) -> dict[str, TensorInfo]:
    """Check that every tensor lies inside the file and none over another, and give them their places."""
    needed = max((data_offset + tensor.offset + tensor.nbytes for tensor in declarations), default=0)
    tensors: dict[str, TensorInfo] = {}
    for tensor in declarations:
        what = f"tensor '{printable(tensor.name)}'"
        offset = data_offset + tensor.offset
        if tensor.name in tensors:
            raise cursor.fail(f"{what} appears twice; the file is damaged or was written by a faulty tool")
        if tensor.offset % alignment:
            raise cursor.fail(f"{what} has the offset {tensor.offset}, expected a multiple of the alignment {alignment}; the file is damaged")
        if offset + tensor.nbytes > cursor.size:
            raise cursor.fail(
                f"{what} needs the bytes {offset} to {offset + tensor.nbytes} (shape {tensor.shape}), but the file ends at {cursor.size}: it has "
                f"{cursor.size} of {needed} bytes, so it is damaged or its download was interrupted; fetch it again{cursor.hint}"
            )
        tensors[tensor.name] = TensorInfo(
            tensor.name, tensor.shape, GGML_TYPES[tensor.ggml_type].name, tensor.ggml_type, offset, tensor.nbytes, shard
        )
    in_order = sorted(tensors.values(), key=lambda info: info.offset)
    for before, after in itertools.pairwise(in_order):
        if before.offset + before.nbytes > after.offset:
            raise cursor.fail(f"the tensors '{printable(before.name)}' and '{printable(after.name)}' overlap; the file is damaged")
    return tensors

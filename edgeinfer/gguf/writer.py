"""Our own small GGUF writer, for `quantize`, tests and tools: `write_gguf(path, metadata, tensors)`.

Types of metadata follow from the Python values unless `typed` says otherwise:
bool -> BOOL; int -> UINT32 where it fits, else INT32, INT64 or UINT64, the first that fits; float -> FLOAT32; str and bytes -> STRING; NumPy scalars
and arrays -> their own type; list and tuple -> ARRAY of BOOL, of STRING, of FLOAT32 (if any element is a float), or of INT32, INT64 or UINT64 (the
first that holds all). An empty list needs `typed`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.errors import EdgeInferError, InvalidRequestError
from edgeinfer.core.printable import printable, printable_path
from edgeinfer.gguf.diagnosis import MAGIC
from edgeinfer.gguf.parse import DEFAULT_ALIGNMENT, LARGEST_ALIGNMENT, MOST_DIMENSIONS
from edgeinfer.gguf.values import NUMPY_DTYPES, StringArray, ValueType
from kernels_numba.formats import format_by_name
from kernels_numba.formats.ggml_types import GGML_TYPES, GGMLType

_TYPES_BY_NAME: dict[str, GGMLType] = {ggml_type.name: ggml_type for ggml_type in GGML_TYPES.values()}
_WHOLE_TYPES = (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64)
_WHOLE_ELEMENT_TYPES = (ValueType.INT32, ValueType.INT64, ValueType.UINT64)


@dataclass(frozen=True)
class Typed:
    """A metadata value with the type it is written as: of the value itself, or of the elements if it is a sequence or an array. See `typed`."""

    value: Any
    type: ValueType


@dataclass(frozen=True)
class TensorData:
    """A tensor to write: its bytes in GGML's type `format_name`, and its shape in elements, in NumPy's order (rows first)."""

    data: NDArray[Any]
    format_name: str
    shape: tuple[int, ...]


def typed(value: Any, type_name: str) -> Typed:
    """A value to be written with a type by name ("UINT32"); for a list or an array it is the type of the elements. Values are range-checked."""
    if type_name not in ValueType.__members__ or type_name == "ARRAY":
        raise InvalidRequestError(f"unknown metadata type {type_name!r}; known are those of ValueType: UINT8, INT32, FLOAT32, BOOL, STRING ...")
    return Typed(value, ValueType[type_name])


def quantized(values: NDArray[Any], format_name: str) -> TensorData:
    """Float values of any shape as a tensor in a format, by the format's reference `encode`.

    The values must be finite unless the format is a float format; the last dimension must be a whole number of blocks.
    """
    chosen = format_by_name(format_name)
    values = np.asarray(values, dtype=np.float32)
    if chosen.quantized and not np.isfinite(values).all():
        raise InvalidRequestError(f"values to be quantized to {format_name} hold an infinity or a NaN")
    if values.ndim < 1 or values.shape[-1] % chosen.block_elements:
        raise InvalidRequestError(f"shape {values.shape} cannot be {format_name}: its rows must be a multiple of {chosen.block_elements} elements")
    rows = chosen.encode_rows(values.reshape(-1, values.shape[-1]))
    return TensorData(rows.reshape(-1), format_name, tuple(int(length) for length in values.shape))


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorData],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    version: int = 3,
) -> None:
    """Write a GGUF file; it appears under its name only when it is complete (a temporary file beside it, then a rename).

    metadata and tensors keep their order. An alignment other than 32 is recorded as `general.alignment`, which `metadata` must not contain itself.
    An InvalidRequestError says what cannot be written; an EdgeInferError that the disk refused.
    """
    if version not in (2, 3):
        raise InvalidRequestError(f"cannot write GGUF version {version}; 2 and 3 are supported")
    if alignment < 8 or alignment > LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise InvalidRequestError(f"cannot write with alignment {alignment}; expected a power of two from 8 to {LARGEST_ALIGNMENT}")
    if "general.alignment" in metadata:
        raise InvalidRequestError("general.alignment is written from the argument `alignment`; remove it from the metadata")
    if alignment != DEFAULT_ALIGNMENT:
        metadata = {**metadata, "general.alignment": typed(alignment, "UINT32")}
    header, payloads = _header(metadata, tensors, alignment, version)
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    temporary = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                _write_padded(file, header, alignment)
                for payload in payloads:
                    _write_padded(file, payload, alignment)
            os.replace(temporary, os.path.join(folder, name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise EdgeInferError(f"{printable_path(path)} cannot be written: {error.strerror or error}") from error


def _write_padded(file: BinaryIO, data: bytes | memoryview, alignment: int) -> None:
    file.write(data)
    file.write(bytes(-len(data) % alignment))


def _header(metadata: Mapping[str, Any], tensors: Mapping[str, TensorData], alignment: int, version: int) -> tuple[bytes, list[memoryview]]:
    parts = [MAGIC, struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _entry(key, value)]
    payloads: list[memoryview] = []
    offset = 0
    for name, tensor in tensors.items():
        number, payload = _payload(name, tensor)
        dimensions = [int(length) for length in reversed(tensor.shape)]
        parts += [_string(name), struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, number, offset)]
        payloads.append(payload)
        offset += -(-len(payload) // alignment) * alignment
    return b"".join(parts), payloads


def _payload(name: str, tensor: TensorData) -> tuple[int, memoryview]:
    """The type number and the bytes of a tensor, once they fit its shape."""
    what = f"tensor '{printable(name)}'"
    if tensor.format_name not in _TYPES_BY_NAME:
        raise InvalidRequestError(f"{what} has the unknown type {tensor.format_name!r}; known are {', '.join(_TYPES_BY_NAME)}")
    ggml_type = _TYPES_BY_NAME[tensor.format_name]
    shape = tensor.shape
    if not 1 <= len(shape) <= MOST_DIMENSIONS or min(shape) < 1 or shape[-1] % ggml_type.block_elements:
        raise InvalidRequestError(
            f"{what} cannot have the shape {shape}: 1 to {MOST_DIMENSIONS} dimensions of at least 1, rows a multiple of {ggml_type.block_elements}"
        )
    expected = ggml_type.block_bytes
    for length in (*shape[:-1], shape[-1] // ggml_type.block_elements):
        expected *= length
    payload = np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8)
    if payload.nbytes != expected:
        raise InvalidRequestError(f"{what} of shape {shape} and type {ggml_type.name} takes {expected} bytes, but {payload.nbytes} were given")
    return ggml_type.number, payload.data


def _string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _entry(key: str, value: Any) -> bytes:
    """Type and value of a metadata key, as bytes."""
    chosen = value if isinstance(value, Typed) else _infer(key, value)
    if isinstance(chosen.value, (list, tuple, np.ndarray, StringArray)):
        return struct.pack("<IIQ", ValueType.ARRAY, chosen.type, len(chosen.value)) + _elements(key, chosen.value, chosen.type)
    return struct.pack("<I", chosen.type) + _elements(key, [chosen.value], chosen.type)


def _elements(key: str, values: Sequence[Any] | NDArray[Any], kind: ValueType) -> bytes:
    if kind is ValueType.STRING:
        strings = values.to_bytes_list() if isinstance(values, StringArray) else values
        if not all(isinstance(text, (str, bytes)) for text in strings):
            raise InvalidRequestError(f"the metadata key '{printable(key)}' holds something else than strings")
        return b"".join(_string(text) for text in strings)
    dtype = NUMPY_DTYPES[kind]
    try:
        array = np.asarray(values)
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise InvalidRequestError(f"the metadata key '{printable(key)}' cannot be written as {kind.name}: it is no flat list of numbers")
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(f"the metadata key '{printable(key)}' cannot be written as {kind.name}: {error}") from error
    if dtype.kind != "f" and not np.array_equal(converted, array):
        raise InvalidRequestError(f"the metadata key '{printable(key)}' has a value that {kind.name} does not hold")
    return converted.tobytes()


def _infer(key: str, value: Any) -> Typed:
    """The type that a plain Python or NumPy value is written as; the rules are in this module's first paragraph."""
    if isinstance(value, np.generic):
        value = np.asarray(value)[np.newaxis]
        return Typed(value[0], _type_of_dtype(key, value.dtype))
    if isinstance(value, np.ndarray):
        return Typed(value, _type_of_dtype(key, value.dtype))
    if isinstance(value, StringArray):
        return Typed(value, ValueType.STRING)
    elements = list(value) if isinstance(value, (list, tuple)) else [value]
    whole = _WHOLE_ELEMENT_TYPES if isinstance(value, (list, tuple)) else _WHOLE_TYPES
    if elements and all(isinstance(element, (str, bytes)) for element in elements):
        return Typed(value, ValueType.STRING)
    if elements and all(isinstance(element, bool) for element in elements):
        return Typed(value, ValueType.BOOL)
    if elements and all(isinstance(element, (int, float)) and not isinstance(element, bool) for element in elements):
        if any(isinstance(element, float) for element in elements):
            return Typed(value, ValueType.FLOAT32)
        for kind in whole:
            bits = 8 * NUMPY_DTYPES[kind].itemsize
            lowest, highest = (0, 2**bits - 1) if NUMPY_DTYPES[kind].kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            if lowest <= min(elements) and max(elements) <= highest:
                return Typed(value, kind)
    raise InvalidRequestError(f"the metadata key '{printable(key)}' has a value that no GGUF type holds: {value!r:.80}; an empty list needs `typed`")


def _type_of_dtype(key: str, dtype: np.dtype[Any]) -> ValueType:
    for kind, known in NUMPY_DTYPES.items():
        if known == dtype:
            return kind
    raise InvalidRequestError(f"the metadata key '{printable(key)}' has the NumPy type {dtype}, which GGUF does not know")

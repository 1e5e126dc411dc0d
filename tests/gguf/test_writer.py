"""The writer: what it writes is what gguf-py and our reader read, types follow the rules, and nothing half-written appears under the name."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import edgeinfer.gguf.writer as writer
from edgeinfer.core.errors import EdgeInferError, InvalidRequestError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.gguf.values import StringArray
from edgeinfer.gguf.writer import TensorData, quantized, typed, write_gguf
from kernels_numba.formats import all_formats

VALUES: list[tuple[Any, str, Any]] = [
    (True, "BOOL", True),
    (0, "UINT32", 0),
    (2**32 - 1, "UINT32", 2**32 - 1),
    (-1, "INT32", -1),
    (2**32, "INT64", 2**32),
    (-(2**63), "INT64", -(2**63)),
    (2**64 - 1, "UINT64", 2**64 - 1),
    (0.5, "FLOAT32", 0.5),
    (float("inf"), "FLOAT32", float("inf")),
    ("ü", "STRING", "ü"),
    (b"\xff", "STRING", "\udcff"),
    ("\udcff", "STRING", "\udcff"),
    (np.int8(-3), "INT8", -3),
    (np.float64(0.1), "FLOAT64", 0.1),
    (np.bool_(True), "BOOL", True),
    ([True, False], "ARRAY[BOOL]", [True, False]),
    ([1, -2], "ARRAY[INT32]", [1, -2]),
    ([2**31], "ARRAY[INT64]", [2**31]),
    ([2**63], "ARRAY[UINT64]", [2**63]),
    ([1, 0.5], "ARRAY[FLOAT32]", [1.0, 0.5]),
    ((1, 2), "ARRAY[INT32]", [1, 2]),
    (["a", "", b"\xfe"], "ARRAY[STRING]", ["a", "", "\udcfe"]),
    (np.arange(3, dtype=np.uint16), "ARRAY[UINT16]", [0, 1, 2]),
    (typed(7, "UINT8"), "UINT8", 7),
    (typed(1, "FLOAT64"), "FLOAT64", 1.0),
    (typed([], "FLOAT32"), "ARRAY[FLOAT32]", []),
    (typed([], "STRING"), "ARRAY[STRING]", []),
    (typed([1, 2], "FLOAT32"), "ARRAY[FLOAT32]", [1.0, 2.0]),
    (typed(np.array([1, 2]), "UINT64"), "ARRAY[UINT64]", [1, 2]),
]


def test_values_come_back_with_their_types(tmp_path: Path) -> None:
    write_gguf(tmp_path / "file.gguf", {f"key{number}": value for number, (value, _, _) in enumerate(VALUES)}, {})
    reference = gguf.GGUFReader(tmp_path / "file.gguf")
    with GGUFFile.open(tmp_path / "file.gguf") as file:
        for number, (_, type_name, expected) in enumerate(VALUES):
            key = f"key{number}"
            assert str(file.value_type(key)) == type_name
            found: Any = file.metadata[key]
            if isinstance(expected, list):
                assert isinstance(found, (np.ndarray, StringArray))
                found = found.tolist() if isinstance(found, np.ndarray) else found.to_list()
            assert found == expected
            field = reference.get_field(key)
            assert field is not None
            kinds = [kind.name for kind in field.types[:2]]
            if expected != []:
                assert (f"ARRAY[{kinds[1]}]" if kinds[0] == "ARRAY" else kinds[0]) == type_name
            if "udc" not in ascii(expected):  # gguf-py reads only valid UTF-8
                assert field.contents() == expected


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_tensors_of_every_format_are_where_gguf_py_finds_them(tmp_path: Path, version: int, alignment: int) -> None:
    values = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    tensors = {name: quantized(values, name) for name in all_formats()}
    tensors["one"] = quantized(values[0, :5], "F32")
    tensors["deep"] = quantized(values.reshape(1, 3, 2, 256), "Q6_K")
    write_gguf(tmp_path / "file.gguf", {"general.architecture": "llama"}, tensors, alignment=alignment, version=version)
    reference = gguf.GGUFReader(tmp_path / "file.gguf")
    with GGUFFile.open(tmp_path / "file.gguf") as file:
        assert file.alignment == reference.alignment == alignment
        assert file.version == version
        assert [tensor.name for tensor in reference.tensors] == list(file.tensors) == list(tensors)
        for theirs in reference.tensors:
            ours = file.tensors[theirs.name]
            assert ours.shape == tuple(reversed(theirs.shape.tolist())) == tensors[theirs.name].shape
            assert (ours.format_name, ours.ggml_type) == (theirs.tensor_type.name, int(theirs.tensor_type))
            assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
            assert np.array_equal(file.tensor_bytes(theirs.name), theirs.data.reshape(-1).view(np.uint8))
            assert ours.offset % alignment == 0


def test_what_we_read_can_be_written_again(tmp_path: Path) -> None:
    values = np.arange(512, dtype=np.float32).reshape(2, 256)
    write_gguf(tmp_path / "a.gguf", {"words": ["a", "b"], "numbers": [1.5, 2], "n": 4}, {"t": quantized(values, "Q4_K")})
    with GGUFFile.open(tmp_path / "a.gguf") as file:
        tensors = {name: TensorData(file.tensor_bytes(name), info.format_name, info.shape) for name, info in file.tensors.items()}
        write_gguf(tmp_path / "b.gguf", dict(file.metadata), tensors)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize(
    "value",
    [[], None, {}, object(), [1, "a"], [[1]], [True, 2], 2**64, -(2**63) - 1, 1j, np.array(["a"]), np.zeros((2, 2)), np.float16(1)]
    + [typed(256, "UINT8"), typed(-1, "UINT32"), typed(1.5, "INT32"), typed("x", "UINT32"), typed([1, 2**40], "INT32"), typed(2, "BOOL")]
    + [typed([1], "STRING"), typed(2**70, "UINT64"), typed([[1]], "INT32"), typed(None, "UINT8")],
    ids=repr,
)
def test_values_that_cannot_be_written(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidRequestError, match="'bad key'"):
        write_gguf(tmp_path / "file.gguf", {"bad key": value}, {})
    assert list(tmp_path.iterdir()) == []


def test_other_refusals(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    with pytest.raises(InvalidRequestError, match="unknown metadata type 'ARRAY'"):
        typed([1], "ARRAY")
    with pytest.raises(InvalidRequestError, match="version 1"):
        write_gguf(path, {}, {}, version=1)
    for alignment in (0, 4, 48, 2**21):
        with pytest.raises(InvalidRequestError, match=f"alignment {alignment}"):
            write_gguf(path, {}, {}, alignment=alignment)
    with pytest.raises(InvalidRequestError, match="general.alignment"):
        write_gguf(path, {"general.alignment": 64}, {})
    for tensor, pattern in (
        (TensorData(np.zeros(4, np.uint8), "Q9_9", (1,)), "unknown type 'Q9_9'"),
        (TensorData(np.zeros(4, np.uint8), "F32", ()), "shape"),
        (TensorData(np.zeros(4, np.uint8), "F32", (1, 1, 1, 1, 1)), "shape"),
        (TensorData(np.zeros(0, np.uint8), "F32", (0,)), "shape"),
        (TensorData(np.zeros(18, np.uint8), "Q4_0", (16,)), "multiple of 32"),
        (TensorData(np.zeros(7, np.uint8), "F32", (2,)), "takes 8 bytes, but 7 were given"),
    ):
        with pytest.raises(InvalidRequestError, match=pattern):
            write_gguf(path, {}, {"t": tensor})
    with pytest.raises(InvalidRequestError, match="multiple of 256"):
        quantized(np.zeros((2, 128), np.float32), "Q4_K")
    with pytest.raises(InvalidRequestError, match="infinity or a NaN"):
        quantized(np.full(32, np.nan, np.float32), "Q8_0")
    assert np.isnan(quantized(np.full(32, np.nan, np.float32), "F32").data.view(np.float32)).all()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.gguf"
    write_gguf(path, {"a": 1}, {})
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_write_padded", full)
    with pytest.raises(EdgeInferError, match="file.gguf cannot be written: No space left on device"):
        write_gguf(path, {"a": 2}, {})
    monkeypatch.setattr(writer, "_write_padded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, {"a": 2}, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_writing_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(EdgeInferError, match="cannot be written"):
        write_gguf(tmp_path / "no" / "such" / "folder.gguf", {}, {})
    with pytest.raises(EdgeInferError, match="cannot be written"):
        write_gguf(tmp_path, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_umask_is_honoured_and_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        write_gguf("file.gguf", {}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "file.gguf").stat().st_mode & 0o777 == 0o640

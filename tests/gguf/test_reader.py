"""The reader on files that are as they should be: every value type, layout, version and alignment; views, laziness, closing and releasing."""

from __future__ import annotations

import gc
import struct
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.core.errors import UnsupportedModelError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.gguf.values import DeclaredType, StringArray, ValueType
from edgeinfer.gguf.writer import TensorData, quantized, typed, write_gguf
from tests.gguf import raw as kinds
from tests.gguf.raw import RawFile, one_key, one_tensor

# value type, struct code, two values, one of them extreme
SCALARS = [
    (kinds.UINT8, "<B", 7, 255),
    (kinds.INT8, "<b", 7, -128),
    (kinds.UINT16, "<H", 7, 65535),
    (kinds.INT16, "<h", 7, -32768),
    (kinds.UINT32, "<I", 7, 2**32 - 1),
    (kinds.INT32, "<i", 7, -(2**31)),
    (kinds.FLOAT32, "<f", 0.5, -(2.0**100)),
    (kinds.UINT64, "<Q", 7, 2**64 - 1),
    (kinds.INT64, "<q", 7, -(2**63)),
    (kinds.FLOAT64, "<d", 0.1, -1e300),
    (kinds.BOOL, "<?", False, True),
]


def _open(tmp_path: Path, data: bytes) -> GGUFFile:
    path = tmp_path / "file.gguf"
    path.write_bytes(data)
    return GGUFFile.open(path)


@pytest.mark.parametrize(("kind", "code", "first", "second"), SCALARS, ids=lambda value: str(value))
def test_numbers_and_arrays_of_numbers(tmp_path: Path, kind: int, code: str, first: object, second: object) -> None:
    raw = RawFile().key("a", kind, struct.pack(code, first)).key("b", kind, struct.pack(code, second))
    raw.array_key("c", kind, 3, struct.pack(code, first) + struct.pack(code, second) * 2).array_key("d", kind, 0, b"").text_key("e", "after")
    with _open(tmp_path, one_key(raw, 5)) as file:
        assert (file.metadata["a"], file.metadata["b"]) == (first, second)
        assert type(file.metadata["a"]) is type(first)
        assert file.value_type("a") == DeclaredType(ValueType(kind))
        array = file.metadata["c"]
        assert isinstance(array, np.ndarray)
        assert array.tolist() == [first, second, second]
        assert array.dtype.itemsize == struct.calcsize(code)
        assert not array.flags.writeable
        assert file.value_type("c") == DeclaredType(ValueType.ARRAY, ValueType(kind))
        assert str(file.value_type("c")) == f"ARRAY[{ValueType(kind).name}]"
        assert len(file.metadata["d"]) == 0  # type: ignore[arg-type]
        assert file.metadata["e"] == "after"
        assert list(file.metadata) == ["a", "b", "c", "d", "e"]


def test_strings_keep_every_byte(tmp_path: Path) -> None:
    texts: list[str | bytes] = ["", "plain", "ü你😀", b"\xff\xfe", b"nul\0inside", "x" * 70_000]
    with _open(tmp_path, one_key(RawFile().text_key("text", b"caf\xc3\xa9 \xe9").strings_key("list", texts), 2)) as file:
        assert file.metadata["text"] == "café \udce9"
        strings = file.metadata["list"]
        assert isinstance(strings, StringArray)
        expected = [text.encode() if isinstance(text, str) else text for text in texts]
        assert strings.to_bytes_list() == expected == [strings.raw(index) for index in range(len(strings))]
        assert strings.to_list() == list(strings) == [text.decode("utf-8", "surrogateescape") for text in expected]
        assert strings[-1] == strings[5] == "x" * 70_000
        assert list(strings[1:4]) == list(strings)[1:4]
        assert strings == list(strings)
        assert strings != list(strings)[1:]
        assert "plain" in strings
        with pytest.raises(IndexError):
            strings.raw(6)


def test_an_empty_array_of_strings(tmp_path: Path) -> None:
    with _open(tmp_path, one_key(RawFile().strings_key("list", []).text_key("after", "x"), 2)) as file:
        strings = file.metadata["list"]
        assert isinstance(strings, StringArray)
        assert (len(strings), strings.to_list(), strings.to_bytes_list()) == (0, [], [])
        assert file.metadata["after"] == "x"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 16, 32, 64])
def test_every_alignment_with_the_header_ending_everywhere(tmp_path: Path, version: int, alignment: int) -> None:
    """Three small tensors come back whatever the residue of the header's end is, and whatever follows the data."""
    names = "abc"
    for residue in range(64):
        raw = RawFile().header(3, 2, version).key("general.alignment", kinds.UINT32, struct.pack("<I", alignment)).text_key("fill", "x" * residue)
        for index, name in enumerate(names):
            raw.tensor(name, [4], 0, index * max(alignment, 16))
        raw.pad(alignment)
        for index in range(3):
            raw.raw(struct.pack("<4f", *(4 * index + offset for offset in (1, 2, 3, 4))))
            if index < 2:
                raw.pad(alignment)
        with _open(tmp_path, bytes(raw.data) + b"strange"[: residue % 8]) as file:
            assert file.version == version
            assert file.alignment == alignment
            for index, name in enumerate(names):
                assert file.tensor_bytes(name).view("<f4").tolist() == [4 * index + offset for offset in (1, 2, 3, 4)]


def test_shapes_rows_and_formats(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 256, dtype=np.float32).reshape(2, 3, 256)
    tensors = {"cube": quantized(values, "Q4_K"), "line": quantized(values[0, 0], "F16"), "four": quantized(values[None], "F32")}
    write_gguf(tmp_path / "file.gguf", {}, tensors)
    with GGUFFile.open(tmp_path / "file.gguf") as file:
        cube, line = file.tensors["cube"], file.tensors["line"]
        assert (cube.shape, cube.format_name, cube.ggml_type, cube.nbytes, cube.rows, cube.elements) == ((2, 3, 256), "Q4_K", 12, 6 * 144, 6, 1536)
        assert (line.shape, line.format_name, line.rows, line.shard) == ((256,), "F16", 1, 0)
        assert file.tensors["four"].shape == (1, 2, 3, 256)
        assert file.tensor_blocks("cube").shape == (6, 144)
        assert file.tensor_blocks("line").shape == (1, 512)
        assert np.array_equal(file.tensor_blocks("cube").reshape(-1), file.tensor_bytes("cube"))
        assert np.array_equal(file.tensor_blocks("four").view("<f4").reshape(values.shape), values)
        assert not file.tensor_bytes("cube").flags.writeable
        assert (tmp_path / "file.gguf").read_bytes()[line.offset : line.offset + line.nbytes] == file.tensor_bytes("line").tobytes()
        with pytest.raises(KeyError):
            file.tensor_bytes("nothing")


def test_a_type_we_cannot_compute_with_opens_and_is_refused_by_name(tmp_path: Path) -> None:
    tensors = {"good": quantized(np.zeros(32, np.float32), "F32"), "odd": TensorData(np.zeros(2 * 84, np.uint8), "Q2_K", (2, 256))}
    tensors["tiny"] = TensorData(np.zeros(66, np.uint8), "IQ2_XXS", (256,))
    write_gguf(tmp_path / "file.gguf", {}, tensors)
    with GGUFFile.open(tmp_path / "file.gguf") as file:
        assert file.tensors["odd"].format_name == "Q2_K"
        assert file.tensor_blocks("odd").shape == (2, 84)
        with pytest.raises(UnsupportedModelError, match=r"'odd' \(and 1 more\).*IQ2_XXS, Q2_K.*Q4_K"):
            file.refuse_unsupported_formats()
    write_gguf(tmp_path / "fine.gguf", {}, {"good": tensors["good"]})
    with GGUFFile.open(tmp_path / "fine.gguf") as file:
        file.refuse_unsupported_formats()


def test_views_outlive_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "file.gguf", {"list": [1, 2, 3], "words": ["a", "b"]}, {"t": quantized(np.arange(8, dtype=np.float32), "F32")})
    file = GGUFFile.open(tmp_path / "file.gguf")
    view, numbers, words = file.tensor_bytes("t"), file.metadata["list"], file.metadata["words"]
    file.close()
    file.close()
    assert file.closed
    gc.collect()
    assert view.view("<f4").tolist() == list(range(8))
    assert numbers.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="closed"):
        file.tensor_bytes("t")
    with pytest.raises(ValueError, match="closed"):
        file.release("t")
    del view, numbers
    assert isinstance(words, StringArray)


def test_strings_of_a_closed_file_say_so(tmp_path: Path) -> None:
    file = _open(tmp_path, one_key(RawFile().strings_key("words", ["a"])))
    words = file.metadata["words"]
    assert isinstance(words, StringArray)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        words.raw(0)


def test_closing_gives_the_mapping_back(tmp_path: Path) -> None:
    write_gguf(tmp_path / "mapped-here.gguf", {}, {"t": quantized(np.zeros(4096, np.float32), "F32")})
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc/self/maps on this system")
    file = GGUFFile.open(tmp_path / "mapped-here.gguf")
    assert "mapped-here" in maps.read_text()
    view = file.tensor_bytes("t")
    file.close()
    assert "mapped-here" in maps.read_text()
    del view
    file = GGUFFile.open(tmp_path / "mapped-here.gguf")
    file.close()
    gc.collect()
    assert "mapped-here" not in maps.read_text()


def test_releasing_lets_pages_leave_and_reading_brings_them_back(tmp_path: Path) -> None:
    size = 1 << 22
    tensors = {"head": quantized(np.ones(100, np.float32), "F32"), "t": quantized(np.ones(size // 4, np.float32), "F32")}
    write_gguf(tmp_path / "large-one.gguf", {}, tensors)
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("no /proc/self/smaps on this system")

    def resident() -> int:
        part = smaps.read_text().split("large-one.gguf")[1]
        return int(part.split("Rss:")[1].split()[0]) * 1024

    with GGUFFile.open(tmp_path / "large-one.gguf") as file:
        assert float(file.tensor_bytes("t").view("<f4").sum()) == size / 4
        assert resident() >= size
        released = file.release("t")
        assert size - 8192 <= released <= size
        assert resident() < size / 2
        assert float(file.tensor_bytes("t").view("<f4").sum()) == size / 4
        assert file.release("head") == 0


def test_a_file_without_tensors(tmp_path: Path) -> None:
    with _open(tmp_path, bytes(RawFile().header(0, 0).data)) as file:
        assert (dict(file.metadata), dict(file.tensors)) == ({}, {})
        with pytest.raises(KeyError):
            file.value_type("general.architecture")


def test_tensors_may_lie_in_any_order(tmp_path: Path) -> None:
    raw = RawFile().header(2, 0).tensor("late", [4], 0, 32).tensor("early", [4], 0, 0).pad()
    raw.raw(struct.pack("<4f", 1, 1, 1, 1)).pad().raw(struct.pack("<4f", 2, 2, 2, 2))
    with _open(tmp_path, bytes(raw.data)) as file:
        assert list(file.tensors) == ["late", "early"]
        assert file.tensor_bytes("late").view("<f4").tolist() == [2] * 4
        assert file.tensor_bytes("early").view("<f4").tolist() == [1] * 4


def test_mappings_cannot_be_changed(tmp_path: Path) -> None:
    with _open(tmp_path, one_tensor([4])) as file:
        with pytest.raises(TypeError):
            file.tensors["new"] = file.tensors["t"]  # type: ignore[index]
        with pytest.raises(TypeError):
            file.metadata["new"] = 1  # type: ignore[index]
        assert "1 tensors" in repr(file)


def test_a_scalar_typed_by_the_writer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "file.gguf", {"a": typed(3, "UINT8"), "b": typed([1, 2], "FLOAT64"), "c": typed(["x"], "STRING")}, {})
    with GGUFFile.open(tmp_path / "file.gguf") as file:
        assert [str(file.value_type(key)) for key in "abc"] == ["UINT8", "ARRAY[FLOAT64]", "ARRAY[STRING]"]

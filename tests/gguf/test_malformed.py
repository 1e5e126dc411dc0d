"""Files that are damaged, hostile, or no GGUF files at all: each is refused quickly, in one printable line that names what is wrong."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.core.errors import EdgeInferError, ModelFileError, UnsupportedModelError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.gguf.writer import quantized, write_gguf
from tests.gguf.raw import ARRAY, BOOL, STRING, UINT8, UINT32, RawFile, one_key, one_tensor

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 2**64 - 1


def _nested(depth: int) -> bytes:
    return one_key(RawFile().string("deep").u32(ARRAY).raw(struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", UINT8, 1) + b"\1"))


# name: (bytes, error class, what the message must contain)
HOSTILE: dict[str, tuple[bytes, type[EdgeInferError], str]] = {
    "dimension 0": (one_tensor([1, 0]), ModelFileError, r"tensor 't' has the dimensions \[1, 0\]"),
    "product of dimensions wraps": (one_tensor([2**32, 2**32]), ModelFileError, f"tensor 't' needs the bytes 96 to {96 + 2**66}"),
    "largest dimensions": (one_tensor([LARGEST] * 4), ModelFileError, "tensor 't' needs"),
    "a million dimensions": (bytes(RawFile().header(1, 0).string("t").u32(1_000_000).data), ModelFileError, "n_dims = 1000000"),
    "no dimensions": (one_tensor([]), ModelFileError, "n_dims = 0"),
    "five dimensions": (one_tensor([1] * 5), ModelFileError, "n_dims = 5"),
    "a row of part of a block": (one_tensor([16], 2), ModelFileError, "rows of 16 elements, expected a multiple of the 32 elements of a Q4_0 block"),
    "unknown type": (one_tensor([4], 99), UnsupportedModelError, "tensor 't' has the unknown ggml type 99"),
    "largest type": (one_tensor([4], 2**32 - 1), UnsupportedModelError, "unknown ggml type 4294967295"),
    "removed type": (one_tensor([32], 31), UnsupportedModelError, "Q4_0_4_4"),
    "offset beyond the end": (one_tensor([4], offset=2**63), ModelFileError, "tensor 't' needs the bytes"),
    "offset near the largest": (one_tensor([4], offset=LARGEST - 31), ModelFileError, "tensor 't' needs the bytes"),
    "offset off the alignment": (one_tensor([4], offset=8), ModelFileError, "offset 8, expected a multiple of the alignment 32"),
    "tensor name too long": (one_tensor([4], name="n" * 300), ModelFileError, "300 bytes long"),
    "tensor without a name": (one_tensor([4], name=""), ModelFileError, "no name"),
    "two tensors of one name": (
        bytes(RawFile().header(2, 0).tensor("t", [4], 0, 0).tensor("t", [4], 0, 32).pad().raw(bytes(64)).data),
        ModelFileError,
        "tensor 't' appears twice",
    ),
    "overlapping tensors": (
        bytes(RawFile().header(2, 0).tensor("a", [16], 0, 0).tensor("b", [16], 0, 32).pad().raw(bytes(96)).data),
        ModelFileError,
        "'a' and 'b' overlap",
    ),
    "longest key": (one_key(RawFile().u64(LARGEST)) + bytes(16), ModelFileError, f"key number 0 needs {LARGEST} bytes, but only"),
    "key of 100,000 bytes": (one_key(RawFile().text_key("k" * 100_000, "v")), ModelFileError, "100000 bytes long"),
    "empty key": (one_key(RawFile().text_key("", "v")), ModelFileError, "key number 0 is empty"),
    "string of 32 GiB": (one_key(RawFile().string("k").u32(STRING).u64(2**35)), ModelFileError, f"'k' needs {2**35} bytes"),
    "array of 2**63 bytes": (one_key(RawFile().array_key("k", UINT8, 2**63, b"")), ModelFileError, f"{2**63} elements"),
    "array of 2**63 strings": (one_key(RawFile().array_key("k", STRING, 2**63, b"")), ModelFileError, f"{2**63} strings"),
    "strings that lead beyond the end": (
        one_key(RawFile().string("k").u32(ARRAY).u32(STRING).u64(3).string("a").u64(1000).raw(b"b" * 40)),
        ModelFileError,
        "string number 1 of 3",
    ),
    "strings that lead beyond int64": (
        one_key(RawFile().string("k").u32(ARRAY).u32(STRING).u64(3).string("a").u64(LARGEST).raw(b"b" * 40)),
        ModelFileError,
        "'k' is cut off",
    ),
    "the last string is too long": (
        one_key(RawFile().string("k").u32(ARRAY).u32(STRING).u64(2).string("a").u64(9)),
        ModelFileError,
        "string number 1 of 2",
    ),
    "2**63 keys": (bytes(RawFile().header(0, 2**63).data), ModelFileError, f"announces {2**63} metadata keys"),
    "2**63 tensors": (bytes(RawFile().header(2**63, 0).data), ModelFileError, f"announces {2**63} tensors"),
    "more keys than there are": (one_key(RawFile().text_key("k", "v" * 40), 3), ModelFileError, "length of metadata key number 1"),
    "the same key twice": (one_key(RawFile().text_key("k", "v").text_key("k", "w"), 2), ModelFileError, "'k' appears twice"),
    "unknown value type": (one_key(RawFile().key("k", 13, bytes(8))), ModelFileError, "unknown value type 13"),
    "unknown element type": (one_key(RawFile().array_key("k", 13, 1, bytes(8))), ModelFileError, "unknown value type 13"),
    "BOOL of 2": (one_key(RawFile().key("k", BOOL, b"\2")), ModelFileError, "BOOL with the byte 2"),
    "array of BOOL with a 3": (one_key(RawFile().array_key("k", BOOL, 2, b"\1\3")), ModelFileError, "array of BOOL"),
    "array of arrays": (_nested(1), UnsupportedModelError, "'deep' is an array of arrays"),
    "arrays nested 5,000 deep": (_nested(5000), UnsupportedModelError, "'deep' is an array of arrays"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedModelError, "big-endian"),
    "version 0": (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), UnsupportedModelError, "version 0"),
    "version 1": (b"GGUF" + struct.pack("<IIIQ", 1, 0, 0, 0), UnsupportedModelError, "version 1, which is obsolete"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), UnsupportedModelError, "version 4; versions 2 and 3 are read"),
    **{
        f"alignment {alignment}": (
            one_key(RawFile().key("general.alignment", UINT32, struct.pack("<I", alignment))),
            ModelFileError,
            f"general.alignment is {alignment}",
        )
        for alignment in (0, 1, 4, 24, 2**31, 2**32 - 1)
    },
    "alignment of another type": (one_key(RawFile().key("general.alignment", UINT8, b"\x20")), ModelFileError, "type UINT8, expected UINT32"),
    "alignment as a text": (one_key(RawFile().text_key("general.alignment", "32")), ModelFileError, "type STRING, expected UINT32"),
}

STRANGERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "stub": (b"GGUF", "stub of 4 bytes"),
    "header cut off": (b"GGUF\3\0\0\0" + bytes(15), "stub of 23 bytes"),
    "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
    "html with a byte order mark": (b"\xef\xbb\xbf<HTML>", "HTML page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 98362432\n", r"Git LFS pointer.*98362432 bytes"),
    "json": (b'{"error": "gated"}', "JSON document"),
    "safetensors": (struct.pack("<Q", 40) + b'{"__metadata__":{}}', "safetensors"),
    "zip": (b"PK\3\4" + bytes(60), "zip archive"),
    "gzip": (b"\x1f\x8b\x08" + bytes(60), "gzip"),
    "old format": (b"tjgg" + bytes(60), "GGJT"),
    "zeros": (bytes(4096), "zero bytes"),
    "text": (b"hello, I am a model", "starts with 'hell' where 'GGUF' was expected"),
    "noise": (b"\x8f\x01\x02\x1b[2J" + bytes(range(64)), r"starts with '\\x8f\\x01\\x02\\x1b'"),
}


def _refused(path: Path, error: type[EdgeInferError]) -> str:
    with pytest.raises(error) as caught:
        GGUFFile.open(path)
    message = str(caught.value)
    assert type(caught.value) is error
    assert message.isprintable(), "one line that any terminal can show"
    assert path.name in message
    assert len(message) < 1000
    return message


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    data, error, pattern = HOSTILE[name]
    (tmp_path / "hostile.gguf").write_bytes(data)
    message = _refused(tmp_path / "hostile.gguf", error)
    assert re.search(pattern, message), message


@pytest.mark.parametrize("name", STRANGERS)
def test_what_is_no_gguf_file_is_described(name: str, tmp_path: Path) -> None:
    data, pattern = STRANGERS[name]
    (tmp_path / "x.gguf").write_bytes(data)
    message = _refused(tmp_path / "x.gguf", ModelFileError)
    assert re.search(pattern, message), message


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(one_tensor([4], 99, name=b"\x1b[31mred\xff\n"))
    assert r"'\x1b[31mred\udcff\n'" in _refused(tmp_path / "x.gguf", UnsupportedModelError)


def _valid(path: Path) -> bytes:
    tensor = quantized(np.ones((4, 64), np.float32), "Q8_0")
    write_gguf(path, {"general.architecture": "llama", "words": ["a", "b"] * 20}, {"first": tensor, "middle": tensor, "last": tensor})
    return path.read_bytes()


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    """A file that ends early is refused wherever it ends, before any tensor is read."""
    data = _valid(tmp_path / "whole.gguf")
    with GGUFFile.open(tmp_path / "whole.gguf") as file:
        end = max(info.offset + info.nbytes for info in file.tensors.values())
        start = min(info.offset for info in file.tensors.values())
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data)
    for length in range(end - 1, -1, -1):
        os.truncate(cut, length)
        message = _refused(cut, ModelFileError)
        if length > start:
            assert f"it has {length} of {end} bytes" in message
        if length == end - 1:
            assert "tensor 'last' needs" in message


def test_a_tensor_moved_beyond_the_end(tmp_path: Path) -> None:
    """The last tensor's offset says 32 bytes before the end of the file."""
    data = _valid(tmp_path / "whole.gguf")
    with GGUFFile.open(tmp_path / "whole.gguf") as file:
        last = file.tensors["last"]
        data_start = min(info.offset for info in file.tensors.values())
    old = struct.pack("<IQ", last.ggml_type, last.offset - data_start)
    assert data.count(old) == 1
    moved = (len(data) - 32 - data_start) // 32 * 32
    (tmp_path / "moved.gguf").write_bytes(data.replace(old, struct.pack("<IQ", last.ggml_type, moved)))
    message = _refused(tmp_path / "moved.gguf", ModelFileError)
    assert f"tensor 'last' needs the bytes {data_start + moved} to {data_start + moved + last.nbytes}" in message
    assert f"the file ends at {len(data)}" in message


@pytest.mark.parametrize("part", ["part1of2", "part00", "part_2", "split-aa", "001"])
def test_a_part_of_a_file_says_that_parts_must_be_joined(part: str, tmp_path: Path) -> None:
    data = _valid(tmp_path / "whole.gguf")
    for half in (data[: len(data) // 2], data[len(data) // 2 :].replace(b"GGUF", b"____")):
        path = tmp_path / f"x.gguf.{part}"
        path.write_bytes(b"\x55" + half[1:] if not half.startswith(b"GGUF") else half)
        assert "join the parts" in _refused(path, ModelFileError)


_UNDER_A_LIMIT = """
import json, resource, sys, time
from edgeinfer.core.errors import EdgeInferError
from edgeinfer.gguf.reader import GGUFFile
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
answers = {}
for path in sys.argv[1:]:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    try:
        GGUFFile.open(path).close()
        answer = "opened"
    except EdgeInferError as error:
        answer = type(error).__name__
    answers[path] = [answer, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]
print(json.dumps(answers))
"""


def test_hostile_files_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """Under an address-space limit of 1 GiB above what the imports need, each refusal takes under a second and a few MB."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc/self/statm on this system")
    paths = []
    for number, (data, _, _) in enumerate(HOSTILE.values()):
        paths.append(tmp_path / f"{number}.gguf")
        paths[-1].write_bytes(data)
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", _UNDER_A_LIMIT, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    for path, (_, error, _) in zip(paths, HOSTILE.values(), strict=True):
        name, seconds, kilobytes = json.loads(answer.stdout)[str(path)]
        assert name == error.__name__
        assert seconds < 1
        assert kilobytes < 8192


def test_a_file_of_ten_million_junk_strings_is_refused_at_once(tmp_path: Path) -> None:
    """An array of strings above any vocabulary's size is refused before its strings are walked over, though the file is large enough for them."""
    path = tmp_path / "many.gguf"
    head = bytes(RawFile().header(0, 1).string("k").u32(ARRAY).u32(STRING).u64(10_000_000).data)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 80_000_000)
    assert "4194304 is the limit" in _refused(path, ModelFileError)

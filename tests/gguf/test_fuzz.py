"""A seeded fuzzer that knows the format: whatever is done to a file, the reader opens it or raises an error of ours.

Every mutation is derived from its number alone, so a failure names the one to repeat. EDGEINFER_FUZZ_SCALE multiplies how many are run.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.core.errors import EdgeInferError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.gguf.values import StringArray
from tests.gguf import raw as kinds
from tests.gguf.raw import RawFile

MUTATIONS = int(4000 * float(os.environ.get("EDGEINFER_FUZZ_SCALE", "1")))
INTERESTING = (0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 30, 31, 32, 33, 39, 63, 64, 127, 128, 255, 256, 4096, 65535, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
INTERESTING_LONG = (*INTERESTING, 2**32, 2**35, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 8, 2**64 - 1)


def _everything(version: int, alignment: int) -> RawFile:
    """A file with every value type, several formats, and split keys that say that it is whole."""
    numbers = {
        kinds.UINT8: "<B", kinds.INT8: "<b", kinds.UINT16: "<H", kinds.INT16: "<h", kinds.UINT32: "<I", kinds.INT32: "<i", kinds.FLOAT32: "<f",
        kinds.BOOL: "<?", kinds.UINT64: "<Q", kinds.INT64: "<q", kinds.FLOAT64: "<d",
    }  # fmt: skip
    file = RawFile().header(4, 2 * len(numbers) + 7, version)
    file.text_key("general.architecture", "llama")
    file.key("general.alignment", kinds.UINT32, struct.pack("<I", alignment))
    for kind, code in numbers.items():
        file.key(f"scalar.{kind}", kind, struct.pack(code, 1))
        file.array_key(f"array.{kind}", kind, 3, struct.pack(code, 1) * 3)
    file.strings_key("tokenizer.ggml.tokens", ["<unk>", "a", "", b"\xff\xfe", "ü" * 20])
    file.strings_key("empty", [])
    file.key("split.no", kinds.UINT16, struct.pack("<H", 0))
    file.key("split.count", kinds.UINT16, struct.pack("<H", 1))
    file.key("split.tensors.count", kinds.INT32, struct.pack("<i", 4))
    sizes = []
    offset = 0
    for name, dimensions, ggml_type, size in (("f32", [8, 2], 0, 64), ("q4_0", [32, 3], 2, 54), ("q4_k", [256], 12, 144), ("f16", [2, 2, 2, 2], 1, 32)):
        file.tensor(name, dimensions, ggml_type, offset)
        sizes.append(size)
        offset += -(-size // alignment) * alignment
    for size in sizes:
        file.pad(alignment).raw(bytes(range(size % 251)) + bytes(size - size % 251))
    return file


def _minimal() -> RawFile:
    return RawFile().header(1, 1).text_key("k", "v").tensor("t", [4], 0, 0).pad().raw(bytes(16))


BASES = [_everything(3, 32), _everything(2, 8), _everything(3, 64), _minimal()]


def _mutate(number: int) -> bytes:
    chance = random.Random(number)
    base = chance.choice(BASES)
    data = bytearray(base.data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        kind = chance.randrange(8)
        if kind <= 2:
            offset, size = chance.choice(base.numbers)
            if size == 4:
                new = chance.choice(INTERESTING)
            else:
                new = chance.choice((*INTERESTING_LONG, len(data), len(data) - offset - 8, max(len(data) - offset - 7, 0)))
            data[offset : offset + size] = (new & (2 ** (8 * size) - 1)).to_bytes(size, "little")
        elif kind == 3:
            data[chance.randrange(len(data))] = chance.randrange(256)
        elif kind == 4:
            del data[chance.randrange(len(data)) + 1 :]
        elif kind == 5:
            start = chance.randrange(len(data))
            del data[start : start + chance.randrange(1, 32)]
        elif kind == 6:
            start = chance.randrange(len(data))
            data[start:start] = data[chance.randrange(len(data)) :][: chance.randrange(1, 64)]
        else:
            other = chance.choice(BASES).data
            start = chance.randrange(len(data))
            data[start : start + 48] = other[chance.randrange(len(other)) :][:48]
        if not data:
            break
    return bytes(data)


def _use(file: GGUFFile) -> Iterator[object]:
    """Touch everything that a file offers."""
    for key in file.metadata:
        yield str(file.value_type(key))
        value = file.metadata[key]
        if isinstance(value, StringArray):
            yield value.to_list()
            yield value.to_bytes_list()
            if len(value):
                yield value.raw(-1)
        elif isinstance(value, np.ndarray):
            yield value.tolist()
    for name, info in file.tensors.items():
        yield int(file.tensor_bytes(name).sum())
        assert file.tensor_blocks(name).shape[0] == info.rows
        yield file.release(name)
    yield repr(file)


def _outcome(path: Path) -> str:
    try:
        with GGUFFile.open(path) as file:
            for _ in _use(file):
                pass
            file.refuse_unsupported_formats()
        return "opened"
    except EdgeInferError as error:
        assert str(error).isprintable()
        return type(error).__name__


def test_the_bases_open(tmp_path: Path) -> None:
    for base in BASES:
        (tmp_path / "base.gguf").write_bytes(base.data)
        assert _outcome(tmp_path / "base.gguf") == "opened"


@pytest.mark.parametrize("share", range(4))
def test_mutated_files_open_or_are_refused(share: int, tmp_path: Path) -> None:
    path = tmp_path / "fuzz-00001-of-00002.gguf"
    outcomes: dict[str, int] = {}
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for number in range(share, MUTATIONS, 4):
            data = _mutate(number)
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
            try:
                outcome = _outcome(path)
            except Exception as error:
                pytest.fail(f"mutation {number}: {type(error).__name__}: {error}\n{data!r}")
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    finally:
        os.close(descriptor)
    # Were all refused, or none, the mutations would test nothing.
    assert outcomes["opened"] > MUTATIONS // 100
    assert outcomes["ModelFileError"] > MUTATIONS // 20
    assert set(outcomes) <= {"opened", "ModelFileError", "UnsupportedModelError"}

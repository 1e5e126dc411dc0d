"""Split models: any shard opens the set, and sets that are incomplete, renamed or contradictory are refused by name before data is read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.core.errors import EdgeInferError, ModelFileError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.gguf.writer import TensorData, quantized, typed, write_gguf
from tests.support.split_models import split_file, split_path, write_split
from tests.support.tiny_models import tiny_llama

TENSORS = {f"t{number}": quantized(np.full((4, 64), number, np.float32), "Q8_0") for number in range(7)}
METADATA = {"general.architecture": "llama", "words": ["a", "b"]}


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return write_split(tmp_path, "m", METADATA, TENSORS, 3)


def _rewrite(path: Path, **changes: Any) -> None:
    """Write a shard again with other split keys (`no`, `count`, `tensors`); None leaves one out."""
    with GGUFFile.open(path) as file:
        shard = int(path.name.split("-")[1]) - 1
        held = {name: TensorData(file.tensor_bytes(name).copy(), i.format_name, i.shape) for name, i in file.tensors.items() if i.shard == shard}
    keys: dict[str, Any] = dict(METADATA) if shard == 0 else {}
    values = {"no": shard, "count": 3, "tensors": len(TENSORS), **changes}
    for short, key in (("no", "split.no"), ("count", "split.count"), ("tensors", "split.tensors.count")):
        if values[short] is not None:
            keys[key] = values[short]
    write_gguf(path, keys, held)


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_shard_opens_the_set(shards: list[Path], opened: int) -> None:
    with GGUFFile.open(shards[opened]) as file:
        assert file.paths == tuple(map(str, shards))
        assert file.metadata["general.architecture"] == "llama"
        assert list(file.tensors) == list(TENSORS)
        assert [info.shard for info in file.tensors.values()] == [0, 0, 0, 1, 1, 1, 2]
        for name, tensor in TENSORS.items():
            assert np.array_equal(file.tensor_bytes(name), tensor.data)
            file.release(name)


def test_a_relative_path_and_links_as_a_hub_cache_makes_them(shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub cache holds links of the right names to files named by their digests."""
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs").mkdir()
    for number, shard in enumerate(shards):
        shutil.move(shard, tmp_path / "blobs" / f"digest{number}")
        (tmp_path / "snapshot" / shard.name).symlink_to(tmp_path / "blobs" / f"digest{number}")
    monkeypatch.chdir(tmp_path / "snapshot")
    with GGUFFile.open(shards[1].name) as file:
        assert len(file.tensors) == 7
    with pytest.raises(ModelFileError, match=r"digest1 is shard 2 of 3 .* not named like one"):
        GGUFFile.open(tmp_path / "blobs" / "digest1")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_shard_is_named(shards: list[Path], lost: int) -> None:
    shards[lost].unlink()
    with pytest.raises(ModelFileError, match=rf"m-0000{lost + 1}-of-00003.gguf is missing; fetch all 3 shards"):
        GGUFFile.open(shards[(lost + 1) % 3])


def test_renamed_shards(shards: list[Path], tmp_path: Path) -> None:
    shards[1].rename(tmp_path / "other.gguf")
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003.gguf is missing"):
        GGUFFile.open(shards[0])
    with pytest.raises(ModelFileError, match=r"other.gguf is shard 2 of 3 .*NAME-00001-of-00003.gguf"):
        GGUFFile.open(tmp_path / "other.gguf")
    shutil.copy(shards[2], shards[1])
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003.gguf says in its metadata that it is shard 3 of 3"):
        GGUFFile.open(shards[0])
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003.gguf .*shard 3 of 3, which contradicts its name"):
        GGUFFile.open(shards[1])


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"count": 4}, "m-00002-of-00003.gguf says in its metadata that it is shard 2 of 4"),
        ({"count": None}, "m-00002-of-00003.gguf says in its metadata that it is shard 2 of 1"),
        ({"no": 0}, "m-00002-of-00003.gguf says in its metadata that it is shard 1 of 3"),
        ({"no": None}, r"m-00002-of-00003.gguf says in its metadata that it is shard \(no number\) of 3"),
        ({"no": -1}, "split.no is -1, expected a whole number"),
        ({"no": "1"}, "split.no is '1', expected a whole number"),
        ({"no": True}, "split.no is True, expected a whole number"),
        ({"count": 3.0}, "split.count is 3.0, expected a whole number"),
        ({"count": [3]}, "split.count is .*3.*, expected a whole number"),
    ],
    ids=str,
)
def test_a_shard_that_contradicts_the_set(shards: list[Path], changes: dict[str, Any], pattern: str) -> None:
    _rewrite(shards[1], **changes)
    with pytest.raises(ModelFileError, match=pattern):
        GGUFFile.open(shards[0])


@pytest.mark.parametrize(("changes", "pattern"), [({"no": 3}, "split.no is 3, expected 0 to 2"), ({"no": None}, "split.no is None, expected 0 to 2")])
def test_a_first_shard_that_contradicts_itself(shards: list[Path], changes: dict[str, Any], pattern: str) -> None:
    _rewrite(shards[0], **changes)
    with pytest.raises(ModelFileError, match=pattern):
        GGUFFile.open(shards[0])


def test_the_number_of_tensors_must_match(shards: list[Path]) -> None:
    _rewrite(shards[0], tensors=8)
    for opened in (0, 2):
        with pytest.raises(ModelFileError, match=r"m-00001-of-00003.gguf announces 8 tensors in 3 shards, but they hold 7"):
            GGUFFile.open(shards[opened])


def test_a_tensor_in_two_shards(tmp_path: Path, shards: list[Path]) -> None:
    write_gguf(shards[2], {"split.no": 2, "split.count": 3, "split.tensors.count": 7}, {"t1": TENSORS["t1"]})
    with pytest.raises(ModelFileError, match=r"'t1' is both in .*m-00001-of-00003.gguf and in .*m-00003-of-00003.gguf"):
        GGUFFile.open(shards[0])


def test_a_damaged_shard_is_named(shards: list[Path]) -> None:
    os.truncate(shards[1], shards[1].stat().st_size - 100)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003.gguf: tensor 't5' needs"):
        GGUFFile.open(shards[0])
    os.truncate(shards[1], 0)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003.gguf is empty"):
        GGUFFile.open(shards[2])


def test_a_count_of_65535_is_refused_at_once(tmp_path: Path) -> None:
    path = split_path(tmp_path, "m", 1, 65535)
    write_gguf(path, {"split.no": typed(0, "UINT16"), "split.count": typed(65535, "UINT16")}, {})
    with pytest.raises(ModelFileError, match=r"\(and 65533 more\) is missing"):
        GGUFFile.open(path)


@pytest.mark.parametrize("count", [None, 0, 1])
def test_a_whole_file_with_the_name_of_a_shard_opens(tmp_path: Path, count: int | None) -> None:
    """The metadata decides; a name alone makes no shard."""
    path = split_path(tmp_path, "m", 1, 2)
    write_gguf(path, METADATA if count is None else {**METADATA, "split.count": count}, TENSORS)
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == list(TENSORS)


def test_a_failed_set_leaves_nothing_mapped(shards: list[Path]) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc/self/maps on this system")
    _rewrite(shards[1], count=4)
    with pytest.raises(EdgeInferError):
        GGUFFile.open(shards[0])
    assert "-of-00003" not in maps.read_text()


def test_a_model_split_by_us_holds_the_same(tmp_path: Path) -> None:
    whole = tiny_llama(tmp_path / "whole.gguf")
    paths = split_file(whole, tmp_path, "parts", 4)
    with GGUFFile.open(whole) as file, GGUFFile.open(paths[3]) as split:
        assert list(split.tensors) == list(file.tensors)
        assert {key: file.value_type(key) for key in file.metadata} == {key: split.value_type(key) for key in split.metadata if "split." not in key}
        for name in file.tensors:
            assert np.array_equal(file.tensor_bytes(name), split.tensor_bytes(name))


@pytest.mark.llamacpp
def test_llama_cpp_reads_a_model_that_we_split(tmp_path: Path) -> None:
    import llama_cpp

    whole = tiny_llama(tmp_path / "whole.gguf")
    paths = split_file(whole, tmp_path, "parts", 3)
    logits = []
    for path in (whole, paths[0]):
        model = llama_cpp.Llama(str(path), n_ctx=32, logits_all=True, verbose=False, n_threads=1)
        model.eval([1, 2, 3])
        logits.append(np.array(model.scores[:3]))
    assert np.array_equal(logits[0], logits[1])

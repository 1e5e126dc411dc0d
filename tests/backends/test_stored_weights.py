"""Packed weights on disk: the same bits as packed in memory, nothing packed or copied, and no file that is not the right one is taken."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import pytest

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba import ahead, stored
from edgeinfer.backends.numba.ahead import forget_weights, keep_weights
from edgeinfer.backends.numba.backend import NumbaBackend, plan
from edgeinfer.backends.numba.weights import PIECE_BYTES, _batches, file_bytes, plan_weights
from edgeinfer.core.errors import StorageError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program, fuse
from kernels_numba.simd.levels import Level
from tests.backends.support import Driver
from tests.backends.test_numba import tokens
from tests.support.kernels import runnable_levels
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

OPTIONS = BackendOptions(context=64, threads=2, cache_tokens=64)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path, home: Path) -> Path:
    """With biases, norms, and a table that is looked up alone."""
    return tiny_qwen2(tmp_path / "model.gguf", weight_format="Q4_0")


def logits(model: Path, level: Level | None = None) -> bytes:
    options = OPTIONS if level is None else BackendOptions(context=64, threads=2, cache_tokens=64, instruction_set=level.name)
    backend = NumbaBackend.load(model, options)
    try:
        return Driver(backend).whole(1, tokens(20)).tobytes()
    finally:
        backend.close()


def packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was packed")

    monkeypatch.setattr("edgeinfer.backends.numba.backend.Weights.pack", refuse)


@pytest.mark.parametrize("make", [tiny_qwen2, tiny_gemma3])
def test_mapped_weights_give_the_bits_of_packed_ones_on_every_level(make, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(tmp_path / "model.gguf", weight_format="Q5_1")
    expected = logits(model)
    kept = keep_weights(model)
    assert kept.made and kept.path.parent == home / "packed" and kept.path.stat().st_size == kept.size + stored.HEADER_BYTES
    packs_nothing(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for level in runnable_levels():
            assert logits(model, level) == expected


def test_the_plan_counts_them_as_mapped(model: Path) -> None:
    with GGUFFile.open(model) as file:
        packed = plan(file, OPTIONS).memory
        keep_weights(model)
        mapped = plan(file, OPTIONS).memory
    assert packed.weights > 0 and packed.peak_while_packing > 0
    assert mapped.weights == 0 and mapped.peak_while_packing == 0
    assert mapped.mapped == packed.mapped + packed.weights
    assert mapped.resident == packed.resident - packed.weights


def test_nothing_is_made_twice_and_a_damaged_content_is_made_again(model: Path) -> None:
    first = keep_weights(model)
    assert keep_weights(model) == ahead.WeightsKept(first.path, first.size, False)
    data = bytearray(first.path.read_bytes())
    data[stored.HEADER_BYTES + 100] ^= 1
    first.path.write_bytes(data)
    assert keep_weights(model).made
    assert not keep_weights(model).made


def test_removing(model: Path) -> None:
    kept = keep_weights(model)
    assert forget_weights(model) == kept.path and not kept.path.exists()
    assert forget_weights(model) is None


def damaged(data: bytes, how: str) -> bytes:
    cut = {"empty": 0, "header cut": 100, "weights cut": len(data) - 4096}
    if how in cut:
        return data[: cut[how]]
    if how == "longer":
        return data + bytes(4096)
    place = {"magic": 3, "header": 120}[how]
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("how", ["empty", "header cut", "weights cut", "longer", "magic", "header"])
def test_a_damaged_file_is_made_again_with_a_warning(model: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(model)
    path = keep_weights(model).path
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.warns(UserWarning, match=r"packed weights in .* were made again: it is damaged"):
        assert logits(model) == expected
    packs_nothing(monkeypatch)
    assert logits(model) == expected


def test_weights_of_another_content_are_not_taken(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_weights(model)
    before = model.stat()
    other = tiny_qwen2(tmp_path / "other.gguf", weight_format="Q4_0", seed=77)
    expected = logits(other)
    model.write_bytes(other.read_bytes())
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same size and time: the samples differ
    assert model.stat().st_size == before.st_size
    with pytest.warns(UserWarning, match="made again: the model file or the layout of weights has changed since"):
        assert logits(model) == expected


def test_a_change_of_the_sources_that_pack_is_noticed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_weights(model)
    monkeypatch.setattr("kernels_numba.executor.sources.Sources.layout_digest", lambda self, formats: "other")
    with pytest.warns(UserWarning, match="layout of weights has changed since"):
        logits(model)


def test_a_file_that_others_can_write_to_is_not_taken(model: Path) -> None:
    path = keep_weights(model).path
    path.chmod(0o666)
    with pytest.warns(UserWarning, match="it must be a file of yours that nobody else can write to"):
        logits(model)
    path.parent.chmod(0o777)
    with pytest.warns(UserWarning, match=r"cannot be kept in .*: it must be a folder of yours .*EDGEINFER_HOME"):
        logits(model)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    path = keep_weights(model).path
    path.write_bytes(b"damaged")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.warns(UserWarning, match=f"could not be written to .*{os.strerror(number)}.*EDGEINFER_HOME"):
        logits(model)
    with pytest.raises(StorageError, match="could not be written"):
        keep_weights(model)
    assert [path for path in (home / "packed").iterdir() if path.suffix == ".part"] == []


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    return tiny_llama(path, width=2048, layers=1, heads=16, kv_heads=4, feed_forward=8224, weight_format="Q8_0")


def test_packing_holds_few_pages_of_the_file_at_once(wide: Path) -> None:
    """Pieces cover each tensor exactly, in whole row tiles, and never take more than the bound that the memory plan counts."""
    with GGUFFile.open(wide) as file:
        weights = plan_weights(fuse(build_program(file)))
    covered: dict[str, int] = {}
    for batch in _batches(weights):
        assert sum(piece.length for piece in batch) <= PIECE_BYTES
        for piece in batch:
            assert piece.row % 16 == 0 and piece.start == covered.get(piece.weight.name, 0)
            covered[piece.weight.name] = piece.start + piece.length
    assert covered == {weight.name: file_bytes(weight) for weight in weights.packed}
    assert max(covered.values()) > PIECE_BYTES and weights.packing_bytes == PIECE_BYTES


def test_the_layout_leaves_room_for_reading_beyond(model: Path) -> None:
    with GGUFFile.open(model) as file:
        layout = plan_weights(fuse(build_program(file))).layout
    offsets = [offset for _, offset in layout.offsets]
    assert offsets == sorted(offsets) and all(offset % 64 == 0 for offset in offsets)
    assert layout.size - offsets[-1] > 1 << 16
    assert all(offset % 4096 == 0 for offset in layout.packed.values())

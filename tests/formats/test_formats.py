"""Every format against gguf-py, bit for bit: random blocks, every byte value in every place, every kind of scale; and what its record says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from edgeinfer.gguf.reader import GGUFFile
from kernels_numba.formats import Format, all_formats, format_by_ggml_type, format_by_name
from kernels_numba.formats.ggml_types import GGML_TYPES, REMOVED_GGML_TYPES
from tests.conftest import model_path

FORMATS = list(all_formats().values())
# Where gguf-py has a quantizer of its own to compare with.
ENCODERS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
# float16 patterns: zeros, subnormals, one, the largest, infinities, NaNs.
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01]
HALVES_AT = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "F16": [0]}

each_format = pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)


def _assert_same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal bit for bit, where any NaN equals any other."""
    assert found.dtype == expected.dtype == np.float32
    same = (found.view(np.uint32) == expected.reshape(found.shape).view(np.uint32)) | (np.isnan(found) & np.isnan(expected.reshape(found.shape)))
    assert same.all(), f"{np.count_nonzero(~same)} elements differ"


def _compare_decode(entry: Format, blocks: NDArray[np.uint8]) -> None:
    with np.errstate(all="ignore"):
        _assert_same_bits(entry.decode(blocks), dequantize(blocks, gguf.GGMLQuantizationType[entry.name]))


@each_format
def test_decode_random_blocks(entry: Format) -> None:
    random = np.random.default_rng(entry.ggml_type)
    _compare_decode(entry, random.integers(0, 256, (2000, entry.block_bytes), dtype=np.uint8))


@each_format
def test_decode_every_byte_in_every_place(entry: Format) -> None:
    """Each byte of a block takes each of its 256 values, while the others hold a pattern that differs everywhere."""
    base = (np.arange(entry.block_bytes, dtype=np.uint32) * 37 + 11).astype(np.uint8)
    for place in range(entry.block_bytes):
        blocks = np.tile(base, (256, 1))
        blocks[:, place] = np.arange(256)
        _compare_decode(entry, blocks)


@pytest.mark.parametrize("name", HALVES_AT)
def test_decode_with_every_kind_of_scale(name: str) -> None:
    entry = format_by_name(name)
    random = np.random.default_rng(7)
    for at in HALVES_AT[name]:
        blocks = random.integers(0, 256, (len(SPECIAL_HALVES), entry.block_bytes), dtype=np.uint8)
        blocks[:, at : at + 2] = np.array(SPECIAL_HALVES, np.uint16).view(np.uint8).reshape(-1, 2)
        _compare_decode(entry, blocks)


@each_format
def test_decode_takes_read_only_slices(entry: Format) -> None:
    """Blocks come as views into a mapped file, or as every second row of something."""
    blocks = np.random.default_rng(1).integers(0, 256, (8, entry.block_bytes), dtype=np.uint8)
    blocks.flags.writeable = False
    with np.errstate(all="ignore"):
        _assert_same_bits(entry.decode(blocks[::2]), entry.decode(blocks)[::2])
        assert entry.decode(blocks[:0]).shape == (0, entry.block_elements)


def _values(entry: Format) -> NDArray[np.float32]:
    random = np.random.default_rng(entry.ggml_type + 100)
    values = random.standard_normal((300, entry.block_elements)).astype(np.float32)
    values[0] = 0
    values[1] = 1
    values[2] = -1
    values[3] = np.abs(values[3])
    values[4] = -np.abs(values[4])
    values[5:100] *= np.exp(random.uniform(-8, 8, (95, 1))).astype(np.float32)
    return values


@pytest.mark.parametrize("name", ENCODERS)
def test_encode_equals_gguf_py(name: str) -> None:
    entry = format_by_name(name)
    values = _values(entry)
    assert np.array_equal(entry.encode(values), quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8).reshape(len(values), -1))


@each_format
def test_encoding_keeps_values_to_half_a_step(entry: Format) -> None:
    """The error of each element is at most about half a step of its sub-block's grid, plus what rounding the scale itself costs."""
    values = _values(entry)
    error = np.abs(entry.decode(entry.encode(values)) - values)
    assert entry.encode(values).shape == (len(values), entry.block_bytes)
    if not entry.quantized:
        assert (error <= np.abs(values) * {"F32": 0, "F16": 2**-11, "BF16": 2**-8}[entry.name] + 2**-25).all()
        return
    grouped = values.reshape(-1, entry.elements_per_scale)
    # Grids without a minimum are anchored at the largest magnitude; on the other side they may end one step short of it.
    reach = np.maximum(grouped.max(axis=1), 0) - np.minimum(grouped.min(axis=1), 0) if entry.has_minimum else 2 * np.abs(grouped).max(axis=1)
    step = reach / (entry.highest_code - entry.lowest_code)
    short = 0.51 if entry.has_minimum or entry.name == "Q8_0" else 1.01
    if entry.block_elements == 256:
        # The scales of K-quants are rounded to 1/63 or 1/127 of the largest in the block.
        largest = np.abs(values).max(axis=1).repeat(256 // entry.elements_per_scale)
        short_steps = short * step + 2 * largest / (127 if entry.name == "Q6_K" else 63)
    else:
        short_steps = short * step
    allowed = short_steps[:, np.newaxis] + 2**-10 * np.abs(grouped).max(axis=1, keepdims=True) + 1e-7
    assert (error.reshape(grouped.shape) <= allowed).all()


@pytest.mark.parametrize(("name", "limit"), [("Q4_K", 0.075), ("Q5_K", 0.037), ("Q6_K", 0.019)])
def test_k_quants_are_as_good_as_their_bits(name: str, limit: float) -> None:
    """Mean error on normal values: what GGML's own search reaches, plus a quarter."""
    entry = format_by_name(name)
    values = np.random.default_rng(3).standard_normal((500, 256)).astype(np.float32)
    assert np.abs(entry.decode(entry.encode(values)) - values).mean() < limit


@each_format
def test_the_record_describes_the_codes(entry: Format) -> None:
    """Elements that share a scale take at most as many values as there are codes, and with random bytes they take them all."""
    if not entry.quantized:
        assert entry.lowest_code == entry.highest_code == 0
        return
    blocks = np.random.default_rng(5).integers(0, 256, (4000, entry.block_bytes), dtype=np.uint8)
    one = np.array([0x3C00], np.uint16).view(np.uint8)
    for at in HALVES_AT[entry.name]:
        blocks[:, at : at + 2] = one
    if entry.block_elements == 256:
        scales = slice(4, 16) if entry.has_minimum else slice(192, 208)
        blocks[:, scales] = blocks[0, scales]
    first_group = entry.decode(blocks)[:, : entry.elements_per_scale]
    assert len(np.unique(first_group)) == entry.highest_code - entry.lowest_code + 1
    zero_scale = blocks[:1].copy()
    for at in HALVES_AT[entry.name][:1]:
        zero_scale[:, at : at + 2] = 0
    assert bool(np.any(entry.decode(zero_scale))) == entry.has_minimum


@each_format
def test_rows(entry: Format) -> None:
    values = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    rows = entry.encode_rows(values)
    assert rows.shape == (3, entry.row_bytes(512))
    decoded = entry.decode_rows(rows)
    assert decoded.shape == values.shape
    assert np.array_equal(decoded[1:2], entry.decode_rows(rows[1:2]))
    if entry.block_elements > 1:
        with pytest.raises(ValueError, match="no whole number"):
            entry.row_bytes(entry.block_elements + 1)


def test_the_registry_finds_every_file_and_agrees_with_ggml() -> None:
    assert list(all_formats()) == ["F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "BF16"]
    for entry in FORMATS:
        ggml_type = GGML_TYPES[entry.ggml_type]
        assert (entry.name, entry.block_elements, entry.block_bytes) == (ggml_type.name, ggml_type.block_elements, ggml_type.block_bytes)
        assert format_by_name(entry.name) is format_by_ggml_type(entry.ggml_type) is entry
    with pytest.raises(KeyError, match="Q2_K"):
        format_by_name("Q2_K")
    with pytest.raises(KeyError, match="10"):
        format_by_ggml_type(10)


def test_sizes_of_all_ggml_types_equal_those_of_gguf_py() -> None:
    for number, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        # gguf-py counts two float32 in Q8_1 (a type that is never stored), where ggml has two float16.
        ours = GGML_TYPES[int(number)]
        assert (ours.name, ours.number, ours.block_elements) == (number.name, int(number), elements)
        assert ours.block_bytes == {"Q8_1": 36}.get(number.name, size)
    assert not set(GGML_TYPES) & set(REMOVED_GGML_TYPES)
    assert set(GGML_TYPES) | set(REMOVED_GGML_TYPES) == set(range(43))


def test_formats_do_without_numba() -> None:
    code = "import sys; from kernels_numba.formats import all_formats; all_formats(); print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"])
def test_decode_the_tensors_of_a_real_model(name: str) -> None:
    """The first tensor of each shape and type, in whole (of the largest, 2,000 rows)."""
    with GGUFFile.open(model_path(name)) as file:
        seen = set()
        for tensor in file.tensors.values():
            if (tensor.shape, tensor.format_name) in seen:
                continue
            seen.add((tensor.shape, tensor.format_name))
            rows = file.tensor_blocks(tensor.name)[:2000]
            decoded = format_by_name(tensor.format_name).decode_rows(rows)
            assert np.isfinite(decoded).all()
            _assert_same_bits(decoded, dequantize(np.ascontiguousarray(rows), gguf.GGMLQuantizationType[tensor.format_name]))
            file.release(tensor.name)

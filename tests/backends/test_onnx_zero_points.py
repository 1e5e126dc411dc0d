"""Minima in zero points: near what the format stores, by the bound that the module states, whatever the blocks look like; which models they are for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer import Engine
from edgeinfer.backends.onnx import cpu_dialect, zero_points
from edgeinfer.backends.onnx.dialects import build_graph
from edgeinfer.backends.onnx.emitter import Interface
from edgeinfer.backends.onnx.graph import MemorySink
from edgeinfer.backends.onnx.matrices import MatrixForm, matrix_form
from edgeinfer.backends.onnx.zero_points import ZeroPointMatrix, takes_zero_points, widens, zero_point_matrix
from edgeinfer.core.errors import ModelFileError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program, fuse
from kernels_numba.formats import format_by_name
from tests.backends.onnx_graphs import distance, reference
from tests.support.tiny_models import tiny_llama

WITH_MINIMA = ["Q4_1", "Q5_1", "Q4_K", "Q5_K"]


def _decoded(matrix: ZeroPointMatrix) -> np.ndarray:
    codes = matrix.codes.reshape(*matrix.scales.shape, 32).astype(np.float64) - matrix.zero_points[:, :, np.newaxis]
    return (codes * matrix.scales[:, :, np.newaxis]).reshape(len(matrix.codes), -1)


def _blocks(format_name: str) -> np.ndarray:
    """Rows around zero, above it, below it, far from it, with steps of very different sizes, constant, and zero."""
    values = np.random.default_rng(3).standard_normal((9, 512))
    shifts, factors = [0, 1, 3, -3, 30, -3000, 0, 0.7, 0], [1, 1, 1, 1, 1, 1, 1e-3, 0, 0]
    return format_by_name(format_name).encode_rows((values * np.array(factors)[:, np.newaxis] + np.array(shifts)[:, np.newaxis]).astype(np.float32))


@pytest.mark.parametrize("format_name", WITH_MINIMA)
def test_weights_change_by_less_than_half_a_step_of_8_bits(format_name: str) -> None:
    rows = _blocks(format_name)
    matrix = zero_point_matrix([(format_name, rows)], 512)
    expected = format_by_name(format_name).decode_rows(rows).astype(np.float64).reshape(len(rows), -1, 32)
    error = np.abs(_decoded(matrix).reshape(expected.shape) - expected).max(axis=2)
    low, high = np.minimum(expected.min(axis=2), 0), np.maximum(expected.max(axis=2), 0)
    assert (error <= np.abs(matrix.scales) * 0.5001 + 1e-6 * np.abs(expected).max(axis=2)).all()
    levels = 1.5 * (high - low) + 1e-30  # a block need not use its outermost levels
    assert (error[:7] <= levels[:7] / 200).all() and error[8].max() == 0


@pytest.mark.parametrize("format_name", WITH_MINIMA)
def test_minima_of_blocks_around_zero_are_rounded_by_a_hundredth_of_a_level(format_name: str) -> None:
    values = np.random.default_rng(4).standard_normal((64, 512)).astype(np.float32)
    rows = format_by_name(format_name).encode_rows(values)
    expected = format_by_name(format_name).decode_rows(rows).astype(np.float64).reshape(64, -1, 32)
    matrix = zero_point_matrix([(format_name, rows)], 512)
    level = (expected.max(axis=2) - expected.min(axis=2)) / (15 if matrix_form(format_name).bits == 4 else 31)
    error = (_decoded(matrix).reshape(expected.shape) - expected).mean(axis=2)
    assert np.sqrt(np.mean(np.square(error / level))) < (0.01 if matrix_form(format_name).bits == 4 else 0.03)


def test_rows_are_held_in_order_and_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _blocks("Q4_1"), _blocks("Q4_K")
    whole = zero_point_matrix([("Q4_1", first), ("Q4_K", second)], 512)
    monkeypatch.setattr(zero_points, "_CHUNK_ELEMENTS", 1024)
    for name in ("codes", "scales", "zero_points"):
        parts = [getattr(zero_point_matrix([(kind, rows)], 512), name) for kind, rows in (("Q4_1", first), ("Q4_K", second))]
        assert np.array_equal(getattr(whole, name), np.concatenate(parts))


def test_only_forms_with_a_minimum_and_models_that_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert takes_zero_points(MatrixForm(8, 32, True), False) and takes_zero_points(MatrixForm(4, 32, True), True)
    assert not takes_zero_points(MatrixForm(4, 32, True), False) and not takes_zero_points(MatrixForm(8, 32, False), True)
    with GGUFFile.open(tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1")) as file:
        program = fuse(build_program(file))
    assert widens(program)
    monkeypatch.setattr(zero_points, "WIDENED_ELEMENTS", 1000)
    assert not widens(program)


@pytest.mark.onnx
@pytest.mark.parametrize("format_name", WITH_MINIMA)
@pytest.mark.parametrize("widened", [True, False])
def test_logits_with_exact_minima_and_with_zero_points_are_near_the_reference(
    format_name: str, widened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_dialect, "widens", lambda program: widened)
    path = tiny_llama(tmp_path / "model.gguf", width=256, heads=8, feed_forward=256, weight_format=format_name)
    tokens = [int(token) for token in np.random.default_rng(5).integers(33, 280, 150)]  # more than a run takes
    with Engine.load(path, backend="onnx", context=160, threads=1) as engine:
        assert distance(engine.logits(tokens), reference(path, tokens)) < 0.05
        bits = matrix_form(format_name).bits
        assert any("zero points" in warning for warning in engine.warnings) == (widened or bits == 8)


@pytest.mark.onnx
def test_exported_files_keep_minima_exact(tmp_path: Path) -> None:
    products = {}
    with GGUFFile.open(tiny_llama(tmp_path / "model.gguf", weight_format=lambda name: "F32" if "embd" in name else "Q4_1")) as file:
        program = fuse(build_program(file))
        for interface in Interface:
            graph = build_graph(program, file, "cpu", MemorySink(), 96, interface).model.graph
            products[interface] = {node.op_type for node in graph.node} & {"ReduceSum", "MatMulNBits", "MatMul"}
    assert products == {Interface.STEP: {"MatMulNBits"}, Interface.FILE: {"MatMulNBits", "MatMul", "ReduceSum"}}


@pytest.mark.onnx
@pytest.mark.parametrize("place", [0, 2])
def test_scales_and_minima_that_are_not_finite_are_refused_by_name(place: int, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1")
    with GGUFFile.open(path) as file:
        stored = file.tensor_bytes("blk.0.ffn_up.weight").tobytes()
    broken = stored[:place] + np.array(np.nan, np.float16).tobytes() + stored[place + 2 :]
    path.write_bytes(path.read_bytes().replace(stored, broken))
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up\.weight.*not finite"):
        Engine.load(path, backend="onnx", context=96, threads=1)

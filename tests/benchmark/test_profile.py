"""Work counted from a program, the machine's limits on real kernels, and the profile of a tiny model. Figures are checked, never times."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import BackendOptions, OperationTime
from edgeinfer.backends.load import load_backend
from edgeinfer.backends.numba.limits import MachineLimits
from edgeinfer.backends.numba.work import ProgramWork, work_of_file
from edgeinfer.benchmark.profile import Counts, count_operation, group_of, operation_rows, profile_model
from edgeinfer.benchmark.results import DECODE, PREFILL, RooflineSample
from edgeinfer.core.errors import InvalidRequestError, UnknownChoiceError
from edgeinfer.gguf.reader import GGUFFile
from tests.support.tiny_models import tiny_gemma3, tiny_llama


@pytest.fixture(name="model")
def model_fixture(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def _work(model: Path) -> ProgramWork:
    return work_of_file(model)


def test_work_is_that_of_the_files_tensors(model: Path) -> None:
    work = _work(model)
    with GGUFFile.open(model) as file:
        tensors = {name: (tensor.shape, len(file.tensor_bytes(name).reshape(-1))) for name, tensor in file.tensors.items()}
    linear = {name: shape for name, (shape, _) in tensors.items() if len(shape) == 2 and name != "token_embd.weight"}
    head = next((name for name in linear if name == "output.weight"), None)
    table_shape, table_bytes = tensors["token_embd.weight"]
    expected = sum(int(np.prod(shape)) for name, shape in linear.items() if name != head)
    assert work.multiply_adds_per_row == expected
    assert work.multiply_adds_per_output == int(np.prod(table_shape if head is None else linear[head]))
    assert work.multiply_adds(10, 1) == 10 * expected + work.multiply_adds_per_output
    assert work.embedding_row_bytes == table_bytes // max(table_shape)
    unread = table_bytes if head is not None else 0
    assert work.file_weight_bytes == sum(size for _, size in tensors.values()) - unread
    assert work.weight_bytes >= sum(matrix.packed_bytes for matrix in work.matrices.values())


def test_windows_bound_the_bytes_of_the_cache(tmp_path: Path) -> None:
    work = _work(tiny_gemma3(tmp_path / "tiny.gguf"))
    windows = [store.window for store in work.stores]
    assert 0 in windows and max(windows) > 0
    for number, store in enumerate(work.stores):
        each = store.kv_heads * (2 * (store.key_size + store.value_size) + 8)  # of 16 bits, and a float32 scale for a head's keys and values
        assert work.store_bytes(number, 3) == 3 * each
        assert work.store_bytes(number, 10_000) == (store.window or 10_000) * each
    one, two = work.decode_bytes(4, 2), work.decode_bytes(4, 2, sequences=2)
    assert work.left_out_bytes == 0
    own = 2 * work.embedding_row_bytes + work.cache_bytes(5) + work.cache_bytes(6)
    assert one == 2 * work.weight_bytes + own and two == one + own
    assert work.decode_bytes(4, 2, as_in_file=True) - one == 2 * (work.file_weight_bytes - work.weight_bytes)


def test_greedy_decoding_of_few_sequences_leaves_a_plane_out(tmp_path: Path) -> None:
    work = _work(tiny_llama(tmp_path / "tiny.gguf", weight_format="Q8_0"))
    head = next(matrix for matrix in work.matrices.values() if matrix.per_output)
    assert 0.35 < work.left_out_bytes / head.packed_bytes < 0.36
    per_step = [(work.decode_bytes(4, 2, count) - work.decode_bytes(4, 1, count)) for count in (8, 9)]
    assert per_step[1] - per_step[0] == work.left_out_bytes + work.embedding_row_bytes + work.cache_bytes(6)


def test_limits_are_measured_in_every_pattern() -> None:
    with MachineLimits(2) as limits:
        assert limits.buffer_bytes > 1 << 20
        read = limits.read()
        assert len(read) == 5 and "our matvec" in read and min(read.values()) > 1e7
        assert limits.int8() > 1e7 and limits.int8(workers=1) > 1e7
    with MachineLimits(1, "portable") as limits:
        assert limits.level.endswith("portable") and limits.int8() > 1e6


def test_counts_follow_rows_outputs_and_positions(model: Path) -> None:
    work = _work(model)
    head = next(name for name, matrix in work.matrices.items() if matrix.per_output)
    other = next(name for name, matrix in work.matrices.items() if not matrix.per_output)
    bytes_of = {name: work.matrices[name].packed_bytes for name in (head, other)}
    operations = {name: 2 * work.matrices[name].multiply_adds for name in (head, other)}
    assert count_operation(OperationTime("", "", 1.0, (other,)), work, 3, 30, 1) == Counts(30 * operations[other], 3 * bytes_of[other])
    assert count_operation(OperationTime("", "", 1.0, (head,)), work, 3, 30, 1) == Counts(operations[head], bytes_of[head])
    assert count_operation(OperationTime("", "", 1.0, (), (0,)), work, 2, 2, 2, (5, 6)) == Counts(0, work.store_bytes(0, 5) + work.store_bytes(0, 6))
    assert count_operation(OperationTime("", "", 1.0), work, 3, 30, 1) == Counts()


def test_rows_join_layers_and_know_the_nearer_limit() -> None:
    assert group_of("linear blk.13.attn_q.weight") == "linear blk.*.attn_q.weight" and group_of("rope q3_turned") == "rope q*_turned"
    limits = RooflineSample(read={"best": 100.0}, int8=1000.0)
    assert Counts(500, 10).shortest(limits) == 0.5 and Counts(500, 80).shortest(limits) == 0.8
    times = [OperationTime("a 0", "k", 1.0), OperationTime("a 1", "k", 1.0), OperationTime("a 2", "other", 1.0), OperationTime("b", "k", 5.0)]
    rows = operation_rows(times, [Counts(500, 10), Counts(500, 80), Counts(), Counts()], 2, limits)
    assert [(row.operation, row.kernel, row.calls) for row in rows] == [("b", "k", 1), ("a *", "k", 2), ("a *", "other", 1)]
    joined = rows[1]
    assert (joined.seconds, joined.share) == (1.0, 0.25)
    assert (joined.operations_per_second, joined.bytes_per_second) == (500.0, 45.0)
    assert joined.fraction == pytest.approx(0.65)  # 0.5 and 0.8 seconds of 2
    assert rows[0].fraction is None and rows[0].bytes_per_second is None


def test_every_operation_of_a_real_profile_is_accounted_for(model: Path) -> None:
    prefill, decode = profile_model(model, 1, 24, 3)
    assert (prefill.kind, decode.kind, decode.steps) == (PREFILL, DECODE, 3)
    for profile in (prefill, decode):
        assert sum(row.share for row in profile.rows) == pytest.approx(1)
        assert sum(row.seconds for row in profile.rows) < profile.seconds / profile.steps
        linear = [row for row in profile.rows if row.operation.startswith("linear")]
        assert linear and all(row.operations_per_second and row.bytes_per_second and row.fraction for row in linear)
    work = _work(model)
    counted = sum((row.operations_per_second or 0) * row.seconds for row in decode.rows)
    assert counted == pytest.approx(2 * work.multiply_adds(1, 1))  # no matrix is missing from the tape's operations, and none is there twice
    read = sum((row.bytes_per_second or 0) * row.seconds for row in decode.rows)
    expected = sum(matrix.packed_bytes for matrix in work.matrices.values()) + work.cache_bytes(26)  # the mean of 25, 26 and 27 positions
    assert read == pytest.approx(expected)


def test_a_backend_without_a_profile_says_so(model: Path) -> None:
    options = BackendOptions(context=64, threads=1)
    backend = load_backend("numba", model, options)
    try:
        with pytest.raises(InvalidRequestError, match="profile=True"):
            backend.take_profile()  # type: ignore[attr-defined]
    finally:
        backend.close()
    with pytest.raises(UnknownChoiceError, match="only numba can be profiled"):
        load_backend("llamacpp", model, dataclasses.replace(options, profile=True))


def test_the_profile_prints(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from edgeinfer.benchmark.display import print_profile

    prefill, _ = profile_model(model, 1, 24, 3)
    print_profile(prefill, 1, Console(width=160))
    printed = capsys.readouterr().out
    assert "prefill of 24 tokens, 1 thread: " in printed and "outside of operations" in printed and "linear ffn_up (" in printed
    assert set(prefill.to_json()["operations"][0]) >= {"operation", "calls", "microseconds", "share", "fraction_of_roofline"}

"""What a benchmark's figures are made into: medians, ratios, fractions, the record and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeinfer.benchmark.record import write_result
from edgeinfer.benchmark.results import (
    BenchmarkResult,
    EngineResult,
    Measurement,
    Memory,
    RooflineResult,
    RooflineSample,
    ThreadsResult,
    Work,
    backend_of,
    engine_on,
)
from edgeinfer.benchmark.roofline import roofline_between
from edgeinfer.benchmark.rounds import BenchmarkOptions
from edgeinfer.core.errors import InvalidRequestError, StorageError


def _run() -> ThreadsResult:
    prefill, decode = Measurement("prefill", 512), Measurement("decode", 96, 8)
    memory = Memory(private_peak=200, file_pages=100, resident_peak=400)
    seconds = {"prefill 512": [0.1, 0.2, 0.4], "decode 96 x 8": [1.0, 1.0, 2.0]}
    limits = {"prefill 512": [2e6, 1e6, 1e6], "decode 96 x 8": [1e3, 2e3, 1e3]}
    ours = EngineResult("edgeinfer", "1", "s", 0.5, seconds, limits, memory=memory)
    peer = EngineResult("llamacpp", "2", "s", 0.5, {"prefill 512": [0.8, 0.4, 0.4], "decode 96 x 8": [2.0, 4.0, 2.0]}, memory=memory)
    work = {"prefill 512": Work(50_000, 7, 7), "decode 96 x 8": Work(9, 500, 400)}
    samples = [RooflineSample(read={"a": 10.0, "b": 20.0}), RooflineSample(read={"a": 40.0, "b": 20.0}), RooflineSample(int8=8.0, int8_one_core=4.0)]
    roofline = RooflineResult(samples, 1000, "level")
    engines = {"edgeinfer": ours, "llamacpp": peer}
    return ThreadsResult(2, {item.name: item for item in (prefill, decode)}, work, engines, {"ik_llamacpp": "why"}, roofline)


def _result() -> BenchmarkResult:
    run = _run()
    return BenchmarkResult("m", 1024, 3, run.measurements, run.work, [run], "2030-01-02T03:04:05+00:00", {"usable_cores": 2}, "abc")


def test_medians_and_ratios() -> None:
    found = _run()
    assert found.speed("edgeinfer", "prefill 512") == pytest.approx(2560)
    assert found.speed("llamacpp", "decode 96 x 8") == pytest.approx(8 * 48)
    assert found.first_token("edgeinfer", "prefill 512") == pytest.approx(0.2)
    assert found.ratio("llamacpp", "prefill 512") == pytest.approx(2.0)  # of the rounds: 8, 2, 1
    assert found.ratio("llamacpp", "decode 96 x 8") == pytest.approx(2.0)


def test_fractions_are_taken_round_by_round() -> None:
    found = _run()
    assert found.fraction("edgeinfer", "prefill 512") == pytest.approx(0.5)  # 2 * 50,000 operations: 0.5, 0.5, 0.25 of the limit
    assert found.fraction("edgeinfer", "decode 96 x 8") == pytest.approx(0.25)  # 0.5, 0.25, 0.25
    assert found.fraction("llamacpp", "decode 96 x 8") is None
    assert found.rate("edgeinfer", "decode 96 x 8") == 500 and found.rate("llamacpp", "decode 96 x 8") == 200  # peers read the file's bytes


def test_the_best_read_pattern_is_found_sample_by_sample() -> None:
    roofline = _run().roofline
    assert roofline is not None
    assert roofline.best_read == 30.0 and roofline.read("a") == 25.0 and roofline.int8 == 8.0
    before, after = RooflineSample(read={"a": 1.0, "b": 5.0}), RooflineSample(read={"a": 8.0, "b": 5.0})
    assert roofline_between(before, after, "decode") == 5.0  # a's mean is 4.5: a pattern must be fast before and after
    assert roofline_between(RooflineSample(int8=2.0), RooflineSample(int8=4.0), "prefill") == 3.0


def test_the_record_holds_rounds_versions_and_machine(tmp_path: Path) -> None:
    path = write_result(_result(), tmp_path / "new")
    assert path.name == "2030-01-02-m.json"
    record = json.loads(path.read_text())
    assert record["commit"] == "abc" and record["machine"]["usable_cores"] == 2
    assert record["measurements"]["decode 96 x 8"] == {
        "kind": "decode", "tokens": 96, "sequences": 8, "multiply_adds": 9, "bytes_read": 500, "file_bytes_read": 400,
    }  # fmt: skip
    (run,) = record["runs"]
    ours = run["engines"]["edgeinfer"]
    assert ours["measurements"]["decode 96 x 8"] == {
        "tokens_per_second": 768.0, "rounds": [768.0, 768.0, 384.0], "bytes_per_second": 500, "fraction_of_roofline": 0.25,
    }  # fmt: skip
    assert ours["memory"] == {"peak_bytes": 300, "private_peak_bytes": 200, "file_pages_bytes": 100, "resident_peak_bytes": 400}
    assert run["engines"]["llamacpp"]["measurements"]["prefill 512"]["first_token_seconds"] == 0.4
    assert run["ratios"] == {"llamacpp": {"prefill 512": 2.0, "decode 96 x 8": 2.0}}
    assert run["missing"] == {"ik_llamacpp": "why"} and run["threads"] == 2
    assert run["roofline"]["read_bytes_per_second"] == 30 and run["roofline"]["int8_operations_per_second_one_core"] == 4


def test_a_folder_that_takes_no_record_has_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write .*2030-01-02-m.json: .*--write"):
        write_result(_result(), tmp_path / "file")


def test_engines_of_ours_are_told_from_peers() -> None:
    assert [engine_on(backend) for backend in ("numba", "onnx")] == ["edgeinfer", "edgeinfer-onnx"]
    assert [backend_of(engine) for engine in ("edgeinfer", "edgeinfer-x-y", "llamacpp")] == ["numba", "x-y", None]
    with pytest.raises(InvalidRequestError, match="no backend was named"):
        BenchmarkOptions(threads=(1,), backends=())


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from edgeinfer.benchmark.display import print_result

    print_result(_result(), Console(width=200))
    printed = capsys.readouterr().out
    assert "2.00 x" in printed and "left out: why" in printed and "2,560.0  50%" in printed and "768.0  25%" in printed

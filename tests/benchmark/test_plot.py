"""The picture of a record: what its panels hold, and what is refused."""

from __future__ import annotations

import builtins
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.benchmark.plot import check_plot, limits_of, plot_record, series_of
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError


def record(lengths: list[int], batches: list[int], threads: list[int], limits: bool = True) -> dict[str, Any]:
    """A record as `BenchmarkResult.to_json` writes it, of two engines; the peer has no figure for batches."""
    measurements = {f"prefill {length}": _measurement("prefill", length, 1, 100 * length, 0) for length in lengths}
    measurements |= {f"decode 96 x {batch}": _measurement("decode", 96, batch, 100 * 96 * batch, 96 * 1000 + 96 * batch * 10) for batch in batches}
    memory = {"peak_bytes": 3e8, "private_peak_bytes": 2e8, "file_pages_bytes": 1e8, "resident_peak_bytes": 4e8}
    engines = {}
    for engine, speed in (("edgeinfer", 100.0), ("llamacpp", 50.0)):
        measured: dict[str, dict[str, Any]] = {}
        for name, measurement in measurements.items():
            if engine == "edgeinfer" or measurement["sequences"] == 1:
                measured[name] = {"tokens_per_second": speed * measurement["sequences"], "rounds": [], "fraction_of_roofline": 0.5}
                if measurement["kind"] == "prefill":
                    measured[name]["first_token_seconds"] = measurement["tokens"] / speed
        engines[engine] = {"version": f"{engine} 1", "settings": "", "memory": memory, "measurements": measured}
    roofline = {"read_bytes_per_second": 202_000, "int8_operations_per_second": 80_000} if limits else None
    runs = [{"threads": count, "roofline": roofline, "engines": engines, "ratios": {}, "missing": {}} for count in threads]
    return {
        "model": "m", "rounds": 3, "date": "2030-01-02T03:04:05", "machine": {"processor": "P", "usable_cores": 2}, "commit": "0123456789abcdef",
        "measurements": measurements, "runs": runs,
    }  # fmt: skip


def _measurement(kind: str, tokens: int, sequences: int, multiply_adds: int, bytes_read: int) -> dict[str, Any]:
    return {
        "kind": kind, "tokens": tokens, "sequences": sequences, "multiply_adds": multiply_adds, "bytes_read": bytes_read, "file_bytes_read": bytes_read,
    }  # fmt: skip


def test_series_and_limits_come_from_the_record() -> None:
    found = record([32, 512], [1, 8], [2])
    run = found["runs"][0]
    prefill = series_of(found, run, "prefill", "tokens_per_second")
    assert [(item.engine, item.values) for item in prefill] == [("edgeinfer", {32: 100.0, 512: 100.0}), ("llamacpp", {32: 50.0, 512: 50.0})]
    assert series_of(found, run, "prefill", "first_token_seconds")[1].values == {32: 0.64, 512: 10.24}
    decode = series_of(found, run, "decode", "tokens_per_second")
    assert [item.values for item in decode] == [{1: 100.0, 8: 800.0}, {1: 50.0}]
    assert decode[0].colour == prefill[0].colour != decode[1].colour
    assert limits_of(found, run, "prefill") == {32: 400.0, 512: 400.0}
    # one sequence is bound by the 1,010 bytes of a token, eight by their operations: 1,080 bytes a step would allow 1,496
    assert limits_of(found, run, "decode") == pytest.approx({1: 200.0, 8: 400.0})
    assert limits_of(record([32], [1], [2], limits=False), {"roofline": None}, "decode") == {}


@pytest.mark.parametrize(
    ("lengths", "batches", "threads", "limits"),
    [([512], [1], [2], True), ([32, 512, 8192], [1, 8], [1, 2], True), ([512], [8], [1], False), ([32, 512], [1], [2], False)],
)
def test_every_shape_of_a_record_becomes_a_picture(lengths: list[int], batches: list[int], threads: list[int], limits: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    plot_record(record(lengths, batches, threads, limits), path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 2000 and height > 500 * len(threads)


def test_a_kept_record_is_drawn_from_the_shell(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "record.json").write_text(json.dumps(record([512], [1], [2])))
    arguments = [str(tmp_path / "record.json"), str(tmp_path / "picture.png")]
    subprocess.run([sys.executable, "-m", "edgeinfer.benchmark.plot", *arguments], check=True, cwd=Path(__file__).resolve().parents[2])
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match=r"ends in \.png"):
        check_plot(tmp_path / "picture.pdf")
    real = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError("No module named 'matplotlib'")
        return real(name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without_matplotlib)
        with pytest.raises(BackendUnavailableError, match=r"edgeinfer\[bench\]"):
            check_plot(tmp_path / "picture.png")
    pytest.importorskip("matplotlib")
    with pytest.raises(EdgeInferError, match="cannot write"):
        plot_record(record([512], [1], [2]), tmp_path / "nowhere" / "picture.png")

"""The benchmark without a model: results, options, the protocol of the children, and whole runs over engines that are played by a script."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from edgeinfer.benchmark import child as child_module
from edgeinfer.benchmark.options import parse_interpreters, parse_lengths, parse_peers
from edgeinfer.benchmark.results import BenchmarkResult, EngineResult, write_result
from edgeinfer.benchmark.rounds import PEERS, BenchmarkOptions, prompt_ids, run_benchmark
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError


def _result() -> BenchmarkResult:
    ours = EngineResult("edgeinfer", "1", "s", 0.5, {"prefill 512": [0.1, 0.2, 0.4], "decode 96": [1.0, 1.0, 2.0]}, 300, 200)
    peer = EngineResult("llamacpp", "2", "s", 0.5, {"prefill 512": [0.8, 0.4, 0.4], "decode 96": [2.0, 4.0, 2.0]}, 300, 200)
    engines = {"edgeinfer": ours, "llamacpp": peer}
    tokens = {"prefill 512": 512, "decode 96": 96}
    return BenchmarkResult("m", 2, 1024, 3, tokens, engines, {"ik_llamacpp": "why"}, "2030-01-02T03:04:05+00:00", {"usable_cores": 2}, "abc")


def test_medians_and_ratios() -> None:
    found = _result()
    assert found.speed("edgeinfer", "prefill 512") == pytest.approx(2560)
    assert found.speed("llamacpp", "decode 96") == pytest.approx(48)
    assert found.first_token("edgeinfer", "prefill 512") == pytest.approx(0.2)
    assert found.ratio("llamacpp", "prefill 512") == pytest.approx(2.0)
    assert found.ratio("llamacpp", "decode 96") == pytest.approx(2.0)


def test_the_record_holds_rounds_versions_and_machine(tmp_path: Path) -> None:
    path = write_result(_result(), tmp_path / "new")
    assert path.name == "2030-01-02-m.json"
    record = json.loads(path.read_text())
    assert record["engines"]["edgeinfer"]["measurements"]["decode 96"] == {"tokens_per_second": 96.0, "rounds": [96.0, 96.0, 48.0]}
    assert record["engines"]["llamacpp"]["measurements"]["prefill 512"]["first_token_seconds"] == 0.4
    assert record["ratios"] == {"llamacpp": {"prefill 512": 2.0, "decode 96": 2.0}}
    assert record["missing"] == {"ik_llamacpp": "why"} and record["commit"] == "abc" and record["machine"]["usable_cores"] == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeInferError, match="cannot write"):
        write_result(_result(), tmp_path / "file")


def test_options_are_read_and_refused() -> None:
    assert parse_lengths("32, 512,32") == (32, 512)
    assert parse_peers("llamacpp,ik_llamacpp") == ("llamacpp", "ik_llamacpp")
    assert parse_peers("none") == ()
    assert parse_interpreters(["ik_llamacpp=/a=b/python"]) == {"ik_llamacpp": "/a=b/python"}
    for wrong in ("", "a", "1;2", "-3", "1.5"):
        with pytest.raises(InvalidRequestError, match="prompt lengths"):
            parse_lengths(wrong)
    for wrong in ("llamacpp", "other=/p", "llamacpp="):
        with pytest.raises(InvalidRequestError, match="PEER=INTERPRETER"):
            parse_interpreters([wrong])
    with pytest.raises(InvalidRequestError, match="no peer named 'vllm'"):
        BenchmarkOptions(threads=2, peers=("vllm",))
    with pytest.raises(InvalidRequestError, match="rounds is 0"):
        BenchmarkOptions(threads=2, rounds=0)
    with pytest.raises(InvalidRequestError, match="prompt lengths"):
        BenchmarkOptions(threads=2, prompt_lengths=(0,))


def test_prompts_are_the_same_work_but_never_the_same_beginning() -> None:
    first, second = prompt_ids(512, 49152, 1), prompt_ids(512, 49152, 2)
    assert sorted(first) == sorted(second) and first[0] != second[0]
    assert prompt_ids(512, 49152) == prompt_ids(512, 49152, 0)
    assert len(prompt_ids(700, 49152)) == 700
    assert max(prompt_ids(512, 300)) < 300


def test_context_has_room_for_the_longest_prompt() -> None:
    assert BenchmarkOptions(threads=1).context == 1024
    assert BenchmarkOptions(threads=1, prompt_lengths=(32, 4096)).context > 4096
    assert BenchmarkOptions(threads=1, decode_tokens=2000).context > 2016


class _Runner:
    def describe(self) -> dict[str, object]:
        return {"version": "1", "settings": "none", "vocabulary": 1000}

    def prefill(self, ids: list[int]) -> float:
        return len(ids) / 1000

    def decode(self, ids: list[int], count: int) -> float:
        if count == 13:
            raise RuntimeError("unlucky")
        return count / 100


def test_a_child_answers_line_by_line_and_reports_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "load_runner", lambda *arguments: _Runner())
    requests = [{"command": "prefill", "ids": [1, 2]}, {"command": "memory"}, {"command": "decode", "ids": [1], "count": 13}]
    answers = io.StringIO()
    child_module.serve("edgeinfer", "m", 1, 64, io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    description, prefill, memory, failure = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert description["vocabulary"] == 1000 and description["load_seconds"] >= 0
    assert prefill == {"seconds": 0.002}
    assert memory["peak_bytes"] > memory["anonymous_bytes"] > 1_000_000
    assert failure == {"error": "RuntimeError: unlucky"}


def _player(path: Path, speed: float, fault: str = "") -> str:
    """A program that plays an engine: it ignores its arguments and answers as child.py does."""
    path.write_text(
        f"""#!{sys.executable}
import json, sys
if {fault == "start"!r}:
    print("no such model", file=sys.stderr)
    sys.exit(3)
print(json.dumps({{"version": "1", "settings": "played", "load_seconds": 0.1, "vocabulary": 5000}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["command"] == "memory":
        print(json.dumps({{"peak_bytes": 9, "anonymous_bytes": 4}}), flush=True)
    elif {fault == "middle"!r} and request["command"] == "decode":
        print(json.dumps({{"error": "it broke"}}), flush=True)
    else:
        print(json.dumps({{"seconds": (len(request["ids"]) + request.get("count", 0)) / {speed}}}), flush=True)
"""
    )
    path.chmod(0o755)
    return str(path)


def test_a_whole_run_over_played_engines(tmp_path: Path) -> None:
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0), "llamacpp": _player(tmp_path / "theirs", 500.0)}
    said: list[str] = []
    options = BenchmarkOptions(threads=1, prompt_lengths=(32, 512), rounds=2, interpreters=interpreters)
    found = run_benchmark(tmp_path / "tiny.gguf", options, said.append)
    assert found.ratio("llamacpp", "prefill 512") == pytest.approx(4.0)
    assert found.ratio("llamacpp", "decode 96") == pytest.approx(4.0)
    assert found.speed("edgeinfer", "prefill 32") == pytest.approx(2000)
    assert [len(values) for values in found.engines["llamacpp"].seconds.values()] == [2, 2, 2]
    assert found.engines["edgeinfer"].peak_bytes == 9 and found.machine["usable_cores"] >= 1
    turns = [text for text in said if "round" in text or "warm" in text]
    assert turns == [
        "edgeinfer: warm-up",
        "llamacpp: warm-up",
        "llamacpp: round 1 of 2",
        "edgeinfer: round 1 of 2",
        "edgeinfer: round 2 of 2",
        "llamacpp: round 2 of 2",
    ]


def test_a_missing_peer_is_named_and_a_missing_engine_of_ours_ends_the_run(tmp_path: Path) -> None:
    ours = _player(tmp_path / "ours", 2000.0)
    broken = _player(tmp_path / "broken", 1.0, fault="start")
    options = BenchmarkOptions(
        threads=1, rounds=1, peers=tuple(PEERS), interpreters={"edgeinfer": ours, "llamacpp": broken, "ik_llamacpp": str(tmp_path / "nowhere")}
    )
    found = run_benchmark(tmp_path / "tiny.gguf", options)
    assert list(found.engines) == ["edgeinfer"]
    assert "ended with code 3" in found.missing["llamacpp"] and "it said: no such model" in found.missing["llamacpp"]
    assert "No such file" in found.missing["ik_llamacpp"]
    with pytest.raises(BackendUnavailableError, match="edgeinfer"):
        run_benchmark(tmp_path / "tiny.gguf", BenchmarkOptions(threads=1, peers=(), interpreters={"edgeinfer": broken}))


def test_an_engine_that_fails_on_the_way_ends_the_run_with_its_words(tmp_path: Path) -> None:
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0), "llamacpp": _player(tmp_path / "theirs", 1.0, fault="middle")}
    with pytest.raises(EdgeInferError, match="llamacpp: it broke"):
        run_benchmark(tmp_path / "tiny.gguf", BenchmarkOptions(threads=1, rounds=1, interpreters=interpreters))


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from edgeinfer.benchmark.display import print_result

    print_result(_result(), Console(width=200))
    printed = capsys.readouterr().out
    assert "2.00 x" in printed and "left out: why" in printed and "2,560.0" in printed


@pytest.mark.llamacpp
@pytest.mark.model
def test_llamacpp_is_measured_in_its_own_process(tmp_path: Path, model_path) -> None:  # type: ignore[no-untyped-def]
    options = BenchmarkOptions(threads=1, prompt_lengths=(16,), decode_tokens=2, rounds=1, interpreters={"edgeinfer": _player(tmp_path / "ours", 2000.0)})
    found = run_benchmark(model_path("smollm2-135m"), options)
    assert found.missing == {}
    peer = found.engines["llamacpp"]
    assert "llama-cpp-python" in peer.version and "flash attention on" in peer.settings
    assert peer.peak_bytes > 50_000_000
    assert found.speed("llamacpp", "decode 2") > 0

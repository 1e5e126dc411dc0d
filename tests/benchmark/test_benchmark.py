"""The benchmark without a model: options, the protocol of the children, and whole runs over engines that are played by a script."""

from __future__ import annotations

import io
import json
import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.backends.choice import candidates
from edgeinfer.benchmark import child as child_module
from edgeinfer.benchmark.comparisons import comparison, keep_comparisons
from edgeinfer.benchmark.memory import PrivateMemory, private_bytes
from edgeinfer.benchmark.options import parse_interpreters, parse_numbers, parse_peers, peer_interpreters
from edgeinfer.benchmark.results import (
    Measurement,
    Memory,
)
from edgeinfer.benchmark.rounds import PEERS, BenchmarkOptions, prompt_ids, run_benchmark
from edgeinfer.benchmark.settings import alternatives
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError
from edgeinfer.gguf.reader import GGUFFile
from tests.support.split_models import split_file
from tests.support.tiny_models import tiny_llama


def test_what_a_child_says_of_its_end_is_for_people() -> None:
    assert child_module.told(BackendUnavailableError("onnxruntime is missing; install it")) == "onnxruntime is missing; install it"
    assert child_module.told(RuntimeError("deep inside")) == "RuntimeError: deep inside"
    missing = child_module.told(ModuleNotFoundError("No module named 'ik_llama_cpp'", name="ik_llama_cpp"))
    assert "has no ik_llama_cpp" in missing and sys.executable in missing and "make bench-peers" in missing and "--peer-python" in missing


def test_options_are_read_and_refused() -> None:
    assert parse_numbers("32, 512,32", "prompt lengths", "32,512") == (32, 512)
    assert parse_peers("llamacpp,ik_llamacpp") == ("llamacpp", "ik_llamacpp")
    assert parse_peers("none") == ()
    assert parse_interpreters(["ik_llamacpp=/a=b/python"]) == {"ik_llamacpp": "/a=b/python"}
    for wrong in ("", "a", "1;2", "-3", "1.5"):
        with pytest.raises(InvalidRequestError, match="batch sizes are"):
            parse_numbers(wrong, "batch sizes", "1,8")
    for wrong in ("llamacpp", "other=/p", "llamacpp="):
        with pytest.raises(InvalidRequestError, match="PEER=INTERPRETER"):
            parse_interpreters([wrong])
    with pytest.raises(InvalidRequestError, match="no peer named 'vllm'"):
        BenchmarkOptions(threads=(2,), peers=("vllm",))
    with pytest.raises(InvalidRequestError, match="rounds is 0"):
        BenchmarkOptions(threads=(2,), rounds=0)
    with pytest.raises(InvalidRequestError, match="prompt lengths"):
        BenchmarkOptions(threads=(2,), prompt_lengths=(0,))
    for threads in ((2, 0), ()):
        with pytest.raises(InvalidRequestError, match="threads are"):
            BenchmarkOptions(threads=threads)
    with pytest.raises(InvalidRequestError, match="nothing to measure"):
        BenchmarkOptions(threads=(2,), prompt_lengths=(), batch_sizes=())
    assert list(BenchmarkOptions(threads=(2,), prompt_lengths=()).measurements) == ["decode 96"]
    assert list(BenchmarkOptions(threads=(2,), batch_sizes=()).measurements) == ["prefill 512"]
    with pytest.raises(InvalidRequestError, match="at most 32"):
        BenchmarkOptions(threads=(2,), batch_sizes=(1, 33))


def test_peers_are_looked_for_in_environments_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "ik_llamacpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setenv("EDGEINFER_PEERS", str(tmp_path))
    assert peer_interpreters({}) == {"ik_llamacpp": str(python)}
    assert peer_interpreters({"ik_llamacpp": "/other", "llamacpp": "/p"}) == {"ik_llamacpp": "/other", "llamacpp": "/p"}


def test_prompts_are_the_same_work_but_never_the_same_beginning() -> None:
    first, second = prompt_ids(512, 49152, 1), prompt_ids(512, 49152, 2)
    assert sorted(first) == sorted(second) and first[0] != second[0]
    assert prompt_ids(512, 49152) == prompt_ids(512, 49152, 0)
    assert len(prompt_ids(700, 49152)) == 700
    beginnings = [tuple(prompt_ids(length, 49152, turn, sequence)[:2]) for length in (32, 512, 700) for turn in range(8) for sequence in range(4)]
    assert len(set(beginnings)) == len(beginnings)
    assert max(prompt_ids(512, 300)) < 300


def test_context_has_room_for_the_longest_prompt() -> None:
    assert BenchmarkOptions(threads=(1,)).context == 1024
    assert BenchmarkOptions(threads=(1,), prompt_lengths=(32, 4096)).context > 4096
    assert BenchmarkOptions(threads=(1,), decode_tokens=2000).context > 2016
    assert BenchmarkOptions(threads=(1,)).cache_tokens == 1024
    assert BenchmarkOptions(threads=(1,), batch_sizes=(1, 32)).cache_tokens >= 32 * (16 + 97)


def test_every_measurement_has_a_name_of_its_own() -> None:
    options = BenchmarkOptions(threads=(1,), prompt_lengths=(32, 512), batch_sizes=(1, 8))
    assert list(options.measurements) == ["prefill 32", "prefill 512", "decode 96", "decode 96 x 8"]
    assert options.measurements["decode 96 x 8"].total_tokens == 768


class _Runner:
    def describe(self) -> dict[str, object]:
        return {"version": "1", "details": "none", "vocabulary": 1000}

    def prefill(self, ids: list[int]) -> float:
        return len(ids) / 1000

    def decode(self, prompts: list[list[int]], count: int) -> float:
        if count == 13:
            raise RuntimeError("unlucky")
        return count / 100


def test_a_child_answers_line_by_line_and_reports_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "load_runner", lambda *arguments: _Runner())
    requests = [{"command": "prefill", "ids": [1, 2]}, {"command": "memory"}, {"command": "decode", "prompts": [[1], [2]], "count": 3}]
    requests.append({"command": "decode", "prompts": [[1]], "count": 13})
    answers = io.StringIO()
    child_module.serve({"engine": "edgeinfer", "model": "m"}, io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    description, prefill, memory, together, failure = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert description["vocabulary"] == 1000 and description["load_seconds"] >= 0
    assert prefill == {"seconds": 0.002}
    assert memory["resident_peak_bytes"] > memory["private_bytes"] > 1_000_000 and memory["file_bytes"] > 1_000_000
    assert together == {"seconds": 0.03}
    assert failure == {"error": "RuntimeError: unlucky"}


def test_pages_of_a_file_are_counted_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * 4096)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert sum(mapping[::4096]) >= 0
        assert sum(resident for _, _, resident in child_module._mappings(str(path))) == 1 << 20
        assert child_module.forget_file(str(path)) == 1 << 20
        assert mapping[4097] == 1  # what is read again is there again
        assert 0 < sum(resident for _, _, resident in child_module._mappings(str(path))) < 1 << 20
    assert child_module.forget_file(str(path)) == 0


def test_the_peak_of_private_memory_outlives_the_memory() -> None:
    code = "import sys, time; block = bytearray(80_000_000); time.sleep(0.3); del block; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        memory = PrivateMemory(process.pid)
        with memory:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        now = private_bytes(process.pid)
        process.communicate()
    assert now < 60_000_000 < 80_000_000 < memory.peak
    assert private_bytes(process.pid) == 0


def _player(path: Path, speed: float, fault: str = "") -> str:
    """A program that plays an engine, or the roofline's process: answers as those do."""
    path.write_text(
        f"""#!{sys.executable}
import json, sys
settings = json.loads(sys.argv[-1]).get("settings")
if {fault == "refusal"!r}:
    print(json.dumps({{"error": "it does not read this file"}}))
    sys.exit(0)
if {fault == "start"!r}:
    print("no such model", file=sys.stderr)
    sys.exit(3)
print(json.dumps({{"version": "1", "details": "played", "load_seconds": 0.1, "vocabulary": 5000, "level": "played", "buffer_bytes": 64}}), flush=True)
looks = 0
for line in sys.stdin:
    request = json.loads(line)
    command = request["command"]
    if command == "memory":
        looks += 1
        print(json.dumps({{"private_bytes": 1 << 40, "file_bytes": 4, "resident_peak_bytes": 9}}), flush=True)
    elif command == "read":
        print(json.dumps({{"read": {{"one": 1e6, "two": {speed}}}}}), flush=True)
    elif command == "int8":
        print(json.dumps({{"int8": {speed}, "int8_one_core": {speed} / 2}}), flush=True)
    elif command == "decode" and ({fault == "mute"!r} or {fault == "middle"!r} and looks == 2):
        print(json.dumps({{"error": "it broke"}}), flush=True)
    elif {fault == "together"!r} and command == "decode" and len(request["prompts"]) > 1:
        print(json.dumps({{"error": "one at a time"}}), flush=True)
    else:
        prompts = request.get("prompts", [request.get("ids", [])])
        speed = {speed}
        if {fault == "settings"!r}:
            speed *= 1 + (command == "decode") * (not settings["flash_attention"]) + (command == "prefill") * (settings["batch"] == 128)
            if not settings["repack"] or (len(prompts[0]) > 4000 and settings["batch"] == 2048):
                sys.exit(5)
            speed *= 1 + 9 * (settings["batch"] == 2048 and len(prompts[0]) > 1000)
        tokens = sum(len(prompt) for prompt in prompts) + len(prompts) * request.get("count", 0)
        print(json.dumps({{"seconds": tokens / speed}}), flush=True)
"""
    )
    path.chmod(0o755)
    return str(path)


@pytest.fixture(name="model")
def model_fixture(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_a_whole_run_over_played_engines(tmp_path: Path, model: Path) -> None:
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0), "llamacpp": _player(tmp_path / "theirs", 500.0, fault="together")}
    interpreters["roofline"] = _player(tmp_path / "limits", 1e9)
    said: list[str] = []
    options = BenchmarkOptions(threads=(1, 2), prompt_lengths=(32, 512), batch_sizes=(1, 2), rounds=2, interpreters=interpreters)
    result = run_benchmark(model, options, said.append)
    assert [run.threads for run in result.runs] == [1, 2] and result.machine["usable_cores"] >= 1
    found = result.runs[0]
    assert found.ratio("llamacpp", "prefill 512") == pytest.approx(4.0)
    assert found.ratio("llamacpp", "decode 96") == pytest.approx(4.0)
    assert found.speed("edgeinfer", "prefill 32") == pytest.approx(2000)
    assert found.engines["llamacpp"].skipped == {"decode 96 x 2": "llamacpp: one at a time"} and not found.has("llamacpp", "decode 96 x 2")
    assert found.speed("edgeinfer", "decode 96 x 2") == pytest.approx(2 * 96 / (2 * 112 / 2000))
    assert [len(values) for values in found.engines["edgeinfer"].seconds.values()] == [2, 2, 2, 2]
    work = result.work["decode 96"]
    assert found.fraction("edgeinfer", "decode 96") == pytest.approx(work.bytes_read / (112 / 2000) / 1e9)
    assert found.engines["edgeinfer"].memory == Memory(1 << 40, 4, 9)
    turns = [text for text in said if "round" in text or "warm" in text]
    assert turns[:6] == [
        "edgeinfer: warm-up",
        "llamacpp: warm-up",
        "llamacpp: round 1 of 2",
        "edgeinfer: round 1 of 2",
        "edgeinfer: round 2 of 2",
        "llamacpp: round 2 of 2",
    ]
    json.dumps(result.to_json())


def test_engines_are_told_the_first_shard_of_a_split_model(tmp_path: Path, model: Path) -> None:
    """llama.cpp opens no other."""
    shards = split_file(model, tmp_path, "parts", 3)
    player = tmp_path / "ours"
    _player(player, 2000.0)
    player.write_text(player.read_text().replace('"version": "1"', '"version": json.loads(sys.argv[-1])["model"]'))
    options = BenchmarkOptions(threads=(1,), prompt_lengths=(32,), batch_sizes=(), rounds=1, roofline=False, peers=(), interpreters={"edgeinfer": str(player)})
    result = run_benchmark(shards[1], options)
    assert result.model == shards[0].stem
    assert result.runs[0].engines["edgeinfer"].version == str(shards[0])


def test_each_measurement_gets_the_settings_that_make_the_peer_fastest(tmp_path: Path, model: Path) -> None:
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0), "llamacpp": _player(tmp_path / "theirs", 500.0, fault="settings")}
    options = BenchmarkOptions(threads=(1,), rounds=1, interpreters=interpreters, roofline=False)
    run = run_benchmark(model, options).runs[0]
    peer = run.engines["llamacpp"]
    assert peer.chosen == {
        "prefill 512": {"flash_attention": True, "repack": True, "batch": 128},
        "decode 96": {"flash_attention": False, "repack": True, "batch": 512},
    }
    assert run.speed("llamacpp", "prefill 512") == pytest.approx(1000) and run.speed("llamacpp", "decode 96") == pytest.approx(1000 * 96 / 112)
    assert "decode 96: flash attention off, repack on, batch 512" in peer.settings and peer.settings.endswith("; played")
    failures = [trial for trial in peer.trials if trial.failure is not None]
    assert failures and all(trial.settings["repack"] is False and "ended with code 5" in str(trial.failure) for trial in failures)
    record = run.to_json()["engines"]["llamacpp"]
    assert record["chosen"]["prefill 512"]["batch"] == 128 and {"prefill 512", "decode 32"} == {trial["measurement"] for trial in record["searched"]}
    unsearched = run_benchmark(model, replace(options, search=False)).runs[0]
    assert unsearched.speed("llamacpp", "prefill 512") == pytest.approx(500)


def test_settings_that_fail_with_the_whole_prompt_give_way_to_the_next_best(tmp_path: Path, model: Path) -> None:
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0), "llamacpp": _player(tmp_path / "theirs", 5000.0, fault="settings")}
    options = BenchmarkOptions(threads=(1,), prompt_lengths=(8192,), batch_sizes=(), rounds=1, interpreters=interpreters, roofline=False)
    peer = run_benchmark(model, options).runs[0].engines["llamacpp"]
    assert max(peer.trials, key=lambda trial: trial.tokens_per_second).settings["batch"] == 2048
    assert peer.chosen["prefill 8192"] == {"flash_attention": True, "repack": True, "batch": 128} and "batch 128" in peer.settings
    assert len(peer.seconds["prefill 8192"]) == 1


def test_long_batches_are_tried_for_long_prompts_alone() -> None:
    assert alternatives("llamacpp", "batch", Measurement("prefill", 512)) == (128,)
    assert alternatives("ik_llamacpp", "batch", Measurement("prefill", 8192)) == (2048, 128)
    assert alternatives("llamacpp", "batch", Measurement("decode", 96)) == ()
    assert alternatives("llamacpp", "repack", Measurement("decode", 96)) == (False,)


def test_a_missing_peer_is_named_and_a_missing_engine_of_ours_ends_the_run(tmp_path: Path, model: Path) -> None:
    ours = _player(tmp_path / "ours", 2000.0)
    broken = _player(tmp_path / "broken", 1.0, fault="start")
    refusing = _player(tmp_path / "refusing", 1.0, fault="refusal")
    interpreters = {"edgeinfer": ours, "llamacpp": broken, "ik_llamacpp": str(tmp_path / "nowhere"), "openvino": refusing}
    found = run_benchmark(model, BenchmarkOptions(threads=(1,), rounds=1, peers=PEERS, interpreters=interpreters, roofline=False)).runs[0]
    assert list(found.engines) == ["edgeinfer"] and found.roofline is None and found.fraction("edgeinfer", "decode 96") is None
    assert "ended with code 3" in found.missing["llamacpp"] and "it said: no such model" in found.missing["llamacpp"]
    assert "No such file" in found.missing["ik_llamacpp"]
    assert found.missing["openvino"] == "it does not read this file"
    with pytest.raises(BackendUnavailableError, match="edgeinfer"):
        run_benchmark(model, BenchmarkOptions(threads=(1,), peers=(), interpreters={"edgeinfer": broken}))


def test_our_backends_take_turns_with_peers_and_are_kept_for_auto(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    interpreters = {"edgeinfer": _player(tmp_path / "numba", 1000.0), "edgeinfer-onnx": _player(tmp_path / "onnx", 2000.0)}
    interpreters |= {"edgeinfer-tpu": _player(tmp_path / "tpu", 1.0, fault="start"), "llamacpp": _player(tmp_path / "theirs", 500.0)}
    options = BenchmarkOptions(threads=(1,), rounds=1, backends=("onnx", "numba", "tpu"), interpreters=interpreters, roofline=False, search=False)
    result = run_benchmark(model, options)
    (run,) = result.runs
    assert list(run.engines) == ["edgeinfer-onnx", "edgeinfer", "llamacpp"] and "ended with code 3" in run.missing["edgeinfer-tpu"]
    assert run.base == "edgeinfer" and run.peers() == ["edgeinfer-onnx", "llamacpp"]
    assert run.ratio("edgeinfer-onnx", "prefill 512") == pytest.approx(0.5) and run.ratio("llamacpp", "decode 96") == pytest.approx(2.0)
    found = comparison(result, run)
    assert found is not None and set(found.speeds) == {"numba", "onnx"} and found.speeds["onnx"].prompt == pytest.approx(1 / 2000)
    (said,) = keep_comparisons(result, model)
    assert said.startswith("`--backend auto` takes onnx from now on: ")
    with GGUFFile.open(model) as file:
        assert candidates(file, 1)[0] == ["onnx", "numba"]
    alone = run_benchmark(model, replace(options, backends=("onnx",), peers=()))
    assert alone.runs[0].base == "edgeinfer-onnx" and keep_comparisons(alone, model) == []
    (tmp_path / "home").rename(tmp_path / "gone")
    (tmp_path / "home").write_text("no folder")
    assert "cannot be kept" in keep_comparisons(result, model)[0]


def test_an_engine_that_fails_on_the_way_ends_the_run_with_its_words(tmp_path: Path, model: Path) -> None:
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0), "llamacpp": _player(tmp_path / "theirs", 1.0, fault="middle")}
    with pytest.raises(EdgeInferError, match="llamacpp: it broke"):
        run_benchmark(model, BenchmarkOptions(threads=(1,), rounds=1, interpreters=interpreters, roofline=False))


def test_a_peer_that_reads_prompts_but_cannot_answer_is_left_out_with_its_words(tmp_path: Path, model: Path) -> None:
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0), "llamacpp": _player(tmp_path / "theirs", 1.0, fault="mute")}
    options = BenchmarkOptions(threads=(1,), rounds=1, interpreters=interpreters, roofline=False)
    [run] = run_benchmark(model, options).runs
    assert set(run.engines["llamacpp"].skipped.values()) == {"llamacpp: it broke"} and not run.engines["edgeinfer"].skipped
    assert list(run.engines["edgeinfer"].seconds) == list(run.engines["llamacpp"].skipped)
    _player(tmp_path / "ours", 1.0, fault="mute")
    with pytest.raises(EdgeInferError, match="edgeinfer: it broke"):
        run_benchmark(model, options)


@pytest.mark.llamacpp
@pytest.mark.model
def test_llamacpp_is_measured_in_its_own_process(tmp_path: Path, model_path) -> None:  # type: ignore[no-untyped-def]
    interpreters = {"edgeinfer": _player(tmp_path / "ours", 2000.0)}
    options = BenchmarkOptions(threads=(1,), prompt_lengths=(16,), decode_tokens=2, rounds=1, search=False, interpreters=interpreters, roofline=False)
    found = run_benchmark(model_path("smollm2-135m"), options).runs[0]
    assert found.missing == {}
    peer = found.engines["llamacpp"]
    assert "llama-cpp-python" in peer.version and "flash attention on" in peer.settings
    assert peer.memory.private_peak > 20_000_000 and peer.memory.file_pages > 50_000_000
    assert found.speed("llamacpp", "decode 2") > 0

"""The onnx backend beyond the contract: accuracy on quantized weights, what shares a run, memory, and its errors."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.load import load_backend
from edgeinfer.backends.onnx import library
from edgeinfer.backends.onnx.backend import OnnxBackend
from edgeinfer.backends.onnx.cache import SlotCache
from edgeinfer.backends.onnx.growing_cache import GrowingCache
from edgeinfer.backends.onnx.runs import runs_of
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError, MemoryPlanError, StepAbortedError
from edgeinfer.core.steps import SequenceTable, Step
from edgeinfer.model.program import CacheStore
from tests.backends.onnx_graphs import distance, reference
from tests.backends.support import Driver, Rows
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

OPTIONS = BackendOptions(context=96, threads=1, maximum_step_rows=64, maximum_sequences=4)


def _tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(33, 280), k=count)


@pytest.mark.onnx
@pytest.mark.parametrize("format_name", ["Q4_1", "Q5_0", "Q8_0"])
@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2, tiny_gemma3])
def test_quantized_models_are_near_the_reference(make: type, format_name: str, tmp_path: Path) -> None:
    path = make(tmp_path / "model.gguf", weight_format=format_name)
    tokens = _tokens(60)
    with Engine.load(path, backend="onnx", context=96, threads=1, chunk=17) as engine:
        assert distance(engine.logits(tokens), reference(path, tokens)) < 0.05


@pytest.mark.onnx
@pytest.mark.parametrize("provider", [None, "cpu:dialect=opset21", "cpu:dialect=opset23"])
def test_a_batch_of_quantized_decodes_is_near_each_alone(provider: str | None, tmp_path: Path) -> None:
    backend = load_backend("onnx", tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1"), replace(OPTIONS, provider=provider))
    driver = Driver(backend)
    prompts = {number: _tokens(5 + 9 * number, number) for number in range(4)}
    alone = {number: driver.whole(10 + number, [*tokens, 77])[-1:] for number, tokens in prompts.items()}
    for number, tokens in prompts.items():
        driver.run(Rows(number, 0, tokens, outputs=0))
    shuffled = [2, 0, 3, 1]
    together = driver.run(*[Rows(number, len(prompts[number]), [77]) for number in shuffled])
    for number, logits in zip(shuffled, together, strict=True):
        assert distance(logits, alone[number]) < 0.02
    driver.release(1)
    again = driver.run(*[Rows(number, len(prompts[number]), [77]) for number in (3, 2, 0)])  # a hole between the slots
    assert all(distance(logits, alone[number]) < 0.02 for number, logits in zip((3, 2, 0), again, strict=True))
    driver.release(0, 2, 3)
    backend.close()


@pytest.mark.onnx
@pytest.mark.parametrize("provider", [None, "cpu:dialect=opset21"])
def test_an_aborted_step_can_be_run_again(provider: str | None, tmp_path: Path) -> None:
    backend = load_backend("onnx", tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1"), replace(OPTIONS, provider=provider))
    driver = Driver(backend)
    first, second = _tokens(40, 1), _tokens(40, 2)
    driver.run(Rows(1, 0, first[:20], outputs=0))
    parts = Rows(1, 20, first[20:], outputs=1), Rows(2, 0, second, outputs=1)
    abort, runs = np.zeros(1, np.int64), 0
    real = backend._run  # type: ignore[attr-defined]

    def run(*arguments: object) -> None:
        nonlocal runs
        real(*arguments)
        runs += 1
        abort[0] = 1

    backend._run = run  # type: ignore[attr-defined]
    with pytest.raises(StepAbortedError):
        backend.step(replace(driver.step(*parts), abort=abort))
    assert runs == 1
    del backend._run  # type: ignore[attr-defined]
    found = driver.run(*parts)
    assert distance(found[0], driver.whole(3, first)[-1:]) < 0.02 and distance(found[1], driver.whole(4, second)[-1:]) < 0.02
    backend.close()


def _step(counts: list[int]) -> Step:
    sequence = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    zeros = np.zeros(len(sequence), np.int32)
    return Step(zeros, sequence, zeros, zeros, zeros, zeros.astype(np.uint8), tuple(SequenceTable(number, 0, ()) for number in range(len(counts))))


def test_single_rows_in_neighbouring_slots_share_a_run() -> None:
    runs = runs_of(_step([1, 3, 1, 1, 1]), np.array([4, 0, 2, 3, 7]), 2)
    found = [(run.first, run.count, run.rows.tolist()) for run in runs]
    assert found == [(0, 1, [1, 2]), (0, 1, [3]), (2, 3, [4, 5, 0]), (7, 1, [6])]


def test_slots_are_reused_from_the_front_and_their_memory_is_given_back() -> None:
    store = CacheStore(0, "paged", 1, 64, 64, 0)
    cache = SlotCache([store], 3, 64)
    assert [cache.slot(number, 0) for number in (7, 8, 9)] == [0, 1, 2]
    with pytest.raises(EdgeInferError, match="more than 3 sequences"):
        cache.slot(10, 0)
    for _, array in cache.arrays(1, 1):
        array[:] = 1
    cache.filled(1, 64)
    assert cache.slot(8, 64) == 1
    cache.release(8)
    cache.release(8)
    assert all((array == 0).all() for _, array in cache.arrays(0, 3))
    assert cache.slot(11, 0) == 1
    with pytest.raises(InvalidRequestError, match="holds 0 tokens"):
        cache.slot(11, 5)
    cache.close()


def test_places_grow_and_shrink_with_the_longest_sequence_and_keep_what_is_held() -> None:
    store = CacheStore(0, "paged", 2, 4, 4, 0)
    cache = GrowingCache([store], 3, 512)
    random = np.random.default_rng(0)
    rows = {number: random.standard_normal((2, 2, 300, 4)).astype(np.float32) for number in range(2)}  # [key or value, kv_heads, tokens, size]

    def write(number: int, start: int, end: int) -> None:
        slot = cache.slot(number, start)
        cache.fit(end)
        cache.write(slot, np.array([start]), dict(zip(("0.key", "0.value"), (part[np.newaxis, :, start:end] for part in rows[number]))))

    def holds(number: int, length: int) -> bool:
        slot = cache.slot(number, length)
        return all(np.array_equal(array[slot, :, :length], part[:, :length]) for (_, array), part in zip(cache.arrays(0, 3), rows[number]))

    assert cache.places == 0 and not cache.fit()
    write(0, 0, 100)
    write(1, 0, 30)
    assert cache.places == 128
    write(0, 100, 300)
    assert cache.places == 384 and holds(0, 300) and holds(1, 30)
    assert not cache.fit(200) and cache.fit(500) and cache.places == 512
    assert holds(0, 300) and holds(1, 30)
    cache.release(0)
    assert cache.fit() and cache.places == 128 and holds(1, 30)
    assert cache.slot(2, 0) == 0 and [array.shape for _, array in cache.empty(2)] == [(2, 2, 0, 4)] * 2
    cache.close()


@pytest.mark.onnx
def test_options_that_the_backend_lacks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "model.gguf")
    with pytest.raises(InvalidRequestError, match="instruction_set"):
        Engine.load(path, backend="onnx", instruction_set="portable")
    with pytest.raises(InvalidRequestError, match="cache_type is 'q8_0'"):
        Engine.load(path, backend="onnx", cache_type="q8_0")
    with pytest.raises(MemoryPlanError, match="KV cache"):
        Engine.load(path, backend="onnx", context=96, cache_tokens=10**12)
    monkeypatch.setattr(library, "import_problem", lambda module: "not installed" if module == "onnxruntime" else None)
    with pytest.raises(BackendUnavailableError, match=r"needs onnxruntime.*\(not installed\).*pip install 'edgeinfer\[onnx\]'"):
        OnnxBackend.load(path, OPTIONS)


@pytest.mark.onnx
def test_rope_positions_that_are_no_slots_are_refused(tmp_path: Path) -> None:
    backend = load_backend("onnx", tiny_llama(tmp_path / "model.gguf"), OPTIONS)
    step = _step([2])
    with pytest.raises(InvalidRequestError, match="rope positions"):
        backend.step(Step(**{**step.__dict__, "slots": np.arange(2, dtype=np.int32), "rope_positions": np.full(2, 5, np.int32)}))
    backend.close()


@pytest.mark.onnx
def test_warnings_reach_the_engine(tmp_path: Path) -> None:
    with Engine.load(tiny_llama(tmp_path / "model.gguf", weight_format="Q5_0"), backend="onnx", context=96, threads=1) as engine:
        assert any("Q5_0" in warning for warning in engine.warnings) and any("float32" in warning for warning in engine.warnings)
        assert "ONNX Runtime" in engine.capabilities.description


@pytest.mark.onnx
def test_weights_go_through_a_temporary_file_or_the_warning_says_that_they_could_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_qwen2(tmp_path / "model.gguf", weight_format="Q4_1")
    found = []
    for folder in (tmp_path / "here", tmp_path / "nowhere"):
        if folder.name == "here":
            folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with Engine.load(path, backend="onnx", context=96, threads=1, cache_type="f32") as engine:
            found.append((engine.logits(_tokens(40)), engine.warnings))
    assert list((tmp_path / "here").iterdir()) == []
    assert not any("TMPDIR" in warning for warning in found[0][1]) and "TMPDIR" in found[1][1][-1]
    assert np.array_equal(found[0][0], found[1][0])


@pytest.mark.onnx
def test_bench_runs_our_engine_on_it(tmp_path: Path) -> None:
    from edgeinfer.benchmark.peers.ours import EdgeInferRunner
    from edgeinfer.benchmark.peers.runner import Start

    runner = EdgeInferRunner(Start("edgeinfer-onnx", str(tiny_llama(tmp_path / "model.gguf")), 1, 96, 1, 96, {}))
    assert "ONNX Runtime" in runner.describe()["details"]
    assert runner.prefill(_tokens(20)) > 0 and runner.decode([_tokens(20, 1)], 3) > 0


def test_neither_library_is_imported_before_it_is_needed() -> None:
    program = "import sys, edgeinfer.backends.onnx.backend, edgeinfer.backends.onnx.export; sys.exit('onnxruntime' in sys.modules or 'onnx' in sys.modules)"
    root = str(Path(__file__).resolve().parents[2])
    assert subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": root}).returncode == 0


@pytest.mark.onnx
def test_a_prefix_is_copied_to_new_sequences_alone_and_counted_for_each(tmp_path: Path) -> None:
    backend = load_backend("onnx", tiny_llama(tmp_path / "model.gguf"), OPTIONS)
    driver = Driver(backend)
    tokens = _tokens(64)
    driver.run(Rows(1, 0, tokens, outputs=1))
    for source, target, length in ((7, 2, 32), (1, 2, 65), (1, 2, 0), (1, 1, 32)):
        with pytest.raises(InvalidRequestError, match="cannot take over"):
            backend.share_prefix(source, target, length)
    backend.share_prefix(1, 2, 32)
    changed = driver.run(Rows(1, 0, _tokens(40, 5), outputs=1))[0]
    again = driver.run(Rows(2, 32, tokens[32:], outputs=1))[0]
    assert distance(again, driver.whole(3, tokens)[-1:]) < 1e-4 and distance(changed, again) > 0.01
    backend.close()
    with Engine.load(tmp_path / "model.gguf", backend="onnx", context=96, threads=1, cache_tokens=192) as engine:
        first = engine.generate(tokens, SamplingParams(max_tokens=4, ignore_eos=True))
        second = engine.generate(tokens, SamplingParams(max_tokens=4, ignore_eos=True))
        assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 32) and first.token_ids == second.token_ids
        engine._loop.scheduler.check()
        assert len(engine._loop.scheduler._kept) == 2 and engine._loop.scheduler._pools[0].used == 6  # three pages each, and none is shared

"""The llamacpp backend beyond the contract: threads, what it says of itself, its log by thread, its plan, steps that are cut, failures that leave no
trace; and embeddings of all backends beside those that llama.cpp pools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import Engine
from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.llamacpp import LlamaCppBackend
from edgeinfer.backends.llamacpp_library import load_library, model_parameters
from edgeinfer.core.errors import (
    EdgeInferError,
    InvalidRequestError,
    MemoryPlanError,
    ModelFileError,
    NonFiniteError,
    StepAbortedError,
    UnsupportedOptionError,
)
from edgeinfer.core.steps import OutputKind
from tests.backends.support import Driver, Rows
from tests.backends.test_contract import _equal, _tokens
from tests.support.split_models import split_file
from tests.support.tiny_models import tiny_gemma3, tiny_llama

pytestmark = pytest.mark.llamacpp

OPTIONS: dict[str, Any] = {"context": 128, "threads": 1, "maximum_step_rows": 128, "maximum_sequences": 4, "cache_type": "f32", "cache_tokens": 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama.gguf")


@pytest.fixture(scope="module")
def backend(model: Path) -> Iterator[LlamaCppBackend]:
    loaded = LlamaCppBackend.load(model, BackendOptions(**OPTIONS))
    yield loaded
    loaded.close()


def test_it_says_its_version_and_how_it_was_built(backend: LlamaCppBackend) -> None:
    said = backend.capabilities.description
    assert said.startswith("llama.cpp ") and " of llama-cpp-python 0." in said
    assert "built with" in said and "REPACK" in said and "flash attention off" in said and " = " not in said


def test_a_cache_type_of_ours_alone_is_refused(model: Path) -> None:
    with pytest.raises(UnsupportedOptionError, match=r"'q16_0', but llama.cpp has f32, f16, q8_0; .* numba"):
        LlamaCppBackend.load(model, BackendOptions(**{**OPTIONS, "cache_type": "q16_0"}))


def test_any_shard_opens_a_split_model(model: Path, backend: LlamaCppBackend, tmp_path: Path) -> None:
    """llama.cpp itself opens the first one only."""
    from edgeinfer.backends.llamacpp_vocabulary import LlamaCppVocabulary

    shards = split_file(model, tmp_path, "parts", 3)
    prompt = _tokens(9, 1)
    loaded = LlamaCppBackend.load(shards[2], BackendOptions(**OPTIONS))
    try:
        assert _equal(True, Driver(loaded).whole(0, prompt), Driver(backend).whole(7, prompt))
    finally:
        loaded.close()
    with LlamaCppVocabulary(shards[1]) as vocabulary:
        assert vocabulary.size == backend.capabilities.vocabulary


def test_threads_step_and_release_side_by_side(backend: LlamaCppBackend) -> None:
    driver = Driver(backend)
    prompts = [_tokens(60, number) for number in range(4)]
    expected = [driver.whole(number, prompt) for number, prompt in enumerate(prompts)]

    def run(number: int) -> list[bool]:
        own = Driver(backend)
        return [_equal(False, own.whole(100 + number, prompts[number], chunk=5), expected[number]) for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        assert all(all(same) for same in pool.map(run, range(4)))


def test_an_aborted_step_leaves_the_context_as_it_was(model: Path) -> None:
    backend = LlamaCppBackend.load(model, BackendOptions(**OPTIONS))
    driver = Driver(backend)
    first, second = _tokens(60, 1), _tokens(60, 2)
    driver.run(Rows(1, 0, first[:30], outputs=0))
    driver.run(Rows(2, 0, second[:30], outputs=0))
    step = replace(driver.step(Rows(1, 30, first[30:]), Rows(2, 30, second[30:])), abort=np.ones(1, np.int64))
    with pytest.raises(StepAbortedError):
        backend.step(step)
    found = driver.run(Rows(1, 30, first[30:]), Rows(2, 30, second[30:]))
    unabortable = driver.run(Rows(1, 59, first[59:]))
    backend.close()
    fresh = LlamaCppBackend.load(model, BackendOptions(**OPTIONS))
    again = Driver(fresh)
    again.run(Rows(1, 0, first[:30], outputs=0))
    again.run(Rows(2, 0, second[:30], outputs=0))
    expected = again.run(Rows(1, 30, first[30:]), Rows(2, 30, second[30:]))
    fresh.close()
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True)) and len(unabortable[0]) == 1


def test_nothing_is_shared_of_a_model_with_windows(backend: LlamaCppBackend, tmp_path: Path) -> None:
    """llama.cpp gives cells behind a sequence's window to others: requests side by side would now and then begin with what is no longer there."""
    assert backend.capabilities.kept_sequences > 0
    windowed = LlamaCppBackend.load(tiny_gemma3(tmp_path / "gemma3.gguf"), BackendOptions(**OPTIONS))
    try:
        assert windowed.capabilities.kept_sequences == 0
        driver = Driver(windowed)
        driver.whole(1, _tokens(100))
        with pytest.raises(InvalidRequestError, match="cannot take over"):
            windowed.share_prefix(1, 2, 32)
    finally:
        windowed.close()


def test_closing_waits_for_the_step_that_runs(model: Path) -> None:
    loaded = LlamaCppBackend.load(model, BackendOptions(**OPTIONS))
    driver, errors = Driver(loaded), []

    def run() -> None:
        try:
            for _ in range(2000):
                driver.whole(1, _tokens(100))
        except EdgeInferError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    loaded.close()
    thread.join(timeout=60)
    assert not thread.is_alive() and errors == ["the llamacpp backend was closed"]


def test_reasons_are_those_of_the_own_thread(tmp_path: Path) -> None:
    missing = [tiny_llama(tmp_path / f"{name}.gguf", tensors={f"blk.{layer}.{name}.weight": None}) for layer, name in ((0, "attn_k"), (1, "ffn_up"))]

    def reason(path: Path) -> str:
        with pytest.raises(ModelFileError) as caught:
            LlamaCppBackend.load(path, BackendOptions(**OPTIONS))
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            first, second = pool.map(reason, missing)
            assert "attn_k.weight" in first and "ffn_up.weight" not in first.replace(str(missing[1]), "")
            assert "ffn_up.weight" in second and "attn_k.weight" not in second.replace(str(missing[0]), "")


@pytest.mark.parametrize(("build", "interleaves"), [(b"CPU : AVX512 = 1 | AMX_INT8 = 1 | REPACK = 1", False), (b"CPU : AVX512 = 1 | REPACK = 1", True)])
def test_amx_kernels_of_llama_cpp_stay_out_of_use(build: bytes, interleaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    monkeypatch.setattr(library, "llama_print_system_info", lambda: build)
    parameters = model_parameters(library)
    assert parameters.use_extra_bufts == interleaves
    assert parameters.n_gpu_layers == 0


def test_hidden_states_of_a_step_above_the_room_for_outputs(backend: LlamaCppBackend) -> None:
    """llama.cpp then gives an output for every row, wanted or not: more rows than there is room for are decoded in pieces."""
    driver = Driver(backend)
    one, two = _tokens(70, 1), _tokens(50, 2)
    expected = driver.whole(1, two)
    (few,) = driver.run(Rows(2, 0, one[:20], outputs=3, kind=OutputKind.HIDDEN))
    driver.release(2)
    hidden, logits = driver.run(Rows(2, 0, one, outputs=60, kind=OutputKind.HIDDEN), Rows(3, 0, two, outputs=4))
    assert _equal(False, logits, expected[-4:])
    assert _equal(False, hidden[17 - 10 : 20 - 10], few)
    driver.release(2, 3)


def test_a_sequence_that_takes_over_must_be_new_and_the_length_must_be_there(backend: LlamaCppBackend) -> None:
    driver = Driver(backend)
    driver.run(Rows(1, 0, _tokens(40)))
    for source, target, length in ((1, 1, 10), (1, 2, 41), (7, 2, 1), (1, 2, 0)):
        with pytest.raises(InvalidRequestError, match="cannot take over"):
            backend.share_prefix(source, target, length)
    backend.share_prefix(1, 2, 40)
    driver.release(1, 2)


def test_sequences_beyond_the_room_are_refused(backend: LlamaCppBackend) -> None:
    driver = Driver(backend)
    limit = backend.capabilities.maximum_sequences + backend.capabilities.kept_sequences
    for number in range(limit):
        driver.run(Rows(number, 0, _tokens(3)))
    with pytest.raises(EdgeInferError, match=f"more than {limit} sequences"):
        driver.run(Rows(limit, 0, _tokens(3)))
    driver.release(*range(limit))


def test_a_step_without_room_fails_with_the_reason_and_leaves_its_sequences_as_they_were(model: Path) -> None:
    loaded = LlamaCppBackend.load(model, BackendOptions(**{**OPTIONS, "cache_tokens": 256}))
    driver = Driver(loaded)
    tokens = _tokens(120)
    expected = driver.whole(9, tokens)
    for number in range(2):
        driver.run(Rows(number, 0, tokens, outputs=0))
    driver._free = [list(range(100)) for _ in driver._free]  # the scheduler would not have let this one in
    with pytest.raises(EdgeInferError, match=r"could not run a step of 60 tokens \(status 1\): .*slot"):
        driver.run(Rows(0, 100, tokens[100:120]), Rows(5, 0, tokens[:40]))
    driver.release(5, 1)
    assert _equal(False, driver.run(Rows(0, 100, tokens[100:]))[0], expected[100:])
    loaded.close()


def test_a_step_with_infinities_leaves_its_sequences_as_they_were(tmp_path: Path) -> None:
    broken = tiny_llama(tmp_path / "overflowing.gguf", tensors={"output_norm.weight": np.full(64, 3e38, dtype=np.float32)})
    loaded = LlamaCppBackend.load(broken, BackendOptions(**OPTIONS))
    driver = Driver(loaded)
    driver.run(Rows(1, 0, _tokens(10), outputs=0))
    for kind in (OutputKind.LOGITS, OutputKind.HIDDEN):
        with pytest.raises(NonFiniteError):
            driver.run(Rows(1, 10, _tokens(5), kind=kind))
    driver.run(Rows(1, 10, _tokens(5), outputs=0))
    loaded.close()


def test_the_plan_counts_heads_by_their_size_and_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_gemma3(tmp_path / "gemma.gguf", head_size=48)  # width 64 / 2 heads would be 32
    loaded = LlamaCppBackend.load(model, BackendOptions(**OPTIONS))
    assert loaded.memory_plan.cache == 6 * 1 * (48 + 48) * 512 * 4  # layers, kv heads, key and value, cells, float32
    loaded.close()
    monkeypatch.setattr("edgeinfer.core.memory_plan.MemoryPlan.peak", property(lambda plan: plan.available + 1))
    with pytest.raises(MemoryPlanError, match=r"gemma\.gguf needs"):
        LlamaCppBackend.load(model, BackendOptions(**OPTIONS))


POOLINGS = {"mean": 1, "cls": 2, "last": 3}  # llama_pooling_type


def _embeddings_of_llama_cpp(model: Path, pooling: int, texts: list[str]) -> np.ndarray:
    """float32[texts, width], of length 1: through llama-cpp-python's own class, which pools in llama.cpp."""
    from llama_cpp import Llama

    llama = Llama(str(model), embedding=True, pooling_type=pooling, n_ctx=256, n_threads=1, type_k=0, type_v=0, flash_attn=False, verbose=False)
    try:
        return np.array(llama.embed(texts, normalize=True), dtype=np.float32)
    finally:
        llama.close()


@pytest.mark.parametrize("name", ["numba", "llamacpp", pytest.param("onnx", marks=pytest.mark.onnx)])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma3])
def test_embeddings_are_those_that_llama_cpp_pools(name: str, make: Callable[..., Path], tmp_path: Path) -> None:
    model = make(tmp_path / "model.gguf")
    texts = ["a", "Several words in a row, and a second sentence.", "x" * 40]
    with Engine.load(model, backend=name, context=128, threads=1, cache_type="f32") as engine:
        for pooling, number in POOLINGS.items():
            assert _equal(False, np.stack(engine.embed(texts, pooling)), _embeddings_of_llama_cpp(model, number, texts))


@pytest.mark.model
@pytest.mark.parametrize("name", ["numba", "llamacpp"])
def test_embeddings_of_a_real_model_point_where_llama_cpps_do(name: str, model_path: Callable[[str], Path]) -> None:
    model = model_path("smollm2-135m")
    texts = ["The cat sat on the mat.", "A kitten rests on a rug.", "Interest rates rose again in March."]
    expected = _embeddings_of_llama_cpp(model, POOLINGS["mean"], texts)
    with Engine.load(model, backend=name, context=256, threads=1, cache_type="f32") as engine:
        found = np.stack(engine.embed(texts, "mean"))
    assert (found * expected).sum(axis=1).min() > 0.99  # of quantized weights: activations are of 8 bits on either side, but rounded differently
    assert (found @ found.T)[0].argsort().tolist() == (expected @ expected.T)[0].argsort().tolist()

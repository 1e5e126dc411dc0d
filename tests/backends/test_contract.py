"""What every backend promises, on small models: bits or tolerances across batches and chunks, release and reuse, ends, errors, no leaks."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.load import load_backend
from edgeinfer.core.errors import EdgeInferError, NonFiniteError
from tests.backends.support import Driver, Logits, Rows
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

CONTEXT = 128
Make = Callable[..., Path]
MODELS: dict[str, Make] = {"llama": tiny_llama, "qwen2": tiny_qwen2, "gemma3": tiny_gemma3}


def _cases() -> list[object]:
    cases: list[object] = [pytest.param(("fake", "llama"), id="fake")]
    cases += [pytest.param(("llamacpp", model), id=f"llamacpp-{model}", marks=pytest.mark.llamacpp) for model in MODELS]
    cases += [pytest.param(("onnx", model), id=f"onnx-{model}", marks=pytest.mark.onnx) for model in MODELS]
    if importlib.util.find_spec("edgeinfer.backends.numba") is not None:
        cases += [pytest.param(("numba", model), id=f"numba-{model}") for model in MODELS]
    return cases


@pytest.fixture(scope="module", params=_cases())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name, model = request.param
    return name, MODELS[model](tmp_path_factory.mktemp("models") / f"{model}.gguf")


def _load(case: tuple[str, Path], **options: object) -> Backend:
    fields: dict[str, object] = {"context": CONTEXT, "threads": 1, "maximum_step_rows": 64, "maximum_sequences": 4, "cache_type": "f32", **options}
    return load_backend(case[0], case[1], BackendOptions(**fields))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def backend(case: tuple[str, Path]) -> Iterator[Backend]:
    loaded = _load(case)
    yield loaded
    loaded.close()


@pytest.fixture
def driver(backend: Backend) -> Iterator[Driver]:
    driver = Driver(backend)
    yield driver
    driver.release(*list(driver._held))


def _tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(33, 280), k=count)  # in every tiny vocabulary


def _equal(exact: bool, first: Logits, second: Logits) -> bool:
    if exact:
        return np.array_equal(first, second)
    return bool((np.linalg.norm(first - second, axis=1) < 5e-3 * np.linalg.norm(first, axis=1)).all())


def test_capabilities_are_what_was_asked_for(backend: Backend) -> None:
    capabilities = backend.capabilities
    assert capabilities.context == CONTEXT and capabilities.maximum_step_rows == 64 and capabilities.maximum_sequences == 4
    assert capabilities.vocabulary > 280 and capabilities.threads >= 1 and capabilities.description
    assert all(group.page_size > 0 and group.pages * group.page_size >= CONTEXT for group in capabilities.cache_groups)
    assert backend.memory_plan.cache > 0


@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_chunks_give_what_the_whole_gives(driver: Driver, chunk: int) -> None:
    tokens = _tokens(100)
    assert _equal(driver.backend.capabilities.bit_exact_chunks, driver.whole(1, tokens, chunk), driver.whole(2, tokens))


def test_a_batch_gives_what_each_sequence_gives_alone(driver: Driver) -> None:
    exact = driver.backend.capabilities.bit_exact_batches
    prompts = [_tokens(count, seed=count) for count in (1, 9, 20, 30)]
    alone = [driver.whole(number, tokens) for number, tokens in enumerate(prompts)]
    first = driver.run(*[Rows(10 + number, 0, tokens) for number, tokens in enumerate(prompts)])
    assert all(_equal(exact, one, other) for one, other in zip(first, alone, strict=True))
    for number, tokens in enumerate(prompts):
        prompts[number] = [*tokens, 270 + number]
    next_rows = driver.run(*[Rows(10 + number, len(tokens) - 1, tokens[-1:]) for number, tokens in enumerate(prompts)])
    driver.release(10, 11, 12, 13)
    assert all(_equal(exact, row, driver.whole(20, tokens)[-1:]) for row, tokens in zip(next_rows, prompts, strict=True))


def test_decoding_beside_a_prompt_gives_what_it_gives_alone(driver: Driver) -> None:
    exact = driver.backend.capabilities.bit_exact_batches
    one, two = _tokens(40, 1), _tokens(90, 2)
    expected_one, expected_two = driver.whole(1, one), driver.whole(2, two)
    got_one = [driver.run(Rows(3, 0, one[:10]))[0]]
    got_two = []
    for turn in range(30):
        decoded, chunk = driver.run(Rows(3, 10 + turn, one[10 + turn : 11 + turn]), Rows(4, 3 * turn, two[3 * turn : 3 * turn + 3]))
        got_one.append(decoded)
        got_two.append(chunk)
    assert _equal(exact, np.concatenate(got_one), expected_one)
    assert _equal(exact, np.concatenate(got_two), expected_two)


def test_only_the_rows_asked_for_come_back_and_they_are_the_same(driver: Driver) -> None:
    tokens = _tokens(40)
    expected = driver.whole(1, tokens)
    (last,) = driver.run(Rows(2, 0, tokens, outputs=1))
    assert _equal(driver.backend.capabilities.bit_exact_batches, last, expected[-1:])
    driver.release(2)
    none, some = driver.run(Rows(3, 0, tokens[:20], outputs=0), Rows(4, 0, tokens[:30], outputs=5))
    assert none.shape[0] == 0
    assert _equal(driver.backend.capabilities.bit_exact_batches, some, expected[25:30])


def test_a_released_sequence_leaves_nothing_behind(driver: Driver) -> None:
    expected = driver.whole(1, _tokens(50, 1))
    for turn in range(6):  # more than there may be sequences at once
        driver.whole(10 + turn, _tokens(60, 10 + turn))
    assert _equal(driver.backend.capabilities.bit_exact_batches, driver.whole(1, _tokens(50, 1)), expected)
    driver.backend.release([999])  # a sequence that never ran


def test_positions_that_are_computed_again_replace_the_old_ones(driver: Driver) -> None:
    tokens, others = _tokens(60, 1), _tokens(60, 2)
    expected = driver.whole(1, tokens)
    driver.run(Rows(2, 0, [*tokens[:20], *others[20:60]]))
    again = driver.run(Rows(2, 20, tokens[20:60]))[0]
    assert _equal(driver.backend.capabilities.bit_exact_chunks, again, expected[20:])


def test_the_last_place_of_the_context_can_be_used(driver: Driver) -> None:
    logits = driver.whole(1, _tokens(CONTEXT))
    assert logits.shape[0] == CONTEXT and np.isfinite(logits).all()


def test_the_tokens_matter(driver: Driver) -> None:
    tokens = _tokens(30)
    changed = [*tokens[:5], tokens[5] + 1, *tokens[6:]]
    first, second = driver.whole(1, tokens), driver.whole(2, changed)
    assert _equal(driver.backend.capabilities.bit_exact_batches, first[:5], second[:5])
    assert np.abs(first[5:] - second[5:]).max(axis=1).min() > 1e-3


def test_closing_twice_is_fine_and_a_step_afterwards_is_a_clear_error(case: tuple[str, Path]) -> None:
    loaded = _load(case)
    driver = Driver(loaded)
    driver.run(Rows(1, 0, _tokens(5)))
    loaded.close()
    loaded.close()
    with pytest.raises(EdgeInferError):
        driver.run(Rows(1, 5, _tokens(1)))


def test_threads_share_an_engine_and_get_their_solo_answers(case: tuple[str, Path]) -> None:
    prompts = [_tokens(5 + 11 * number, number) for number in range(6)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with Engine.load(case[1], backend=case[0], context=CONTEXT, threads=1, chunk=32, cache_type="f32", maximum_sequences=4) as engine:
        solo = [engine.generate(prompt, params).token_ids for prompt in prompts]
        assert [one.token_ids for one in engine.generate_many(prompts, params)] == solo
        with ThreadPoolExecutor(4) as pool:
            for _ in range(3):
                assert [one.token_ids for one in pool.map(lambda prompt: engine.generate(prompt, params), prompts)] == solo
        assert engine.logits(prompts[3]).shape == (len(prompts[3]), engine.vocabulary)


def test_pages_given_up_behind_a_window_and_a_small_step_change_nothing(case: tuple[str, Path], driver: Driver) -> None:
    tokens = _tokens(CONTEXT)
    expected = driver.whole(1, tokens)
    with Engine.load(case[1], backend=case[0], context=CONTEXT, threads=1, chunk=8, cache_type="f32", maximum_sequences=4) as engine:
        other = engine.stream(_tokens(9), SamplingParams(max_tokens=100, ignore_eos=True))  # takes pages that were given up
        assert _equal(driver.backend.capabilities.bit_exact_chunks, engine.logits(tokens), expected)
        assert len(list(other)) == 100


def test_sequences_that_do_not_fit_together_are_computed_again_and_answer_the_same(case: tuple[str, Path]) -> None:
    prompts = [_tokens(40 + number, number) for number in range(4)]
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    options: dict[str, Any] = {"context": CONTEXT, "threads": 1, "cache_type": "f32", "maximum_sequences": 4}
    with Engine.load(case[1], backend=case[0], cache_tokens=4 * CONTEXT, **options) as roomy:
        expected = [roomy.generate(prompt, params).token_ids for prompt in prompts]
    with Engine.load(case[1], backend=case[0], cache_tokens=CONTEXT + 64, **options) as tight:
        assert [one.token_ids for one in tight.generate_many(prompts, params)] == expected
        if case[0] != "llamacpp":  # which rounds its cache up
            assert tight._loop.scheduler.state.preemptions > 0


def _resources() -> tuple[int, int, int]:
    """Resident bytes, threads, open files of this process."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"]), len(os.listdir("/proc/self/fd"))


def test_loading_and_closing_ten_times_leaves_nothing_behind(case: tuple[str, Path]) -> None:
    def once() -> None:
        with Engine.load(case[1], backend=case[0], context=CONTEXT, threads=1, maximum_sequences=4) as engine:
            engine.generate(_tokens(20), SamplingParams(max_tokens=5, ignore_eos=True))

    for _ in range(3):
        once()
    gc.collect()
    before = _resources()
    for _ in range(10):
        once()
    gc.collect()
    after = _resources()
    assert after[0] - before[0] < 16e6
    assert after[1:] == before[1:]


def test_an_engine_that_is_only_dropped_gives_its_memory_back(case: tuple[str, Path]) -> None:
    def once() -> None:
        Engine.load(case[1], backend=case[0], context=CONTEXT, threads=1, maximum_sequences=4).generate([65], SamplingParams(max_tokens=2))

    for _ in range(2):
        once()
    gc.collect()
    before = _resources()
    for _ in range(5):
        once()
    gc.collect()
    after = _resources()
    assert after[0] - before[0] < 16e6 and after[1:] == before[1:]


def test_values_that_are_not_finite_are_a_typed_error(case: tuple[str, Path], tmp_path: Path) -> None:
    if case[0] == "fake":
        pytest.skip("the fake backend computes nothing that could overflow")
    broken = tiny_llama(tmp_path / "overflowing.gguf", tensors={"output_norm.weight": np.full(64, 3e38, dtype=np.float32)})
    with Engine.load(broken, backend=case[0], context=CONTEXT, threads=1, maximum_sequences=4) as engine:
        with pytest.raises(NonFiniteError):
            engine.generate(_tokens(5), SamplingParams(max_tokens=5))
        with pytest.raises(NonFiniteError):
            engine.logits(_tokens(5))

"""The part of the contract suite that runs over an engine: concurrent use, reuse, cancelling, ends, embeddings, no leaks, whatever the backend."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.core.errors import ContextLengthError, EngineClosedError, InvalidRequestError, NonFiniteError
from edgeinfer.core.steps import OutputKind
from tests.backends import test_contract as contract
from tests.backends.support import Driver, Logits
from tests.support.tiny_models import tiny_llama

installed_example, case, backend, driver = contract.installed_example, contract.case, contract.backend, contract.driver  # fixtures


def _engine(case: contract.Case, model: Path | None = None, **options: Any) -> Engine:
    """An engine with one thread on the case's backend; `model`: another one."""
    fields = {"context": contract.CONTEXT, "threads": 1, **options}
    return Engine.load(model or case.model, backend=case.backend, provider=case.provider, **fields)


def test_threads_share_an_engine_and_get_their_solo_answers(case: contract.Case) -> None:
    prompts = [contract._tokens(5 + 11 * number, number) for number in range(6)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with _engine(case, chunk=32, cache_type="f32", maximum_sequences=4) as engine:
        solo = [engine.generate(prompt, params).token_ids for prompt in prompts]
        assert [one.token_ids for one in engine.generate_many(prompts, params)] == solo
        with ThreadPoolExecutor(4) as pool:
            for _ in range(3):
                assert [one.token_ids for one in pool.map(lambda prompt: engine.generate(prompt, params), prompts)] == solo
        assert engine.logits(prompts[3]).shape == (len(prompts[3]), engine.vocabulary)


def test_two_engines_at_once_give_the_answers_of_one(case: contract.Case) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = [contract._tokens(40, number) for number in range(4)]
    options: dict[str, Any] = {"cache_type": "f32", "maximum_sequences": 4}
    with _engine(case, **options) as first, _engine(case, **options) as second:
        expected = [first.generate(prompt, params).token_ids for prompt in prompts]
        with ThreadPoolExecutor(2) as pool:
            answers = pool.map(lambda engine: [engine.generate(prompt, params).token_ids for prompt in prompts], (first, second))
        assert list(answers) == [expected, expected]


@pytest.mark.parametrize("prefix_reuse", [True, False])
def test_a_prompt_that_comes_again_is_answered_the_same_with_and_without_reuse(case: contract.Case, prefix_reuse: bool) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    options: dict[str, Any] = {"cache_type": "f32", "maximum_sequences": 4, "cache_tokens": 4 * contract.CONTEXT}
    with _engine(case, prefix_reuse=prefix_reuse, **options) as engine:
        first = engine.generate(contract._tokens(80), params)
        others = [engine.generate(contract._tokens(60, seed), params) for seed in (1, 2)]
        again = engine.generate(contract._tokens(80), params)
        longer = engine.generate([*contract._tokens(80), 90, 91], params)
        shares = engine.capabilities.kept_sequences or (engine.capabilities.uses_block_tables and engine.capabilities.bit_exact_chunks)
        assert again.token_ids == first.token_ids
        assert [one.usage.cached_tokens for one in (first, *others)] == [0, 0, 0]
        assert (again.usage.cached_tokens >= 64) == (longer.usage.cached_tokens >= 64) == bool(prefix_reuse and shares)
        engine._loop.scheduler.check()


def test_a_cancelled_request_gives_its_places_back_and_nobody_else_notices(case: contract.Case) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    with _engine(case, chunk=8, cache_type="f32", maximum_sequences=2, prefix_reuse=False) as engine:
        expected = engine.generate(contract._tokens(30, 9), params).token_ids
        for number in range(6):  # more than may run at once: without their places back the later ones would wait for ever
            stream = engine.stream(contract._tokens(60, number), params)
            if number % 2:
                next(stream)
                next(stream)
            stream.close()  # type: ignore[attr-defined]
        assert engine.generate(contract._tokens(30, 9), params).token_ids == expected
        deadline = time.monotonic() + 20
        while engine._loop.scheduler.has_work and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sum(engine._loop.scheduler.state.pages_used.values()) == 0


def test_closing_ends_requests_that_run_with_an_error_and_soon(case: contract.Case) -> None:
    engine = _engine(case, chunk=8, maximum_sequences=4)
    streams = [engine.stream(contract._tokens(20, number), SamplingParams(max_tokens=100, ignore_eos=True)) for number in range(6)]
    next(streams[0])
    closing = threading.Thread(target=engine.close)
    closing.start()
    for stream in streams:
        try:
            list(stream)
        except EngineClosedError:
            pass
    closing.join(timeout=30)
    assert not closing.is_alive()
    with pytest.raises(EngineClosedError):
        engine.generate([65])


def test_an_answer_ends_with_the_context(case: contract.Case) -> None:
    with _engine(case, cache_type="f32", maximum_sequences=4) as engine:
        assert engine.context == contract.CONTEXT
        full = engine.generate(contract._tokens(100), SamplingParams(max_tokens=10_000, ignore_eos=True))
        assert full.finish_reason == "length" and len(full.token_ids) == contract.CONTEXT - 100
        assert len(engine.generate(contract._tokens(contract.CONTEXT - 1), SamplingParams(max_tokens=10, ignore_eos=True)).token_ids) == 1
        with pytest.raises(ContextLengthError):
            engine.generate(contract._tokens(contract.CONTEXT))
        assert engine.logits(contract._tokens(contract.CONTEXT)).shape[0] == contract.CONTEXT
        with pytest.raises(ContextLengthError):
            engine.logits(contract._tokens(contract.CONTEXT + 1))


def test_pages_given_up_behind_a_window_and_a_small_step_change_nothing(case: contract.Case, driver: Driver) -> None:
    tokens = contract._tokens(contract.CONTEXT)
    expected = driver.whole(1, tokens)
    with _engine(case, chunk=8, cache_type="f32", maximum_sequences=4) as engine:
        other = engine.stream(contract._tokens(9), SamplingParams(max_tokens=100, ignore_eos=True))  # takes pages that were given up
        assert contract._equal(driver.backend.capabilities.bit_exact_chunks, engine.logits(tokens), expected)
        assert len(list(other)) == 100


def test_embeddings_are_pooled_hidden_states_alone_and_beside_others(case: contract.Case) -> None:
    prompts = [contract._tokens(count, seed=count) for count in (1, 9, 40, contract.CONTEXT)]
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    with _engine(case, chunk=32, cache_type="f32", maximum_sequences=4) as engine:
        if OutputKind.HIDDEN not in engine.capabilities.output_kinds:
            with pytest.raises(InvalidRequestError, match="no hidden states"):
                engine.embed(prompts)
            return
        exact = engine.capabilities.bit_exact_batches and engine.capabilities.bit_exact_chunks
        answer = engine.generate(contract._tokens(20), params).token_ids
        hidden = engine.embed(prompts, "none", normalize=False)
        for prompt, rows in zip(prompts, hidden, strict=True):
            assert rows.shape[0] == len(prompt) and rows.dtype == np.float32
            assert contract._equal(False, rows @ contract._output_matrix(case.model).T, engine.logits(prompt))
        pools: dict[str, Callable[[Logits], Logits]] = {"mean": lambda rows: rows.mean(axis=0), "last": lambda rows: rows[-1], "cls": lambda rows: rows[0]}
        for pooling, pool in pools.items():
            beside = engine.stream(contract._tokens(20), params)
            together = engine.embed(prompts, pooling)
            assert tuple(token for event in beside for token in event.token_ids) == answer
            alone = [engine.embed([prompt], pooling)[0] for prompt in prompts]
            assert contract._equal(exact, np.stack(together), np.stack(alone))
            expected = np.stack([pool(rows) for rows in hidden])
            assert contract._equal(False, np.stack(together), expected / np.linalg.norm(expected, axis=1, keepdims=True))
        with pytest.raises(ContextLengthError):
            engine.embed([contract._tokens(contract.CONTEXT + 1)])
        engine._loop.scheduler.check()


def test_sequences_that_do_not_fit_together_are_computed_again_and_answer_the_same(case: contract.Case) -> None:
    prompts = [contract._tokens(40 + number, number) for number in range(4)]
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    options: dict[str, Any] = {"cache_type": "f32", "maximum_sequences": 4}
    with _engine(case, cache_tokens=4 * contract.CONTEXT, **options) as roomy:
        expected = [roomy.generate(prompt, params).token_ids for prompt in prompts]
    with _engine(case, cache_tokens=contract.CONTEXT + 64, **options) as tight:
        assert [one.token_ids for one in tight.generate_many(prompts, params)] == expected
        if case.backend != "llamacpp":  # which rounds its cache up
            assert tight._loop.scheduler.state.preemptions > 0


def _resources() -> tuple[int, int, int]:
    """Resident bytes, threads, open files of this process."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"]), len(os.listdir("/proc/self/fd"))


def test_loading_and_closing_fifty_times_leaves_nothing_behind(case: contract.Case) -> None:
    def once() -> int:
        with _engine(case, maximum_sequences=4) as engine:
            engine.generate(contract._tokens(20), SamplingParams(max_tokens=5, ignore_eos=True))
        gc.collect()
        return _resources()[0]

    for _ in range(5):
        once()
    before = _resources()
    sizes = [once() for _ in range(50)]
    assert _resources()[1:] == before[1:]
    # An allocator may keep a little; a leak of a model (200 kB and more) or of a cache would grow from the first half to the second.
    assert np.median(sizes[40:]) - np.median(sizes[10:20]) < 2e6


def test_an_engine_that_is_only_dropped_gives_its_memory_back(case: contract.Case) -> None:
    def once() -> None:
        _engine(case, maximum_sequences=4).generate([65], SamplingParams(max_tokens=2))

    for _ in range(2):
        once()
    gc.collect()
    before = _resources()
    for _ in range(5):
        once()
    gc.collect()
    after = _resources()
    assert after[0] - before[0] < 16e6 and after[1:] == before[1:]


def test_values_that_are_not_finite_are_a_typed_error(case: contract.Case, tmp_path: Path) -> None:
    if case.backend in ("fake", "counting"):
        pytest.skip("a backend without weights computes nothing that could overflow")
    broken = tiny_llama(tmp_path / "overflowing.gguf", tensors={"output_norm.weight": np.full(64, 3e38, dtype=np.float32)})
    with _engine(case, broken, maximum_sequences=4) as engine:
        with pytest.raises(NonFiniteError):
            engine.generate(contract._tokens(5), SamplingParams(max_tokens=5))
        with pytest.raises(NonFiniteError):
            engine.logits(contract._tokens(5))
        if OutputKind.HIDDEN in engine.capabilities.output_kinds:
            with pytest.raises(NonFiniteError):
                engine.embed([contract._tokens(5)])

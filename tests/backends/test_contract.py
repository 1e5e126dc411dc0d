"""What every backend promises, on small models: bits or tolerances across batches and chunks, release and reuse, ends, errors. `test_contract_engine.py`
and `test_contract_bursts.py` go on with it.

What a backend declares in its capabilities has to hold; what it does not declare has to be refused. `test_contract_catches.py` shows that backends which
lie fail here. The installed backend `counting` is the example of docs/backends.md.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.load import load_backend
from edgeinfer.core.errors import EdgeInferError
from edgeinfer.core.steps import OutputKind
from edgeinfer.gguf.reader import GGUFFile
from tests.backends.example import install_example
from tests.backends.support import Driver, Logits, Rows
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

CONTEXT = 128
TOLERANCE = 5e-3
"""How far apart two rows of logits may be, as a share of their norm, where a backend does not promise bits. docs/backends.md states it."""

PROVIDERS = "EDGEINFER_TEST_PROVIDERS"
"""Names providers of ONNX Runtime, with spaces between, on which the backend onnx has to keep the contract too: `make test-providers`."""

Make = Callable[..., Path]
MODELS: dict[str, Make] = {"llama": tiny_llama, "qwen2": tiny_qwen2, "gemma3": tiny_gemma3}


class Case(NamedTuple):
    """A backend by name, a model for it, and the provider where it has some."""

    backend: str
    model: Path
    provider: str | None = None


def _cases() -> list[object]:
    cases: list[object] = [pytest.param((name, "llama"), id=name) for name in ("fake", "counting")]
    cases += [pytest.param(("llamacpp", model), id=f"llamacpp-{model}", marks=pytest.mark.llamacpp) for model in MODELS]
    cases += [pytest.param(("onnx", model), id=f"onnx-{model}", marks=pytest.mark.onnx) for model in MODELS]
    standard = (("opset21", "llama"), ("opset21", "gemma3"), ("opset23", "qwen2"))  # what other providers than ONNX Runtime's own for the processor take
    cases += [pytest.param(("onnx", model, f"cpu:dialect={name}"), id=f"onnx-{name}-{model}", marks=pytest.mark.onnx) for name, model in standard]
    named = os.environ.get(PROVIDERS, "").split()
    cases += [pytest.param(("onnx", model, name), id=f"onnx-{name}-{model}", marks=pytest.mark.onnx) for name in named for model in MODELS]
    cases += [pytest.param(("numba", model), id=f"numba-{model}") for model in MODELS]
    return cases


@pytest.fixture(scope="module", autouse=True)
def installed_example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The example backend as an installed package, while these tests run."""
    folder = tmp_path_factory.mktemp("installed")
    install_example(folder)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("counting_backend", None)


@pytest.fixture(scope="module", params=_cases())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, model, *provider = request.param
    return Case(name, MODELS[model](tmp_path_factory.mktemp("models") / f"{model}.gguf"), *provider)


def _load(case: Case, **options: object) -> Backend:
    fields: dict[str, object] = {
        "provider": case.provider,
        "context": CONTEXT,
        "threads": 1,
        "maximum_step_rows": 64,
        "maximum_sequences": 4,
        "cache_type": "f32",
        "prewarm": True,
        **options,
    }
    return load_backend(case.backend, case.model, BackendOptions(**fields))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def backend(case: Case) -> Iterator[Backend]:
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
    return bool((np.linalg.norm(first - second, axis=1) < TOLERANCE * np.linalg.norm(first, axis=1)).all())


def test_capabilities_are_what_was_asked_for(backend: Backend) -> None:
    capabilities = backend.capabilities
    assert capabilities.context == CONTEXT and capabilities.maximum_step_rows == 64 and capabilities.maximum_sequences == 4
    assert capabilities.vocabulary > 280 and capabilities.threads >= 1 and capabilities.description
    assert all(group.page_size > 0 and group.pages * group.page_size >= CONTEXT for group in capabilities.cache_groups)
    assert backend.memory_plan.cache > 0
    assert OutputKind.LOGITS in capabilities.output_kinds and OutputKind.NONE not in capabilities.output_kinds
    assert not (capabilities.uses_block_tables and capabilities.kept_sequences), "pages are shared by tables, so there is nothing to keep"
    assert not capabilities.times_operations, "it was not asked for"


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


@pytest.mark.parametrize("kind", [OutputKind.HIDDEN, OutputKind.POOLED])
def test_an_output_that_is_not_declared_is_refused_and_nothing_else_suffers(driver: Driver, kind: OutputKind) -> None:
    if kind in driver.backend.capabilities.output_kinds:
        assert kind is OutputKind.HIDDEN, "pooled outputs have no test yet"
        return
    tokens = _tokens(20)
    expected = driver.whole(1, tokens)
    driver.run(Rows(2, 0, tokens[:10]))
    with pytest.raises(EdgeInferError, match=kind.name.lower()):
        driver.run(Rows(2, 10, tokens[10:], kind=kind), Rows(3, 0, tokens))
    (rest,) = driver.run(Rows(2, 10, tokens[10:]))
    assert _equal(driver.backend.capabilities.bit_exact_chunks, rest, expected[10:])


def _output_matrix(model: Path) -> Logits:
    """float32[vocabulary, width]."""
    with GGUFFile.open(model) as file:
        tensor = file.tensors["output.weight" if "output.weight" in file.tensors else "token_embd.weight"]
        return file.tensor_bytes(tensor.name).view(np.float32).reshape(tensor.shape).copy()


def test_hidden_states_are_what_the_output_matrix_multiplies(case: Case, driver: Driver) -> None:
    if OutputKind.HIDDEN not in driver.backend.capabilities.output_kinds:
        pytest.skip("declares no hidden states; that they are refused is another test")
    tokens, others = _tokens(50, 1), _tokens(14, 2)
    expected = driver.whole(1, tokens)
    hidden, last = driver.run(Rows(2, 0, tokens, kind=OutputKind.HIDDEN), Rows(3, 0, others, outputs=1))
    assert _equal(False, hidden @ _output_matrix(case.model).T, expected)
    assert _equal(driver.backend.capabilities.bit_exact_batches, last, driver.whole(4, others)[-1:])
    driver.release(2)
    pieces = [driver.run(Rows(2, start, tokens[start : start + 20], kind=OutputKind.HIDDEN))[0] for start in (0, 20, 40)]
    assert _equal(driver.backend.capabilities.bit_exact_chunks, np.concatenate(pieces), hidden)


def test_rope_positions_apart_from_slots_turn_the_tokens_or_are_refused(driver: Driver) -> None:
    tokens = _tokens(40)
    expected = driver.whole(1, tokens)
    if not driver.backend.capabilities.separate_rope_positions:
        with pytest.raises(EdgeInferError, match="rope positions"):
            driver.run(Rows(2, 0, tokens, rope=range(7, 47)))
        return
    (moved,) = driver.run(Rows(2, 0, tokens, rope=range(7, 47)))
    (stretched,) = driver.run(Rows(3, 0, tokens, rope=range(0, 80, 2)))
    assert _equal(False, moved, expected), "only distances matter to rope"
    assert np.abs(stretched[1:] - expected[1:]).max(axis=1).min() > 1e-3


def test_adapters_are_refused(driver: Driver) -> None:
    with pytest.raises(EdgeInferError, match="adapter 3"):
        driver.run(Rows(1, 0, _tokens(5), adapter=3))


def test_a_step_of_more_rows_than_declared_is_refused(driver: Driver) -> None:
    tokens = _tokens(driver.backend.capabilities.maximum_step_rows + 1)
    with pytest.raises(ValueError, match=f"{len(tokens)} rows"):  # InvalidRequestError is one
        driver.run(Rows(1, 0, tokens, outputs=1))


def test_a_sequence_that_begins_with_what_another_holds_gives_what_it_gives_alone(driver: Driver) -> None:
    """A prefix hit equals a miss, whoever of the two goes on or ends first."""
    capabilities = driver.backend.capabilities
    shared, one, two = _tokens(64, 1), _tokens(20, 2), _tokens(30, 3)
    expected_one, expected_two = driver.whole(1, [*shared, *one])[64:], driver.whole(2, [*shared, *two])[64:]
    driver.run(Rows(3, 0, shared))
    if not (capabilities.uses_block_tables or capabilities.kept_sequences):
        with pytest.raises(EdgeInferError):
            driver.run(Rows(4, 64, two))
        return
    driver.share(3, 4, 64)
    got_one, got_two = driver.run(Rows(3, 64, one[:10]), Rows(4, 64, two[:15]))
    driver.release(3)
    driver.run(Rows(5, 0, _tokens(60, 5)))  # takes the places that were given back
    (rest,) = driver.run(Rows(4, 79, two[15:]))
    assert _equal(capabilities.bit_exact_chunks and capabilities.bit_exact_batches, np.concatenate([got_two, rest]), expected_two)
    assert _equal(capabilities.bit_exact_chunks and capabilities.bit_exact_batches, got_one, expected_one[:10])


def test_a_sequence_that_was_kept_is_of_use_after_others_have_come_and_gone(driver: Driver) -> None:
    kept = driver.backend.capabilities.kept_sequences
    if not kept:
        pytest.skip("keeps no sequences that have ended: pages are shared by tables, or nothing is; what is shared is another test")
    tokens = _tokens(40, 1)
    expected = driver.whole(1, tokens)
    driver.run(Rows(2, 0, tokens[:32]))
    for number in range(driver.backend.capabilities.maximum_sequences):  # as many as may run, beside the one that is kept
        driver.run(Rows(10 + number, 0, _tokens(9, number)))
    driver.release(*range(10, 10 + driver.backend.capabilities.maximum_sequences))
    driver.share(2, 3, 32)
    driver.release(2)
    assert _equal(driver.backend.capabilities.bit_exact_chunks, driver.run(Rows(3, 32, tokens[32:]))[0], expected[32:])
    with pytest.raises(EdgeInferError):
        driver.run(Rows(4, 32, tokens[32:]))  # nobody gave this one anything


def test_closing_twice_is_fine_and_a_step_afterwards_is_a_clear_error(case: Case) -> None:
    loaded = _load(case)
    driver = Driver(loaded)
    driver.run(Rows(1, 0, _tokens(5)))
    loaded.close()
    loaded.close()
    with pytest.raises(EdgeInferError):
        driver.run(Rows(1, 5, _tokens(1)))

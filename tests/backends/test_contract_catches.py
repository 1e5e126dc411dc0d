"""Backends that do not keep what they declare, each caught by the test of the contract suite that is there for it."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.fake import FakeBackend
from edgeinfer.core.steps import OutputKind, Step, StepOutputs
from tests.backends import test_contract as contract
from tests.backends import test_contract_bursts as bursts
from tests.backends.example import example_source
from tests.backends.support import Driver
from tests.support.tiny_models import tiny_llama

OPTIONS = BackendOptions(context=contract.CONTEXT, maximum_step_rows=64, maximum_sequences=4)


def _counting() -> Any:
    """The class of the example backend, as docs/backends.md has it."""
    module = types.ModuleType("counting_backend")
    exec(compile(example_source(), "docs/backends.md", "exec"), module.__dict__)
    return module.CountingBackend


def _changed(outputs: StepOutputs, amount: float) -> StepOutputs:
    return dataclasses.replace(outputs, logits=outputs.logits * np.float32(1 + amount))


class NoisyInBatches(FakeBackend):
    """Declares the same bits for any batch, and is off by one in a million where sequences share a step."""

    def step(self, step: Step) -> StepOutputs:
        return _changed(super().step(step), 1e-6 * (len(step.sequences) - 1))


class NoisyInChunks(FakeBackend):
    """Declares the same bits for any cut, and is off by one in a million in later chunks."""

    def step(self, step: Step) -> StepOutputs:
        return _changed(super().step(step), 1e-6 * max(table.start > 0 for table in step.sequences))


class FarOffInBatches(FakeBackend):
    """Promises no bits, but differs by more than the tolerance."""

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self.capabilities = dataclasses.replace(self.capabilities, bit_exact_batches=False)

    def step(self, step: Step) -> StepOutputs:
        return _changed(super().step(step), 0.01 * (len(step.sequences) - 1))


class SilentlyWithoutHiddenStates(FakeBackend):
    """Neither declares hidden states nor refuses them."""

    def step(self, step: Step) -> StepOutputs:
        return super().step(dataclasses.replace(step, outputs=np.where(step.outputs == OutputKind.HIDDEN, 0, step.outputs).astype(np.uint8)))


class ClaimsHiddenStates(FakeBackend):
    """Declares hidden states and makes them up."""

    def __init__(self, options: BackendOptions, vocabulary: int) -> None:
        super().__init__(options, vocabulary)
        self.capabilities = dataclasses.replace(self.capabilities, output_kinds=frozenset({OutputKind.LOGITS, OutputKind.HIDDEN}))

    def step(self, step: Step) -> StepOutputs:
        rows = np.flatnonzero(step.outputs == OutputKind.HIDDEN).astype(np.int32)
        found = super().step(step)
        return StepOutputs(found.logits, found.rows, hidden=np.ones((len(rows), 64), np.float32), hidden_rows=rows) if len(rows) else found


class ClaimsRopePositions(FakeBackend):
    """Declares rope positions apart from slots, and looks at the slots alone."""

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self.capabilities = dataclasses.replace(self.capabilities, separate_rope_positions=True)


class IgnoresRopePositions(FakeBackend):
    """Neither declares rope positions of their own nor refuses them."""

    def step(self, step: Step) -> StepOutputs:
        return super().step(dataclasses.replace(step, rope_positions=step.slots))


class IgnoresAdapters(FakeBackend):
    def step(self, step: Step) -> StepOutputs:
        return super().step(dataclasses.replace(step, adapters=np.zeros_like(step.adapters)))


class LosesRows(FakeBackend):
    """Gives a row that nobody asked for."""

    def step(self, step: Step) -> StepOutputs:
        return super().step(dataclasses.replace(step, outputs=np.ones_like(step.outputs)))


class BurstsBeyondTheEnd(FakeBackend):
    """Goes on after an end token."""

    def step(self, step: Step) -> StepOutputs:
        burst = step.burst and dataclasses.replace(step.burst, end_ids=np.zeros(0, np.int32))
        return super().step(dataclasses.replace(step, burst=burst))


class BurstsOutOfStep(FakeBackend):
    """Repeats a burst's first token."""

    def step(self, step: Step) -> StepOutputs:
        found = super().step(step)
        return found if step.burst is None or found.largest is None else dataclasses.replace(found, largest=found.largest[np.zeros(len(found.largest), int)])


class IgnoresBursts(FakeBackend):
    """Neither declares bursts nor refuses them."""

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self.capabilities = dataclasses.replace(self.capabilities, maximum_passes=1)

    def step(self, step: Step) -> StepOutputs:
        return super().step(dataclasses.replace(step, burst=None))


def _forgetful() -> type:
    class Forgetful(_counting()):  # type: ignore[misc]
        """Forgets the end of what sequences share."""

        def share_prefix(self, source: int, target: int, length: int) -> None:
            self._tokens[target] = [0, *self._tokens[source][1:length]]

    return Forgetful


def _clinging() -> type:
    class Clinging(_counting()):  # type: ignore[misc]
        """Keeps sequences that were released, so that their successors begin with what they held."""

        def release(self, sequence_ids: Sequence[int]) -> None:
            self._old = [self._tokens.pop(identifier) for identifier in sequence_ids if identifier in self._tokens] or getattr(self, "_old", [])

        def step(self, step: Step) -> StepOutputs:
            found = super().step(step)
            return _changed(found, 1e-6) if getattr(self, "_old", []) else found

    return Clinging


def _appending() -> type:
    class Appending(_counting()):  # type: ignore[misc]
        """Does not forget positions that are computed again."""

        def step(self, step: Step) -> StepOutputs:
            longer = tuple(dataclasses.replace(table, start=len(self._tokens.get(table.sequence_id, []))) for table in step.sequences)
            found: StepOutputs = super().step(dataclasses.replace(step, sequences=longer))
            return found

    return Appending


def _chunk_of_seven(driver: Driver) -> None:
    contract.test_chunks_give_what_the_whole_gives(driver, 7)


def _hidden_is_refused(driver: Driver) -> None:
    contract.test_an_output_that_is_not_declared_is_refused_and_nothing_else_suffers(driver, OutputKind.HIDDEN)


LIARS: list[tuple[Callable[[], type], Callable[[Driver], None]]] = [
    (lambda: NoisyInBatches, contract.test_a_batch_gives_what_each_sequence_gives_alone),
    (lambda: NoisyInBatches, contract.test_decoding_beside_a_prompt_gives_what_it_gives_alone),
    (lambda: NoisyInChunks, _chunk_of_seven),
    (lambda: FarOffInBatches, contract.test_a_batch_gives_what_each_sequence_gives_alone),
    (lambda: SilentlyWithoutHiddenStates, _hidden_is_refused),
    (lambda: ClaimsRopePositions, contract.test_rope_positions_apart_from_slots_turn_the_tokens_or_are_refused),
    (lambda: IgnoresRopePositions, contract.test_rope_positions_apart_from_slots_turn_the_tokens_or_are_refused),
    (lambda: IgnoresAdapters, contract.test_adapters_are_refused),
    (lambda: LosesRows, contract.test_only_the_rows_asked_for_come_back_and_they_are_the_same),
    (lambda: BurstsBeyondTheEnd, bursts.test_a_burst_gives_the_tokens_of_single_steps_or_is_refused),
    (lambda: BurstsOutOfStep, bursts.test_a_burst_gives_the_tokens_of_single_steps_or_is_refused),
    (lambda: IgnoresBursts, bursts.test_a_burst_gives_the_tokens_of_single_steps_or_is_refused),
    (lambda: IgnoresBursts, bursts.test_a_burst_that_is_none_is_refused),
    (_forgetful, contract.test_a_sequence_that_begins_with_what_another_holds_gives_what_it_gives_alone),
    (_forgetful, contract.test_a_sequence_that_was_kept_is_of_use_after_others_have_come_and_gone),
    (_clinging, contract.test_a_released_sequence_leaves_nothing_behind),
    (_appending, contract.test_positions_that_are_computed_again_replace_the_old_ones),
]


def _driver(kind: type) -> Driver:
    return Driver(kind(OPTIONS) if issubclass(kind, FakeBackend) else kind(512, OPTIONS))


@pytest.mark.parametrize(("make", "test"), LIARS, ids=lambda item: getattr(item, "__name__", ""))
def test_a_backend_that_lies_is_caught(make: Callable[[], type], test: Callable[[Driver], None]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(_driver(make()))


def test_made_up_hidden_states_are_caught(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf")
    driver = Driver(ClaimsHiddenStates.load(model, OPTIONS))
    with pytest.raises(AssertionError):
        contract.test_hidden_states_are_what_the_output_matrix_multiplies(contract.Case("fake", model), driver)


@pytest.mark.parametrize("make", [lambda: FakeBackend, _counting], ids=["fake", "counting"])
def test_the_same_tests_let_honest_backends_pass(make: Callable[[], type]) -> None:
    assert "counting_backend" not in sys.modules
    for test in dict.fromkeys(test for _, test in LIARS):
        with contextlib.suppress(pytest.skip.Exception):  # what a backend does not declare
            test(_driver(make()))

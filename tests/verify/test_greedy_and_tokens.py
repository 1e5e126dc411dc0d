"""Greedy agreement and token ids on fakes, and the bars that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.verify.greedy import compare_all_greedy, compare_greedy
from edgeinfer.verify.report import KL_LIMIT, ORACLE, OURS, PAIRS, PERPLEXITY_TOKENS, REFERENCE, VerifyReport, perplexity_bar
from edgeinfer.verify.teacher_forcing import Chunk, TeacherForcing, teacher_force
from edgeinfer.verify.token_ids import TokenIds, compare_token_ids
from tests.verify.fakes import FakeEngine


def test_equal_engines_agree_to_the_end() -> None:
    found = compare_greedy("p", [3, 4], 30, FakeEngine(), FakeEngine(block=2), FakeEngine())
    assert (found.agreed, found.tokens, found.divergence, found.same_as_logits) == (30, 30, None, True)


def test_a_divergence_is_measured_and_explained_by_errors() -> None:
    ours, oracle, reference = FakeEngine(0.2, seed=1), FakeEngine(0.2, seed=2), FakeEngine()
    prompts = [(f"p{i}", [i, i + 1]) for i in range(20)]
    found = compare_all_greedy(prompts, 40, ours, oracle, reference)
    parted = [item for item in found if item.divergence]
    assert parted
    for item, (_, prompt) in zip(found, prompts):
        if item.divergence is None:
            continue
        context = [*prompt, *ours.greedy(prompt, item.agreed)]
        pair = [item.divergence.our_token, item.divergence.oracle_token]
        rows = [engine.row(context, len(context) - 1)[pair].astype(float) for engine in (reference, ours, oracle)]
        assert item.divergence.reference_gap == pytest.approx(rows[0][0] - rows[0][1])
        assert item.divergence.our_error == pytest.approx(abs(rows[1] - rows[0]).max())
        assert item.divergence.oracle_error == pytest.approx(abs(rows[2] - rows[0]).max())
        assert item.divergence.within_error
        assert item.same_as_logits


class _WrongDecode(FakeEngine):
    """Generates something else than its own logits say, as an engine with a broken decode path would."""

    def greedy(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        return [(token + 1) % 40 for token in super().greedy(token_ids, count)]


def test_a_broken_decode_path_is_not_explained() -> None:
    found = compare_greedy("p", [3, 4], 30, _WrongDecode(), FakeEngine(), FakeEngine())
    assert not found.same_as_logits
    assert found.divergence is not None and not found.divergence.within_error


class _WrongAboutOneToken(FakeEngine):
    """Right about everything but token 7, and consistent with itself: its generated tokens are the arg-maxima of its logits."""

    def row(self, token_ids: Sequence[int], position: int) -> np.ndarray:
        row = super().row(token_ids, position).copy()
        row[7] += 4.0
        return row


@pytest.mark.parametrize("wrong", ["ours", "oracle"])
def test_an_error_on_the_two_tokens_alone_is_not_explained(wrong: str) -> None:
    engines = (_WrongAboutOneToken(0.01, seed=1), FakeEngine(0.01, seed=2))
    ours, oracle = engines if wrong == "ours" else engines[::-1]
    found = compare_greedy("p", [3, 4], 30, ours, oracle, FakeEngine())
    assert found.same_as_logits and found.divergence is not None
    assert abs(found.divergence.reference_gap) <= found.divergence.our_gap_error + found.divergence.oracle_gap_error
    assert not found.divergence.within_error


class _Letters:
    def __init__(self, wrong: str = "") -> None:
        self._wrong = wrong

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        ids = [ord(letter) + (letter in self._wrong) for letter in text]
        return [1, *ids] if add_special else ids


def test_token_ids_are_compared_four_ways() -> None:
    same = compare_token_ids(_Letters(), _Letters(), ["ab", "c"])
    assert same.equal and same.encodings == 8 and same.ids == 2 * (2 + 3 + 1 + 2)
    different = compare_token_ids(_Letters("b"), _Letters(), ["ab", "c"])
    assert not different.equal and len(different.mismatches) == 4
    assert {mismatch.first_difference for mismatch in different.mismatches} == {1, 2}


def _forced(our_error: float, oracle_error: float, with_oracle: bool = True) -> TeacherForcing:
    ids = tuple(int(i * 7 % 40) for i in range(101))
    sources = {OURS: FakeEngine(our_error, seed=1), REFERENCE: FakeEngine()}
    pairs = PAIRS if with_oracle else ((REFERENCE, OURS),)
    if with_oracle:
        sources[ORACLE] = FakeEngine(oracle_error, seed=2)
    return teacher_force([Chunk("prose", ids[:-1], ids[1:])], sources, pairs)


def _report(our_error: float, oracle_error: float, equal: bool = True) -> VerifyReport:
    token_ids = compare_token_ids(_Letters(), _Letters("" if equal else "a"), ["a"])
    return VerifyReport("m", "numba", {}, token_ids, _forced(our_error, oracle_error), (), {})


def test_the_bars_hold_for_small_errors_and_say_what_was_missed() -> None:
    assert _report(0.01, 0.02).holds
    missed = {bar.name for bar in _report(0.1, 0.02).bars() if bar.holds is False}
    assert "KL(reference || ours) at most KL(reference || llama.cpp)" in missed
    missed = {bar.name for bar in _report(0.5, 1.0).bars() if bar.holds is False}
    assert f"KL(reference || llama.cpp) below {KL_LIMIT} nats" in missed
    assert not _report(0.01, 0.02, equal=False).holds


@pytest.mark.parametrize(("tokens", "ours", "holds"), [(60, 1.2, None), (60, 1.001, None), (PERPLEXITY_TOKENS, 1.2, False), (PERPLEXITY_TOKENS, 1.001, True)])
def test_a_perplexity_is_judged_only_where_there_are_tokens_enough(tokens: int, ours: float, holds: bool | None) -> None:
    found = replace(_forced(0.01, 0.02).total, positions=tokens, perplexity={REFERENCE: 20.0, OURS: 20.0 * ours})
    bar = perplexity_bar(found, OURS, "ours")
    assert bar.holds is holds and bar.detail.startswith(f"{ours - 1:+.3%}") and ("60 tokens are too few" in bar.detail) == (tokens == 60)


def test_the_json_object_has_the_promised_keys() -> None:
    found = _report(0.01, 0.02).to_json()
    assert found["token_ids_equal"] is True and found["tokens"] == 100 and found["holds"] is True
    for key in ("kl_reference_ours", "kl_reference_oracle", "kl_oracle_ours", "top1_ours", "top1_oracle"):
        assert 0 <= found[key] <= 1
    for key in ("perplexity_reference", "perplexity_ours", "perplexity_oracle"):
        assert found[key] > 1
    assert found["kl_reference_ours"] < found["kl_reference_oracle"]


def test_without_the_oracle_its_figures_are_null_and_its_bars_not_judged() -> None:
    report = VerifyReport("m", "numba", {}, None, _forced(0.01, 0.0, with_oracle=False), None, {})
    found = report.to_json()
    assert found["token_ids_equal"] is None and found["kl_reference_oracle"] is None and found["greedy"] is None
    assert found["kl_reference_ours"] > 0
    assert report.holds and any(bar.holds is None for bar in report.bars())
    assert not VerifyReport("m", "numba", {}, None, _forced(2.0, 0.0, with_oracle=False), None, {}).holds


def test_the_tables_print(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from edgeinfer.verify.display import print_report

    greedy = tuple(compare_all_greedy([("[bold]p[/x]", [3, 4]), ("q", [8, 9])], 40, FakeEngine(0.2, seed=1), FakeEngine(0.2, seed=2), FakeEngine()))
    report = VerifyReport("m", "numba", {OURS: "[x]"}, TokenIds(4, 4, ()), _forced(0.01, 0.02), greedy, {"loading": 1.0}, ("a note",))
    print_report(report, Console(width=200))
    printed = capsys.readouterr().out
    assert "[bold]p[/x]" in printed and "a note" in printed and "Bars for m" in printed

"""Verify with real engines: on a tiny model in seconds, and on a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer.core.errors import BackendUnavailableError, InvalidRequestError
from edgeinfer.verify.report import ORACLE, OURS, REFERENCE
from edgeinfer.verify.run import VerifyOptions, verify_model
from tests.support.tiny_models import tiny_gemma3, tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("verify") / "tiny.gguf")


@pytest.mark.llamacpp
def test_llama_cpp_against_itself_meets_every_bar(tiny: Path) -> None:
    stages: list[str] = []

    def stage(label: str, total: int) -> Callable[[int], None]:
        stages.append(label)
        return lambda done: None

    report = verify_model(tiny, VerifyOptions(tokens=60, greedy_tokens=4, backend="llamacpp", threads=1), stage)
    assert stages == ["loading", "token ids", "teacher forcing", "greedy generation"]
    assert report.token_ids is not None and report.token_ids.equal and report.token_ids.encodings > 1000
    assert report.agreement.positions >= 60
    assert 0 <= report.agreement.kl[REFERENCE, ORACLE] < 1e-3
    assert report.agreement.perplexity[ORACLE] == pytest.approx(report.agreement.perplexity[REFERENCE], rel=1e-2)
    assert report.greedy is not None and len(report.greedy) == 10
    assert all(item.divergence is None or item.divergence.within_error for item in report.greedy)


@pytest.mark.llamacpp
def test_another_model_is_told_from_the_reference(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is given other weights: verify must notice."""
    from edgeinfer.verify import run
    from edgeinfer.verify.sources import ReferenceSource

    other = tiny_llama(tmp_path / "other.gguf", seed=7)
    monkeypatch.setattr(run, "ReferenceSource", lambda model: ReferenceSource(other))
    report = verify_model(tiny, VerifyOptions(tokens=30, greedy_tokens=2, backend="llamacpp", threads=1))
    missed = {bar.name for bar in report.bars() if bar.holds is False}
    assert any(name.startswith("KL(reference || llama.cpp)") for name in missed)
    assert not report.holds


def test_without_the_oracle_our_kernels_meet_the_reference(tmp_path: Path) -> None:
    model = tiny_gemma3(tmp_path / "tiny.gguf")
    report = verify_model(model, VerifyOptions(tokens=60, threads=1, with_oracle=False))
    assert report.token_ids is None and report.greedy is None
    assert any("left out" in note for note in report.notes)
    assert 0 <= report.agreement.kl[REFERENCE, OURS] < 0.02
    assert {bar.holds for bar in report.bars()} == {True, None}


def test_a_missing_oracle_is_noted_and_not_fatal(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.backends import llamacpp

    def missing() -> None:
        raise BackendUnavailableError("no llama-cpp-python here")

    monkeypatch.setattr(llamacpp, "load_library", missing)
    happened: list[str] = []

    def stage(label: str, total: int) -> Callable[[int], None]:
        happened.append(label)
        return lambda done: None

    report = verify_model(tiny, VerifyOptions(tokens=30, threads=1), stage, happened.append)
    assert report.token_ids is None
    [said] = [text for text in happened if "no llama-cpp-python here" in text]
    assert said in report.notes and happened.index(said) < happened.index("teacher forcing")  # before what takes long
    assert report.to_json()["kl_reference_ours"] >= 0


def test_wrong_options_are_refused(tiny: Path) -> None:
    with pytest.raises(InvalidRequestError, match="greedy tokens"):
        VerifyOptions(greedy_tokens=0)
    with pytest.raises(InvalidRequestError, match="at most"):
        verify_model(tiny, VerifyOptions(tokens=1_000_000, with_oracle=False, threads=1))


@pytest.mark.model
@pytest.mark.llamacpp
@pytest.mark.slow
def test_smollm2_meets_the_bars(model_path: Callable[[str], Path]) -> None:
    report = verify_model(model_path("smollm2-135m"), VerifyOptions(tokens=240, greedy_tokens=16, threads=1))
    found = report.agreement
    assert report.token_ids is not None and report.token_ids.equal
    assert found.kl[REFERENCE, ORACLE] < 0.02
    # A few hundred tokens: the full run judges by the strict bars, and perplexities are noisier here.
    assert found.kl[REFERENCE, OURS] <= 1.5 * found.kl[REFERENCE, ORACLE]
    assert found.perplexity[OURS] == pytest.approx(found.perplexity[REFERENCE], rel=0.03)
    assert found.top1[REFERENCE, OURS] > 0.9
    assert report.greedy is not None
    assert all(item.same_as_logits for item in report.greedy)
    assert all(item.divergence is None or item.divergence.within_error for item in report.greedy)

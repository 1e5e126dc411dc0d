"""Verify over several backends: the comparison with played engines, whole runs on a tiny model, tables, JSON and the page."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.core.errors import BackendUnavailableError, InvalidRequestError, StorageError, UnknownChoiceError
from edgeinfer.verify import backends as backends_module
from edgeinfer.verify.backends import BackendFound, BackendsOptions, BackendsReport, GreedyAgreement, compare_greedy_with_reference, verify_backends
from edgeinfer.verify.corpus import GREEDY_PROMPTS
from edgeinfer.verify.html import page, write_html
from edgeinfer.verify.report import REFERENCE
from edgeinfer.verify.teacher_forcing import Chunk, teacher_force
from tests.support.tiny_models import tiny_llama
from tests.verify.fakes import VOCABULARY, FakeEngine

PROMPTS = [(f"prompt {number}", [number, number + 1]) for number in range(6)]


def test_agreement_with_the_reference_is_that_with_its_own_generation() -> None:
    """Told from one pass over the backend's answer; here it is checked against really generating with the reference."""
    reference, near, far = FakeEngine(), FakeEngine(error=0.05, seed=1), FakeEngine(error=2.0, seed=2)
    found = compare_greedy_with_reference(PROMPTS, 12, {"same": FakeEngine(), "near": near, "far": far}, reference)
    for name, engine in (("same", reference), ("near", near), ("far", far)):
        for (prompt, token_ids), item in zip(PROMPTS, found[name], strict=True):
            theirs, its = list(reference.greedy(token_ids, 12)), list(engine.greedy(token_ids, 12))
            equal = next((i for i in range(12) if theirs[i] != its[i]), 12)
            assert (item.prompt, item.tokens, item.agreed) == (prompt, 12, equal)
            assert (item.parting is None) == (equal == 12)
            if item.parting is not None:
                row = np.asarray(reference.row([*token_ids, *its[:equal]], len(token_ids) + equal - 1), dtype=np.float64)
                assert (item.parting.reference_token, item.parting.token) == (theirs[equal], its[equal])
                assert item.parting.gap == pytest.approx(row[theirs[equal]] - row[its[equal]]) and item.parting.gap > 0
    assert all(item.parting is None for item in found["same"]) and any(item.parting is not None for item in found["far"])


def test_a_parting_that_errors_do_not_explain_misses_its_bar() -> None:
    class Broken(FakeEngine):
        """Generates something else than its logits say."""

        def greedy(self, token_ids: Any, count: int) -> Any:
            return [VOCABULARY - 1 - token for token in super().greedy(token_ids, count)]

    found = compare_greedy_with_reference(PROMPTS, 4, {"broken": Broken(error=0.001)}, FakeEngine())["broken"]
    parted = [item.parting for item in found if item.parting is not None]
    assert parted and not any(parting.within_error for parting in parted)
    report = replace(_report(), backends={"numba": BackendFound("", (), 1.0, tuple(found))})
    assert not report.holds and any("not explained" in bar.detail and not bar.holds for bar in report.bars())


def test_equal_answers_share_a_pass_of_the_reference() -> None:
    reference = FakeEngine()
    compare_greedy_with_reference(PROMPTS, 5, {"a": FakeEngine(), "b": FakeEngine(), "c": FakeEngine()}, reference)
    assert reference.calls == len(PROMPTS)


def test_an_answer_that_parts_earlier_needs_no_pass_and_one_that_goes_on_longer_does() -> None:
    far, same = FakeEngine(error=2.0, seed=2), FakeEngine()
    for first, second, passes in ((same, far, 1), (far, same, 2)):
        reference = FakeEngine()
        (prompt,) = [prompt for prompt in PROMPTS if list(far.greedy(prompt[1], 12))[:12] != list(same.greedy(prompt[1], 12))][:1]
        compare_greedy_with_reference([prompt], 12, {"first": first, "second": second}, reference)
        assert reference.calls == passes


def _report(errors: dict[str, float] | None = None) -> BackendsReport:
    errors = errors or {"numba": 0.001, "llamacpp": 0.05}
    engines = {REFERENCE: FakeEngine(), **{name: FakeEngine(error, seed=number) for number, (name, error) in enumerate(errors.items())}}
    chunks = [Chunk(kind, tuple(range(1, 9)), tuple(range(2, 10))) for kind in ("prose", "code")]
    forced = teacher_force(chunks, engines, [(REFERENCE, name) for name in errors])
    greedy = (GreedyAgreement("Once\nupon <b>", 4, 4, None), GreedyAgreement("Again", 4, 3, None))
    found = {name: BackendFound(f"{name} & <co>", ("a warning",), 0.5, greedy) for name in errors}
    return BackendsReport("tiny", 2, "f16", found, {}, forced, {"loading": 1.0})


def test_no_backend_may_be_further_from_the_reference_than_llama_cpp() -> None:
    bars = {bar.name: bar.holds for bar in _report().bars()}
    assert bars["KL(reference || numba) at most KL(reference || llamacpp)"] is True
    bars = {bar.name: bar.holds for bar in _report({"onnx": 0.05, "llamacpp": 0.001}).bars()}
    assert bars["KL(reference || onnx) at most KL(reference || llamacpp)"] is False
    bars = {bar.name: bar.holds for bar in replace(_report({"numba": 0.001}), missing={"onnx": "not installed"}).bars()}
    assert bars["onnx runs"] is False and not any("at most" in name for name in bars)


def test_the_object_holds_every_figure() -> None:
    report = _report()
    found = json.loads(json.dumps(report.to_json()))
    assert set(found["backends"]) == {"numba", "llamacpp"} and found["tokens"] == 16
    every = report.agreement.kl_each[REFERENCE, "llamacpp"]
    figures = found["backends"]["llamacpp"]["agreement"]["all"]
    assert len(every) == 16 and figures["kl"] == pytest.approx(np.mean(every)) and figures["kl_worst"] == max(every)
    assert figures["kl_median"] == pytest.approx(np.median(every)) and set(found["backends"]["numba"]["agreement"]) == {"all", "prose", "code"}
    assert found["backends"]["numba"]["greedy_share"] == pytest.approx(7 / 8)


def test_the_page_is_whole_and_takes_nothing_from_elsewhere(tmp_path: Path) -> None:
    report = replace(_report(), missing={"onnx": "not <installed>"})
    write_html(report, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text == page(report)
    for loaded in ("http", "src=", "href", "@import", "url(", "<script"):
        assert loaded not in text
    assert "numba &amp; &lt;co&gt;" in text and "not &lt;installed&gt;" in text and "<b>" not in text and "<co>" not in text
    pictures = [ElementTree.fromstring(part.split("</svg>")[0].join(("<svg ", "</svg>"))) for part in text.split("<svg ")[1:]]
    assert len(pictures) == 3
    bars, distribution, greedy = pictures
    widths = [float(item.attrib["width"]) for item in bars.iter("rect") if item.attrib["height"] != "12" or item.attrib["width"] != "12"]
    assert max(widths) > 300 and len(distribution.findall("polyline")) == 2
    assert [item.text for item in greedy.iter("text")].count("3 of 4") == 2


def test_a_page_tells_a_missed_bar_from_one_that_nobody_could_judge() -> None:
    text = page(replace(_report(), missing={"onnx": "not installed"}))
    assert ">NO<" in text and ">not judged<" in text and "a bar is missed" in text  # its perplexity is one of few tokens
    assert ">NO<" not in page(_report()) and "no bar is missed" in page(_report())


def test_a_page_without_any_divergence_can_be_drawn() -> None:
    assert page(_report({"numba": 0.0})).count("<svg") == 3


def test_a_page_that_cannot_be_written_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write the report"):
        write_html(_report(), tmp_path)


def test_the_tables_print(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from edgeinfer.verify.backends_display import print_backends

    print_backends(replace(_report(), missing={"onnx": "not installed: pip install 'x[onnx]'"}), Console(width=80))
    printed = capsys.readouterr().out
    assert "…" not in printed and printed.count("'x[onnx]'") == 2  # no figure is cut off, no bracket is taken for markup
    assert "left out: not installed" in printed and "87.5%" in printed and "onnx runs" in printed and "KL(reference || numba)" in printed


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("backends") / "tiny.gguf")


def test_numba_meets_the_reference_and_fake_does_not(tiny: Path) -> None:
    report = verify_backends(tiny, BackendsOptions(("numba", "fake"), tokens=30, greedy_tokens=3, threads=1))
    assert report.agreement.kl[REFERENCE, "numba"] < 0.001 < 1 < report.agreement.kl[REFERENCE, "fake"]
    assert len(report.backends["numba"].greedy) == len(GREEDY_PROMPTS)
    assert report.backends["numba"].greedy_share > 0.5 > report.backends["fake"].greedy_share
    missed = {bar.name for bar in report.bars() if bar.holds is False}
    assert missed and all("fake" in name for name in missed)


def test_a_backend_that_cannot_run_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = backends_module._load

    def without_onnx(model: Path, backend: str, options: BackendsOptions) -> Any:
        if backend == "onnx":
            raise BackendUnavailableError("onnxruntime is not installed")
        return load(model, backend, options)

    monkeypatch.setattr(backends_module, "_load", without_onnx)
    report = verify_backends(tiny, BackendsOptions(("onnx", "numba"), tokens=30, greedy_tokens=2, threads=1))
    assert report.missing == {"onnx": "onnxruntime is not installed"} and list(report.backends) == ["numba"] and not report.holds
    with pytest.raises(BackendUnavailableError, match="none of the backends can run: onnx: onnxruntime is not installed"):
        verify_backends(tiny, BackendsOptions(("onnx",), threads=1))
    with pytest.raises(UnknownChoiceError):
        verify_backends(tiny, BackendsOptions(("tpu",), threads=1))


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no backend was named"):
        BackendsOptions(())
    with pytest.raises(InvalidRequestError, match="greedy tokens"):
        BackendsOptions(("numba",), greedy_tokens=0)


@pytest.mark.llamacpp
def test_llama_cpp_and_onnx_meet_the_reference(tiny: Path) -> None:
    pytest.importorskip("onnxruntime")
    report = verify_backends(tiny, BackendsOptions(("onnx", "llamacpp"), tokens=30, greedy_tokens=3, threads=1))
    assert report.missing == {} and all(report.agreement.kl[REFERENCE, backend] < 0.01 for backend in ("onnx", "llamacpp"))

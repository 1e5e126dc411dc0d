"""The report of verify as tables for a person (rich). Only the command line and the bars use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.core.tables import new_table
from edgeinfer.verify.greedy import GreedyComparison
from edgeinfer.verify.metrics import Agreement
from edgeinfer.verify.report import ORACLE, OURS, PAIRS, REFERENCE, Bar, VerifyReport
from edgeinfer.verify.token_ids import TokenIds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LABELS = {OURS: "ours", ORACLE: "llama.cpp", REFERENCE: "reference"}
_SHORT = {**_LABELS, REFERENCE: "ref"}


def print_report(report: VerifyReport, console: Console) -> None:
    """All tables, the notes and the bars."""
    for engine, description in report.descriptions.items():
        console.print(f"{_LABELS.get(engine, engine):<10} {description}", highlight=False, markup=False)
    console.print()
    if report.token_ids is not None:
        _print_token_ids(report.token_ids, console)
    console.print(_agreement_table(report))
    console.print(_perplexity_table(report))
    if report.greedy is not None:
        console.print(_greedy_table(report.greedy))
    seconds = ", ".join(f"{part} {value:.1f} s" for part, value in report.seconds.items())
    console.print(f"Time: {seconds}", highlight=False, markup=False)
    for note in report.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)
    console.print(bar_table(report.model, report.bars()))


def _print_token_ids(found: TokenIds, console: Console) -> None:
    console.print(f"Token ids: {found.encodings} encodings, {found.ids} ids, {len(found.mismatches)} mismatches", highlight=False, markup=False)
    for mismatch in found.mismatches[:5]:
        at = mismatch.first_difference
        switches = f"add_special={mismatch.add_special}, parse_special={mismatch.parse_special}"
        console.print(f"  {mismatch.text[:60]!r} ({switches}): from id {at} on", highlight=False, markup=False)
        console.print(f"    ours {list(mismatch.ours[at : at + 8])}, llama.cpp {list(mismatch.oracle[at : at + 8])}", highlight=False, markup=False)


def _agreement_table(report: VerifyReport) -> Table:
    table = new_table(f"Teacher forcing on {report.agreement.positions} tokens: mean divergence (nats), and arg-maxima equal to the reference's")
    pairs = [pair for pair in PAIRS if pair in report.agreement.kl]
    engines = [engine for engine in (OURS, ORACLE) if engine in report.agreement.perplexity]
    for column in ("text", "tokens", *(f"KL({_SHORT[p]}\n||{_SHORT[q]})" for p, q in pairs), *(f"top-1\n{_LABELS[engine]}" for engine in engines)):
        table.add_column(column, justify="left" if column == "text" else "right", no_wrap=True)
    for label, part in _parts(report):
        divergences = [f"{part.kl[pair]:.6f}" for pair in pairs]
        table.add_row(label, str(part.positions), *divergences, *(f"{part.top1[REFERENCE, engine]:.2%}" for engine in engines))
    return table


def _perplexity_table(report: VerifyReport) -> Table:
    table = new_table("Perplexity, and how far from the reference's")
    engines = [engine for engine in (OURS, ORACLE) if engine in report.agreement.perplexity]
    for column in ("text", "reference", *(name for engine in engines for name in (_LABELS[engine], "apart"))):
        table.add_column(column, justify="left" if column == "text" else "right", no_wrap=True)
    for label, part in _parts(report):
        cells = [label, f"{part.perplexity[REFERENCE]:.4f}"]
        for engine in engines:
            cells += [f"{part.perplexity[engine]:.4f}", f"{part.perplexity[engine] / part.perplexity[REFERENCE] - 1:+.3%}"]
        table.add_row(*cells)
    return table


def _parts(report: VerifyReport) -> list[tuple[str, Agreement]]:
    return [*report.teacher_forcing.by_kind.items(), ("all", report.agreement)]


def _greedy_table(greedy: tuple[GreedyComparison, ...]) -> Table:
    from rich.text import Text

    table = new_table("Greedy generation, ours and llama.cpp; where they part, the reference's gap between the two tokens, and the errors of that gap")
    for column in ("prompt", "agreed", "gap", "error\nours", "error\nllama.cpp", "usual\nerror", "within"):
        table.add_column(column, justify="left" if column == "prompt" else "right", no_wrap=True)
    for item in greedy:
        agreed = f"{item.agreed}/{item.tokens}"
        prompt = Text(item.prompt.replace("\n", " ")[:22])
        if item.divergence is None:
            table.add_row(prompt, agreed)
            continue
        parted = item.divergence
        errors = [f"{parted.our_gap_error:.4f}", f"{parted.oracle_gap_error:.4f}", f"{parted.usual_gap_error:.4f}"]
        table.add_row(prompt, agreed, f"{parted.reference_gap:+.4f}", *errors, "yes" if parted.within_error else "NO")
    return table


def bar_table(model: str, bars: Sequence[Bar]) -> Table:
    """The bars of a report, and whether they hold."""
    from rich.markup import escape
    from rich.text import Text

    found = new_table(f"Bars for {model}")
    for column in ("bar", "holds", "found"):
        found.add_column(column)
    for bar in bars:
        found.add_row(escape(bar.name), Text(bar.verdict, style={True: "green", False: "bold red", None: ""}[bar.holds]), escape(bar.detail))
    return found

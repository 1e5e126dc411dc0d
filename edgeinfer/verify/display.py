"""The report of verify as tables for a person (rich). Only the command line and the bars use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.verify.greedy import GreedyComparison
from edgeinfer.verify.metrics import Agreement
from edgeinfer.verify.report import ORACLE, OURS, REFERENCE, VerifyReport
from edgeinfer.verify.token_ids import TokenIds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LABELS = {OURS: "ours", ORACLE: "llama.cpp", REFERENCE: "reference"}


def print_report(report: VerifyReport, console: Console) -> None:
    """All tables, the notes and the bars."""
    for engine, description in report.descriptions.items():
        console.print(f"{_LABELS.get(engine, engine):<10} {description}", highlight=False, markup=False)
    console.print()
    if report.token_ids is not None:
        _print_token_ids(report.token_ids, console)
    console.print(_agreement_table(report))
    if report.greedy is not None:
        console.print(_greedy_table(report.greedy))
    seconds = ", ".join(f"{part} {value:.1f} s" for part, value in report.seconds.items())
    console.print(f"Time: {seconds}", highlight=False, markup=False)
    for note in report.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)
    console.print(_bar_table(report))


def _print_token_ids(found: TokenIds, console: Console) -> None:
    console.print(f"Token ids: {found.encodings} encodings, {found.ids} ids, {len(found.mismatches)} mismatches", highlight=False, markup=False)
    for mismatch in found.mismatches[:5]:
        at = mismatch.first_difference
        switches = f"add_special={mismatch.add_special}, parse_special={mismatch.parse_special}"
        console.print(f"  {mismatch.text[:60]!r} ({switches}): from id {at} on", highlight=False, markup=False)
        console.print(f"    ours {list(mismatch.ours[at : at + 8])}, llama.cpp {list(mismatch.oracle[at : at + 8])}", highlight=False, markup=False)


def _agreement_table(report: VerifyReport) -> Table:
    from rich.table import Table

    with_oracle = ORACLE in report.agreement.perplexity
    title = f"Teacher forcing on {report.agreement.positions} tokens (KL in nats, means; top-1 against the reference)"
    table = Table(title=title, title_justify="left")
    table.add_column("text")
    table.add_column("tokens", justify="right")
    columns = ["KL(ref || ours)", "KL(ref || llama.cpp)", "KL(llama.cpp || ours)", "top-1 ours", "top-1 llama.cpp"]
    for column in [*columns, "ppl ref", "ppl ours", "ppl llama.cpp"]:
        if with_oracle or "llama.cpp" not in column:
            table.add_column(column, justify="right")

    def row(label: str, part: Agreement) -> None:
        cells = [label, str(part.positions), f"{part.kl[REFERENCE, OURS]:.6f}"]
        if with_oracle:
            cells += [f"{part.kl[REFERENCE, ORACLE]:.6f}", f"{part.kl[ORACLE, OURS]:.6f}"]
        cells.append(f"{part.top1[REFERENCE, OURS]:.2%}")
        if with_oracle:
            cells.append(f"{part.top1[REFERENCE, ORACLE]:.2%}")
        cells += [f"{part.perplexity[REFERENCE]:.4f}", f"{part.perplexity[OURS]:.4f}"]
        if with_oracle:
            cells.append(f"{part.perplexity[ORACLE]:.4f}")
        table.add_row(*cells)

    for kind, part in report.teacher_forcing.by_kind.items():
        row(kind, part)
    table.add_section()
    row("all", report.agreement)
    return table


def _greedy_table(greedy: tuple[GreedyComparison, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    title = "Greedy generation, ours against llama.cpp; where they part: the reference's gap and the errors on the two tokens"
    table = Table(title=title, title_justify="left")
    for column in ("prompt", "agreed", "tokens", "gap", "error ours", "error llama.cpp", "within"):
        table.add_column(column, justify="left" if column in ("prompt", "tokens") else "right")
    for item in greedy:
        agreed = f"{item.agreed}/{item.tokens}"
        prompt = Text(item.prompt.replace("\n", " ")[:32])
        if item.divergence is None:
            table.add_row(prompt, agreed, "", "", "", "", "")
            continue
        parted = item.divergence
        verdict = "yes" if parted.within_error else "NO"
        tokens = f"{parted.our_token} / {parted.oracle_token}"
        table.add_row(prompt, agreed, tokens, f"{parted.reference_gap:+.4f}", f"{parted.our_error:.4f}", f"{parted.oracle_error:.4f}", verdict)
    return table


def _bar_table(report: VerifyReport) -> Table:
    from rich.table import Table

    table = Table(title=f"Bars for {report.model}", title_justify="left")
    table.add_column("bar")
    table.add_column("holds")
    table.add_column("found")
    for bar in report.bars():
        verdict = {True: "[green]yes[/green]", False: "[bold red]NO[/bold red]", None: "not judged"}[bar.holds]
        table.add_row(bar.name, verdict, bar.detail)
    return table

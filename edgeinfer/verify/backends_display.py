"""The report of several backends as tables for a person (rich). Only the command line and the bars use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.verify.backends import BackendsReport
from edgeinfer.verify.display import bar_table, new_table
from edgeinfer.verify.report import REFERENCE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_backends(report: BackendsReport, console: Console) -> None:
    """The backends, what is missing, the figures, the bars."""
    for backend, found in report.backends.items():
        console.print(f"{backend:<10} {found.description}", highlight=False, markup=False)
        for warning in found.warnings:
            console.print(f"{'':<10} {warning}", style="yellow", highlight=False, markup=False)
    for backend, reason in report.missing.items():
        console.print(f"{backend:<10} left out: {reason}", style="yellow", highlight=False, markup=False)
    console.print()
    console.print(_figures(report))
    console.print(_by_kind(report))
    seconds = ", ".join(f"{part} {value:.1f} s" for part, value in report.seconds.items())
    console.print(f"Time: {seconds}", highlight=False, markup=False)
    console.print(bar_table(report.model, report.bars()))


def _figures(report: BackendsReport) -> Table:
    found = report.agreement
    reference = found.perplexity[REFERENCE]
    figures = new_table(f"{report.model}: against the float64 reference (perplexity {reference:.4f}) on {found.positions} tokens; divergence in nats")
    for column in ("backend", "KL\nmean", "KL\nmedian", "KL\n99 %", "KL\nworst", "top-1", "perplexity", "apart", "greedy tokens\nas reference", "loading"):
        figures.add_column(column, justify="left" if column == "backend" else "right", no_wrap=True)
    for backend, item in report.backends.items():
        pair = (REFERENCE, backend)
        median, high = np.quantile(found.kl_each[pair], (0.5, 0.99))
        divergences = [f"{value:.6f}" for value in (found.kl[pair], median, high, found.kl_worst[pair])]
        perplexity = found.perplexity[backend]
        apart = f"{perplexity / reference - 1:+.3%}"
        figures.add_row(
            backend, *divergences, f"{found.top1[pair]:.2%}", f"{perplexity:.4f}", apart, f"{item.greedy_share:.1%}", f"{item.load_seconds:.2f} s"
        )
    return figures


def _by_kind(report: BackendsReport) -> Table:
    kinds = new_table("By kind of text: mean divergence, and arg-maxima equal to the reference's")
    kinds.add_column("text")
    for backend in report.backends:
        kinds.add_column(f"KL\n{backend}", justify="right", no_wrap=True)
    for backend in report.backends:
        kinds.add_column(f"top-1\n{backend}", justify="right", no_wrap=True)
    for kind, part in report.teacher_forcing.by_kind.items():
        divergences = [f"{part.kl[REFERENCE, backend]:.6f}" for backend in report.backends]
        kinds.add_row(kind, *divergences, *(f"{part.top1[REFERENCE, backend]:.2%}" for backend in report.backends))
    return kinds

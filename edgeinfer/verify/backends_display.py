"""The report of several backends as tables for a person (rich). Only the command line and the bars use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.core.tables import new_table
from edgeinfer.verify.backends import BackendsReport
from edgeinfer.verify.display import bar_table
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
    console.print(_divergences(report))
    console.print(_answers(report))
    console.print(_by_kind(report))
    seconds = ", ".join(f"{part} {value:.1f} s" for part, value in report.seconds.items())
    console.print(f"Time: {seconds}", highlight=False, markup=False)
    console.print(bar_table(report.model, report.bars()))


def _divergences(report: BackendsReport) -> Table:
    found = report.agreement
    table = new_table(f"{report.model}: against the float64 reference on {found.positions} tokens; divergence in nats, and equal arg-maxima")
    _columns(table, "backend", "KL\nmean", "KL\nmedian", "KL\n99 %", "KL\nworst", "top-1")
    for backend in report.backends:
        pair = (REFERENCE, backend)
        median, high = np.quantile(found.kl_each[pair], (0.5, 0.99))
        table.add_row(backend, *(f"{value:.6f}" for value in (found.kl[pair], median, high, found.kl_worst[pair])), f"{found.top1[pair]:.2%}")
    return table


def _answers(report: BackendsReport) -> Table:
    perplexities = report.agreement.perplexity
    reference = perplexities[REFERENCE]
    table = new_table(f"Perplexity (the reference's is {reference:.4f}), greedy generation and loading")
    _columns(table, "backend", "perplexity", "apart", "greedy tokens\nas reference", "loading")
    for backend, item in report.backends.items():
        perplexity = perplexities[backend]
        table.add_row(backend, f"{perplexity:.4f}", f"{perplexity / reference - 1:+.3%}", f"{item.greedy_share:.1%}", f"{item.load_seconds:.2f} s")
    return table


def _by_kind(report: BackendsReport) -> Table:
    kinds = new_table("By kind of text: mean divergence, and arg-maxima equal to the reference's")
    _columns(kinds, "text", *(f"KL\n{backend}" for backend in report.backends), *(f"top-1\n{backend}" for backend in report.backends))
    for kind, part in report.teacher_forcing.by_kind.items():
        divergences = [f"{part.kl[REFERENCE, backend]:.6f}" for backend in report.backends]
        kinds.add_row(kind, *divergences, *(f"{part.top1[REFERENCE, backend]:.2%}" for backend in report.backends))
    return kinds


def _columns(table: Table, first: str, *figures: str) -> None:
    table.add_column(first)
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)

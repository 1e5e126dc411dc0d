"""A benchmark's result as tables for a person (rich). Only the command line and the bars use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.benchmark.results import BenchmarkResult

if TYPE_CHECKING:
    from rich.console import Console


def print_result(result: BenchmarkResult, console: Console) -> None:
    """Speeds by engine, and our ratio to each peer."""
    from rich import box
    from rich.table import Table

    for engine, found in result.engines.items():
        console.print(f"{engine:<18} {found.version}; {found.settings}", highlight=False, markup=False)
    for engine, reason in result.missing.items():
        console.print(f"{engine:<18} left out: {reason}", style="yellow", highlight=False, markup=False)
    console.print()
    title = f"{result.model}: tokens a second, {result.threads} threads, medians of {result.rounds} alternating rounds"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    for column in (*result.tokens, "first\ntoken", "peak\nmemory", "anonymous\nmemory"):
        table.add_column(column, justify="right", no_wrap=True)
    longest = max((name for name in result.tokens if name.startswith("prefill")), key=lambda name: result.tokens[name])
    for engine, found in result.engines.items():
        speeds = [f"{result.speed(engine, measurement):,.1f}" for measurement in result.tokens]
        first = f"{result.first_token(engine, longest) * 1000:,.0f} ms"
        table.add_row(engine, *speeds, first, f"{found.peak_bytes / 1e6:,.0f} MB", f"{found.anonymous_bytes / 1e6:,.0f} MB")
    table.add_section()
    for peer in result.peers():
        table.add_row(f"ours / {peer}", *(f"{result.ratio(peer, measurement):.2f} x" for measurement in result.tokens), style="bold")
    console.print(table)
    load = result.machine.get("load_average")
    if load is not None and load > result.machine["usable_cores"] * 1.5:
        console.print(f"The machine was busy (load {load}); trust the ratios more than the speeds.", style="yellow", highlight=False)

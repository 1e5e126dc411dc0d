"""A benchmark's result as tables for a person (rich). Only the command line and the bars use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.benchmark.results import PREFILL, BenchmarkResult, StepProfile, ThreadsResult
from edgeinfer.core.tables import new_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_result(result: BenchmarkResult, console: Console) -> None:
    """For each number of threads: the engines, the machine's limits, speeds with their share of the limit, our ratio to each peer, memory and loading."""
    for run in result.runs:
        _print_run(result, run, console)
    load = result.machine.get("load_average")
    if load is not None and load > result.machine["usable_cores"] * 1.5:
        console.print(f"The machine was busy (load {load}); trust the ratios more than the speeds.", style="yellow", highlight=False)


def _print_run(result: BenchmarkResult, run: ThreadsResult, console: Console) -> None:
    for engine, found in run.engines.items():
        console.print(f"{engine:<18} {found.version}; {found.settings}", highlight=False, markup=False)
    for engine, reason in run.missing.items():
        console.print(f"{engine:<18} left out: {reason}", style="yellow", highlight=False, markup=False)
    for engine, found in run.engines.items():
        for name, reason in found.skipped.items():
            console.print(f"{engine:<18} {name} left out: {reason}", style="yellow", highlight=False, markup=False)
    if run.roofline is not None:
        _print_roofline(run, console)
    console.print()
    console.print(_speeds(f"{result.model}: tokens a second, {_threads(run.threads)}, medians of {result.rounds} alternating rounds", run))
    console.print(_memory(run))
    for profile in run.profiles:
        print_profile(profile, run.threads, console)


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _print_roofline(run: ThreadsResult, console: Console) -> None:
    assert run.roofline is not None
    found = run.roofline
    patterns = "; ".join(f"{pattern} {found.read(pattern) / 1e9:,.1f}" for pattern in found.patterns)
    lines = []
    if found.patterns:
        lines.append(f"reads {found.best_read / 1e9:,.1f} GB/s over {found.buffer_bytes / 1e6:,.0f} MB ({patterns})")
    if found.has_int8:
        lines.append(f"int8 {found.int8 / 1e9:,.0f} GOPS in registers, one core {found.int8_one_core / 1e9:,.0f}")
    for line in lines:
        console.print(f"{'machine':<18} {line}", highlight=False, markup=False)


def _speeds(title: str, run: ThreadsResult) -> Table:
    """A row for each measurement, so that any number of them fits: per engine its speed and what share of the machine's limit that is."""
    table = new_table(title)
    table.add_column("measurement", no_wrap=True)
    for engine in run.engines:
        table.add_column(engine.replace("-", "\n"), justify="right")
    for peer in run.peers():
        table.add_column(f"ours /\n{peer}", justify="right")
    table.add_column("of", no_wrap=True)
    for name, measurement in run.measurements.items():
        cells = [_speed(run, engine, name) for engine in run.engines]
        ratios = [f"{run.ratio(peer, name):.2f} x" if run.comparable(peer, name) else "-" for peer in run.peers()]
        limit = ("int8 peak" if measurement.kind == PREFILL else "read bandwidth") if run.roofline is not None else ""
        table.add_row(name, *cells, *ratios, limit)
    for name, measurement in run.measurements.items():
        if measurement.kind == PREFILL:
            cells = [f"{run.first_token(engine, name) * 1000:,.0f} ms" if run.has(engine, name) else "-" for engine in run.engines]
            table.add_row(f"first token of {measurement.tokens}", *cells)
    return table


def _speed(run: ThreadsResult, engine: str, name: str) -> str:
    if not run.has(engine, name):
        return "-"
    fraction = run.fraction(engine, name)
    return f"{run.speed(engine, name):,.1f}" + (f" {fraction:4.0%}" if fraction is not None else "")


def _memory(run: ThreadsResult) -> Table:
    table = new_table(
        "memory in MB: private at its peak, and the file pages (code, weights) that answering reads; seconds to import and load, compiling included"
    )
    for column in ("engine", "private", "file pages", "together", "to ours", "peak resident size", "loading"):
        table.add_column(column, justify="left" if column == "engine" else "right", no_wrap=True)
    ours = run.engines[run.base].memory.peak
    for engine, found in run.engines.items():
        memory = found.memory
        figures = [f"{size / 1e6:,.0f}" for size in (memory.private_peak, memory.file_pages, memory.peak)]
        table.add_row(engine, *figures, f"{memory.peak / ours:.2f} x" if ours else "-", f"{memory.resident_peak / 1e6:,.0f}", f"{found.load_seconds:.2f} s")
    return table


def print_profile(profile: StepProfile, threads: int, console: Console) -> None:
    """A row for each kind of operation: its time in a step, its rates, and the share of the roofline: the time that the limits allow over its own."""
    from rich.markup import escape

    limits = f"the machine reads {profile.limits.best_read / 1e9:,.1f} GB/s and computes {profile.limits.int8 / 1e9:,.0f} GOPS"
    steps = f"{profile.steps} step{'s' if profile.steps > 1 else ''} of {profile.seconds / profile.steps * 1e6:,.0f} us"
    table = new_table(f"{profile.title} tokens, {_threads(threads)}: {steps}; {limits}")
    for column in ("operation", "calls\na step", "us\na step", "share", "GOPS", "GB/s", "of the\nroofline"):
        table.add_column(column, justify="left" if column == "operation" else "right", no_wrap=column != "operation")
    for row in profile.rows:
        rates = [f"{rate / 1e9:,.1f}" if rate is not None else "" for rate in (row.operations_per_second, row.bytes_per_second)]
        fraction = f"{row.fraction:.0%}" if row.fraction is not None else ""
        form = row.kernel.rsplit("_linear_", 1)[-1]  # the format that the kernel was compiled for
        name = row.operation.replace("blk.*.", "").removesuffix(".weight") + (f" ({form})" if form != row.kernel else "")
        table.add_row(escape(name), str(row.calls), f"{row.seconds * 1e6:,.1f}", f"{row.share:.1%}", *rates, fraction)
    table.add_row("outside of operations", "", f"{profile.outside * 1e6:,.1f}", "", "", "", "")
    console.print(table)

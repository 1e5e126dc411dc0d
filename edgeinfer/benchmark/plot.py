"""A benchmark's record as a picture (PNG), with matplotlib, which the extra `bench` brings.

One row of panels for each number of threads: prefill speed and time to the first token by prompt length, decode speed by sequences that decode together,
and peak memory. Where the machine's limits were measured, dashed lines show what they allow. A panel with a single place on its axis is drawn as bars.
Works on the record that `--write` keeps, so that old records can be drawn as well:

    python -m edgeinfer.benchmark.plot RECORD.json PICTURE.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.benchmark.results import DECODE, OURS, PREFILL
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError

Record = Mapping[str, Any]

# Okabe and Ito's colours, which people with any colour vision can tell apart; ours is the dark blue, and nobody else's.
OUR_COLOUR = "#0072B2"
PEER_COLOURS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999")
MARKERS = ("s", "^", "D", "v", "P", "X")
LIMIT_COLOUR = "#555555"
PANEL_INCHES = (4.1, 3.2)
BAR_HEIGHT = 0.62


def check_plot(path: Path) -> None:
    """Raises InvalidRequestError for a name that does not end in .png, and BackendUnavailableError without matplotlib. Call it before measuring."""
    if path.suffix.lower() != ".png":
        raise InvalidRequestError(f"--plot is {str(path)!r}; the picture is a PNG, so give a name that ends in .png")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(f"a plot needs matplotlib ({error}); install it with: pip install 'edgeinfer[bench]'") from error


@dataclass(frozen=True)
class Series:
    """One engine in one panel: its colour and marker, and its values by place on the axis."""

    engine: str
    colour: str
    marker: str
    values: Mapping[int, float]


def series_of(record: Record, run: Record, kind: str, figure: str) -> list[Series]:
    """The figure ("tokens_per_second", "first_token_seconds") of each engine, by prompt length for a prefill, by sequences for a decode."""
    found = []
    for engine, (colour, marker) in _styles(record).items():
        if engine not in run["engines"]:
            continue
        measured = run["engines"][engine]["measurements"]
        values = {_place(record, name): entry[figure] for name, entry in measured.items() if record["measurements"][name]["kind"] == kind}
        if values:
            found.append(Series(engine, colour, marker, dict(sorted(values.items()))))
    return found


def limits_of(record: Record, run: Record, kind: str) -> dict[int, float]:
    """Tokens a second that the machine's limits allow our engine, by place on the axis; empty where they were not measured.

    A prompt is bound by its operations and a single token by its bytes; of many sequences together the nearer limit counts.
    """
    roofline = run.get("roofline") or {}
    operations, read = roofline.get("int8_operations_per_second"), roofline.get("read_bytes_per_second")
    found = {}
    for name, measurement in record["measurements"].items():
        if measurement["kind"] != kind or "multiply_adds" not in measurement:
            continue
        bounds = [2 * measurement["multiply_adds"] / operations] if operations else []
        if read and kind == DECODE:
            bounds.append(measurement["bytes_read"] / read)
        if bounds:
            found[_place(record, name)] = measurement["tokens"] * measurement["sequences"] / max(bounds)
    return dict(sorted(found.items()))


def _place(record: Record, name: str) -> int:
    measurement = record["measurements"][name]
    return int(measurement["tokens"] if measurement["kind"] == PREFILL else measurement["sequences"])


def _styles(record: Record) -> dict[str, tuple[str, str]]:
    """Colour and marker of every engine of the record, the same in all panels."""
    engines = list(dict.fromkeys(engine for run in record["runs"] for engine in run["engines"]))
    peers = [engine for engine in engines if engine != OURS]
    styles = {OURS: (OUR_COLOUR, "o")} if OURS in engines else {}
    return styles | {peer: (PEER_COLOURS[number % len(PEER_COLOURS)], MARKERS[number % len(MARKERS)]) for number, peer in enumerate(peers)}


def plot_record(record: Record, path: Path) -> None:
    """Draws the record of `BenchmarkResult.to_json` into a PNG file. Raises what `check_plot` does, and EdgeInferError if it cannot be written."""
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    runs: Sequence[Record] = record["runs"]
    kinds = [kind for kind in (PREFILL, DECODE) if any(item["kind"] == kind for item in record["measurements"].values())]
    columns = {PREFILL: 2, DECODE: 1}
    panels = sum(columns[kind] for kind in kinds) + 1
    head = 0.95  # inches for title and legend
    size = (PANEL_INCHES[0] * panels, PANEL_INCHES[1] * len(runs) + head)
    figure: Any = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(rect=(0.005, 0.01, 0.99, 1 - head / size[1] - 0.01), w_pad=0.12, h_pad=0.1)
    axes = figure.subplots(len(runs), panels, squeeze=False)
    for run, row in zip(runs, axes, strict=True):
        threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
        cells = iter(row)
        if PREFILL in kinds:
            _speeds(next(cells), record, run, PREFILL, f"Prefill, {threads}", "prompt length (tokens)", "tokens a second")
            _first_tokens(next(cells), record, run, threads)
        if DECODE in kinds:
            _speeds(next(cells), record, run, DECODE, f"Decode, {threads}", "sequences decoding together", "tokens a second")
        _memory(next(cells), record, run, threads)
    _head(figure, record, size[1])
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise EdgeInferError(f"cannot write {path}: {error.strerror}; choose another place with --plot") from error


def _head(figure: Any, record: Record, height: float) -> None:
    """The title with the machine, the origin of the figures, and one legend for all panels."""
    from matplotlib.lines import Line2D

    machine = record["machine"]
    commit = f", commit {record['commit'][:10]}" if record.get("commit") else ""
    rounds = f"medians of {record['rounds']} alternating round{'s' if record['rounds'] > 1 else ''}"
    figure.text(0.012, 1 - 0.13 / height, record["model"], fontsize=15, fontweight="bold", va="top")
    below = f"{machine.get('processor', 'unknown processor')}, {machine.get('usable_cores', '?')} cores; {rounds}; {record['date'][:10]}{commit}"
    figure.text(0.012, 1 - 0.42 / height, below, fontsize=9.5, color="#444444", va="top")
    handles = [Line2D([], [], color=colour, marker=marker, label=_title(record, engine)) for engine, (colour, marker) in _styles(record).items()]
    if any(limits_of(record, run, kind) for run in record["runs"] for kind in (PREFILL, DECODE)):
        handles.append(Line2D([], [], color=LIMIT_COLOUR, linestyle="--", label="what the machine's limits allow"))
    place = (0.007, 1 - 0.6 / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=place, ncols=len(handles), frameon=False, fontsize=9.5, borderaxespad=0.2)


def _title(record: Record, engine: str) -> str:
    """The engine with the version that ran: "llamacpp (llama-cpp-python 0.3.36)"."""
    version = next(run["engines"][engine]["version"] for run in record["runs"] if engine in run["engines"])
    return version if version.startswith(engine) else f"{engine} ({version})"


def _speeds(axes: Any, record: Record, run: Record, kind: str, title: str, axis: str, unit: str) -> None:
    series, limits = series_of(record, run, kind, "tokens_per_second"), limits_of(record, run, kind)
    fractions = {item.engine: _fractions(record, run, kind, item.engine) for item in series}
    if len({place for item in series for place in item.values}) == 1:
        place = next(iter(series[0].values))
        what = f"prompt of {place}" if kind == PREFILL else ("one sequence" if place == 1 else f"{place} sequences")
        labels = [f"{item.values[place]:,.0f}" + _percent(fractions[item.engine].get(place)) for item in series]
        _bars(axes, series, [item.values[place] for item in series], labels, limits.get(place))
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_title(f"{title} ({what})", loc="left", fontsize=10.5, fontweight="bold")
        return
    _lines(axes, series, axis)
    if limits:
        axes.plot(list(limits), list(limits.values()), color=LIMIT_COLOUR, linestyle="--", linewidth=1.2, zorder=1)
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    if kind == DECODE:
        axes.set_yscale("log")
        axes.set_ylim(bottom=min(speed for item in series for speed in item.values.values()) / 1.6)
        _plain_numbers(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    for place, speed in next((item.values for item in series if item.engine == OURS), {}).items():
        if kind == PREFILL or place == 1:  # where the dashed line is the limit that the fraction is of
            text = _percent(fractions[OURS].get(place)).strip()
            above = 8 if kind == PREFILL else -14
            axes.annotate(text, (place, speed), (0, above), textcoords="offset points", fontsize=8, color=OUR_COLOUR, ha="center", path_effects=_halo())


def _first_tokens(axes: Any, record: Record, run: Record, threads: str) -> None:
    series = series_of(record, run, PREFILL, "first_token_seconds")
    places = {place for item in series for place in item.values}
    if len(places) == 1:
        place = next(iter(places))
        values = [item.values[place] * 1000 for item in series]
        _bars(axes, series, values, [f"{value:,.0f}" for value in values], None)
        axes.set_xlabel("milliseconds")
        axes.set_title(f"Time to first token, {threads} (prompt of {place})", loc="left", fontsize=10.5, fontweight="bold")
        return
    _lines(axes, series, "prompt length (tokens)")
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.set_ylabel("seconds")
    axes.set_title(f"Time to first token, {threads}", loc="left", fontsize=10.5, fontweight="bold")


def _memory(axes: Any, record: Record, run: Record, threads: str) -> None:
    """Private memory in the engine's colour, and the file pages that it reads paler behind it."""
    styles = _styles(record)
    engines = [engine for engine in styles if engine in run["engines"]]
    sizes = [run["engines"][engine]["memory"] for engine in engines]
    series = [Series(engine, *styles[engine], {}) for engine in engines]
    private, together = ([memory[name] / 1e6 for memory in sizes] for name in ("private_peak_bytes", "peak_bytes"))
    _bars(axes, series, together, [f"{size:,.0f}" for size in together], None, pale=True)
    axes.barh(range(len(engines)), private, height=BAR_HEIGHT, color=[item.colour for item in series])
    axes.set_xlabel("MB (pale: code and weights in files)")
    axes.set_title(f"Peak memory, {threads}", loc="left", fontsize=10.5, fontweight="bold")


def _fractions(record: Record, run: Record, kind: str, engine: str) -> dict[int, float | None]:
    measured = run["engines"][engine]["measurements"]
    return {_place(record, name): entry.get("fraction_of_roofline") for name, entry in measured.items() if record["measurements"][name]["kind"] == kind}


def _percent(fraction: float | None) -> str:
    return f"  {fraction:.0%}" if fraction is not None else ""


def _lines(axes: Any, series: Sequence[Series], axis: str) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    places = sorted({place for item in series for place in item.values})
    for item in reversed(series):  # ours comes first and is drawn last, above the others
        width, size = (2.2, 6) if item.engine == OURS else (1.5, 5)
        axes.plot(list(item.values), list(item.values.values()), color=item.colour, marker=item.marker, linewidth=width, markersize=size, zorder=3)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{place // 1024}k" if place % 1024 == 0 else str(place) for place in places])
    axes.set_xlabel(axis)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    _bare(axes)


def _bars(axes: Any, series: Sequence[Series], values: Sequence[float], labels: Sequence[str], limit: float | None, pale: bool = False) -> None:
    from matplotlib.colors import to_rgb

    colours = [tuple(1 - (1 - part) * (0.4 if pale else 1.0) for part in to_rgb(item.colour)) for item in series]
    axes.barh(range(len(series)), values, height=BAR_HEIGHT, color=colours)
    end = max([*values, limit or 0]) * (1.3 if limit is None else 1.08)
    for position, (value, label) in enumerate(zip(values, labels, strict=True)):
        inside = limit is not None and value > 0.7 * end  # beside the bar is the dashed line
        place = {"xytext": (-5, 0), "ha": "right", "color": "white"} if inside else {"xytext": (4, 0), "ha": "left", "path_effects": _halo()}
        axes.annotate(label, (value, position), textcoords="offset points", va="center", fontsize=9, **place)
    if limit is not None:
        axes.axvline(limit, color=LIMIT_COLOUR, linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(series)), [item.engine for item in series], fontsize=9)
    axes.set_ylim(max(len(series), 3) - 0.5, -0.5)  # downwards, and no bar as thick as the panel
    axes.set_xlim(0, end)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    _bare(axes)


def _halo() -> list[Any]:
    """A white edge, so that text can be read across lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def _bare(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _plain_numbers(axis: Any) -> None:
    """1, 10, 100 and what is between, instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def main() -> None:
    """Draws a record that was kept."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m edgeinfer.benchmark.plot RECORD.json PICTURE.png")
    try:
        plot_record(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
    except EdgeInferError as error:
        raise SystemExit(str(error)) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{sys.argv[1]} is no record of `edgeinfer bench --write` that can be read ({type(error).__name__}: {error})") from error


if __name__ == "__main__":
    main()

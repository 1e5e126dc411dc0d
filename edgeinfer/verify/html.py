"""The report of several backends as one HTML page without anything outside of it: tables, and plots as inline SVG. No scripts, no fonts, no images.

Colours are those of the benchmark's pictures; every figure that a plot shows is in a table too, so that nothing depends on seeing colours.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgeinfer.core.errors import StorageError
from edgeinfer.core.printable import printable
from edgeinfer.verify.backends import BackendsReport
from edgeinfer.verify.report import REFERENCE

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_WIDTH = 720
_LEFT = 190  # room for labels on the left of bars
_BAR, _GAP = 14, 16

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d5dae0; --ground: #fff; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #3a424b; --ground: #15181c; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 780px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem } p { margin: .3rem 0 .8rem; color: var(--soft) }
div.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600 } th:first-child, td:first-child { text-align: left } td.text { text-align: left; white-space: normal }
.bad { color: var(--bad); font-weight: 600 }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg text.soft { fill: var(--soft) }
svg line { stroke: var(--line) }
"""


def write_html(report: BackendsReport, path: Path) -> None:
    """Writes the page. Raises StorageError where it cannot be written."""
    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write the report to {path}: {error.strerror or error}") from error


def page(report: BackendsReport) -> str:
    """The whole page."""
    found = report.agreement
    backends = list(report.backends)
    model = html.escape(printable(report.model))
    cache = f"cache {html.escape(report.cache_type)}" if report.cache_type else "each backend's default cache"
    verdict = "no bar is missed" if report.holds else "<span class=bad>a bar is missed</span>"
    parts = [
        f"<h1>{model}: {html.escape(', '.join(backends))} against the reference</h1>",
        f"<p>{found.positions} tokens of running text, {report.threads} threads, {cache}: {verdict}. The reference computes "
        "with NumPy and float64 sums from the weights as the file stores them.</p>",
        _figures(report),
        "<h2>Divergence by kind of text</h2><p>Mean KL(reference || backend) in nats; less is better.</p>",
        _kind_bars(report),
        "<h2>Divergence of single tokens</h2><p>The share of tokens whose divergence is at most so large; further to the left is better.</p>",
        _distribution(report),
        f"<h2>Greedy generation</h2><p>Tokens until the first that the reference would not have generated, after each of {len(_prompts(report))} prompts. "
        "Where backends part from it, the reference's two best tokens are nearly as likely as each other.</p>",
        _greedy_bars(report),
        "<h2>Bars</h2>",
        _table(("bar", "holds", "found"), [(bar.name, bar.verdict, bar.detail) for bar in report.bars()], text_columns=(0, 2)),
        "<h2>Backends</h2>",
        _table(("backend", "about"), [(name, _about(report, name)) for name in (*backends, *report.missing)], text_columns=(0, 1)),
    ]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{model}: backends</title>\n<style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _about(report: BackendsReport, backend: str) -> str:
    if backend in report.missing:
        return f"could not run: {report.missing[backend]}"
    found = report.backends[backend]
    return "; ".join([found.description, *found.warnings])


def _prompts(report: BackendsReport) -> list[str]:
    return [item.prompt for item in next(iter(report.backends.values())).greedy]


def _figures(report: BackendsReport) -> str:
    found = report.agreement
    rows = []
    for backend, item in report.backends.items():
        pair = (REFERENCE, backend)
        high = float(np.quantile(found.kl_each[pair], 0.99))
        apart = found.perplexity[backend] / found.perplexity[REFERENCE] - 1
        divergences = [f"{value:.6f}" for value in (found.kl[pair], high, found.kl_worst[pair])]
        figures = [f"{found.top1[pair]:.2%}", f"{found.perplexity[backend]:.4f}", f"{apart:+.3%}", f"{item.greedy_share:.1%}", f"{item.load_seconds:.2f} s"]
        rows.append((backend, *divergences, *figures))
    rows.append((REFERENCE, "", "", "", "", f"{found.perplexity[REFERENCE]:.4f}", "", "", ""))
    return _table(("backend", "KL mean", "KL 99 %", "KL worst", "top-1", "perplexity", "apart", "greedy", "loading"), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    def cell(column: int, text: str) -> str:
        kind = " class=bad" if text == "NO" else " class=text" if column in text_columns else ""
        return f"<td{kind}>{html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = "".join(f"<tr>{''.join(cell(column, text) for column, text in enumerate(row))}</tr>\n" for row in rows)
    return f"<div class=wide><table><tr>{head}</tr>\n{lines}</table></div>"


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    inner = "\n".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{html.escape(label)}">\n{inner}\n</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", soft: bool = False) -> str:
    kind = ' class="soft"' if soft else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{html.escape(text)}</text>'


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _legend(backends: Sequence[str]) -> list[str]:
    """A line of names at the top."""
    parts, x = [], float(_LEFT)
    for number, backend in enumerate(backends):
        parts += [f'<rect x="{x:.1f}" y="4" width="12" height="12" rx="2" fill="{_colour(number)}"/>', _text(x + 17, 14, backend)]
        x += 40 + 8 * len(backend)
    return parts


def _bars(groups: Sequence[tuple[str, Sequence[tuple[float, str]]]], backends: Sequence[str], most: float, label: str) -> str:
    """Horizontal bars: for each group (its name, and per backend the value and its text)."""
    parts, y = _legend(backends), 30.0
    scale = (_WIDTH - _LEFT - 80) / most if most > 0 else 0.0
    for name, values in groups:
        middle = y + len(values) * _BAR / 2 + 4
        parts.append(_text(_LEFT - 10, middle, name, "end"))
        for number, (value, text) in enumerate(values):
            width = max(1.0, value * scale)
            parts.append(f'<rect x="{_LEFT}" y="{y + 1:.1f}" width="{width:.1f}" height="{_BAR - 2}" rx="2" fill="{_colour(number)}"/>')
            parts.append(_text(_LEFT + width + 6, y + _BAR - 3, text, soft=True))
            y += _BAR
        y += _GAP
    parts.append(f'<line x1="{_LEFT}" y1="24" x2="{_LEFT}" y2="{y - _GAP + 4:.1f}"/>')
    return _svg(y, parts, label)


def _kind_bars(report: BackendsReport) -> str:
    kinds = {**report.teacher_forcing.by_kind, "all": report.agreement}
    groups = []
    for kind, part in kinds.items():
        divergences = [part.kl[REFERENCE, backend] for backend in report.backends]
        groups.append((kind, [(value, f"{value:.6f}") for value in divergences]))
    return _bars(groups, list(report.backends), max(value for _, values in groups for value, _ in values), "mean divergence by kind of text")


def _greedy_bars(report: BackendsReport) -> str:
    groups = []
    for place, prompt in enumerate(_prompts(report)):
        items = [found.greedy[place] for found in report.backends.values()]
        short = " ".join(prompt.split())
        groups.append((short if len(short) <= 24 else short[:23] + "…", [(item.agreed, f"{item.agreed} of {item.tokens}") for item in items]))
    most = max(item.tokens for found in report.backends.values() for item in found.greedy)
    return _bars(groups, list(report.backends), most, "greedy tokens as the reference generates them")


def _distribution(report: BackendsReport) -> str:
    """Cumulative shares over a logarithmic axis of divergence, from the first hundredth of the tokens to the worst."""
    divergences = {backend: np.sort(np.maximum(report.agreement.kl_each[REFERENCE, backend], 1e-12)) for backend in report.backends}
    low = math.floor(min(math.log10(np.quantile(values, 0.01)) for values in divergences.values()))
    high = max(low + 1, math.ceil(max(math.log10(values[-1]) for values in divergences.values())))
    left, top, bottom, right = 60.0, 30.0, 270.0, _WIDTH - 20.0

    def place(value: float, share: float) -> tuple[float, float]:
        along = (math.log10(value) - low) / (high - low)
        return left + min(1.0, max(0.0, along)) * (right - left), bottom - share * (bottom - top)

    parts = _legend(list(divergences))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * (bottom - top)
        parts += [f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>', _text(left - 8, y + 4, f"{share:.0%}", "end", soft=True)]
    for power in range(low, high + 1, max(1, (high - low) // 8)):
        x, _ = place(10.0**power, 0)
        parts += [f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}"/>', _text(x, bottom + 20, f"1e{power}", "middle", soft=True)]
    parts.append(_text(right, bottom + 38, "KL(reference || backend), nats", "end", soft=True))
    for number, values in enumerate(divergences.values()):
        shares = np.linspace(0, 1, min(len(values), 200))
        points = [place(float(np.quantile(values, share)), float(share)) for share in shares]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_colour(number)}" stroke-width="2"/>')
    return _svg(bottom + 45, parts, "distribution of the divergence of single tokens")

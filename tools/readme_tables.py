"""The tables of README.md that follow from the source: model cards, architectures, formats, environment variables.

`python -m tools.readme_tables --write` writes them anew between their markers; without `--write` it only says whether they are current (a test does
the same). Nothing in the package imports this module.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def cards() -> str:
    """Every model card."""
    from edgeinfer.cards import load_cards

    rows = [
        (f"`{card.name}`", card.title, card.kind, card.architecture, card.quantization, f"{card.size / 1e6:,.0f} MB", card.licence)
        for card in load_cards().values()
    ]
    return _table(("name", "model", "kind", "architecture", "quantization", "size", "licence"), rows)


def architectures() -> str:
    """Every architecture file, with the first sentence of its comment."""
    from edgeinfer.core.paths import data_path

    rows = []
    for path in sorted(data_path("architectures").glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        comment = " ".join(line.removeprefix("#").strip() for line in text.splitlines()[: _comment_lines(text)])
        rows.append((f"`{tomllib.loads(text)['name']}`", comment.split(": ", 1)[0]))
    return _table(("architecture", "models"), rows)


def _comment_lines(text: str) -> int:
    """How many lines at the top of a file are comments."""
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))


def formats() -> str:
    """Every tensor format."""
    from kernels_numba.formats import all_formats

    rows = [
        (entry.name, str(entry.block_elements), f"{8 * entry.block_bytes / entry.block_elements:g}", "yes" if entry.quantized else "no")
        for entry in all_formats().values()
    ]
    return _table(("format", "elements of a block", "bits per weight", "quantized"), rows)


def environment() -> str:
    """Every environment variable."""
    from edgeinfer.core.env import VARIABLES

    return _table(("variable", "meaning", "default"), [(f"`{variable.name}`", variable.purpose, variable.default) for variable in VARIABLES])


TABLES: dict[str, Callable[[], str]] = {"cards": cards, "architectures": architectures, "formats": formats, "environment": environment}


def with_current_tables(text: str) -> str:
    """The text with every table between `<!-- begin: NAME -->` and `<!-- end: NAME -->` written anew. Raises ValueError for a marker that is missing."""
    for name, make in TABLES.items():
        begin, end = f"<!-- begin: {name} -->\n", f"\n<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the text must have one pair of markers {begin.strip()} and {end.strip()}")
        head, rest = text.split(begin)
        text = head + begin + make() + end + rest.split(end)[1]
    return text


def main() -> None:
    """Write or check."""
    text = README.read_text(encoding="utf-8")
    current = with_current_tables(text)
    if "--write" in sys.argv[1:]:
        README.write_text(current, encoding="utf-8")
    elif text != current:
        raise SystemExit("README.md: the tables are not current; run `make readme`")


if __name__ == "__main__":
    main()

"""The entry point `edgeinfer`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    raise SystemExit("edgeinfer: error: the commands are not here yet")

"""The entry point `edgeinfer`. Command modules import what is heavy inside their functions, so that `edgeinfer --help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeinfer.cli import bench as bench_command
from edgeinfer.cli import list as list_command
from edgeinfer.cli import pull as pull_command
from edgeinfer.cli import verify as verify_command
from edgeinfer.cli.console import INTERRUPTED, guarded, prepare_streams
from edgeinfer.core.version import __version__

app = typer.Typer(
    name="edgeinfer",
    help="Run quantized GGUF language models on the CPU.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich alone would take longer to import than everything else together
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"edgeinfer {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", help="show the version and exit", is_eager=True, callback=_print_version)] = False,
) -> None:
    """Run quantized GGUF language models on the CPU."""


app.command("pull")(guarded(pull_command.pull))
app.command("list")(guarded(list_command.list_models))
app.command("verify")(guarded(verify_command.verify))
app.command("bench")(guarded(bench_command.bench))


def main() -> None:
    """Run the command line; ends the process with an exit code: 0, 1 (failed), 2 (wrong input), 3 (memory), 130 (Ctrl-C), 141 (reader gone)."""
    prepare_streams()
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()

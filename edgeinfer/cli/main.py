"""The entry point `edgeinfer`. Command modules import what is heavy inside their functions, so that `edgeinfer --help` answers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from edgeinfer.cli.batch import batch
from edgeinfer.cli.bench import bench
from edgeinfer.cli.chat import chat
from edgeinfer.cli.compile import compile_model
from edgeinfer.cli.console import guarded, note, prepare_streams
from edgeinfer.cli.doctor import doctor
from edgeinfer.cli.export import export
from edgeinfer.cli.inspect import inspect
from edgeinfer.cli.list import list_models
from edgeinfer.cli.pull import pull
from edgeinfer.cli.run import run
from edgeinfer.cli.tokenize import tokenize
from edgeinfer.cli.verify import verify
from edgeinfer.core import env
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


COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "chat": chat,
    "batch": batch,
    "pull": pull,
    "list": list_models,
    "compile": compile_model,
    "inspect": inspect,
    "tokenize": tokenize,
    "export": export,
    "verify": verify,
    "bench": bench,
    "doctor": doctor,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(guarded(_command))


def main() -> None:
    """Run the command line; ends the process with an exit code: 0, 1 (failed), 2 (wrong input), 3 (memory), 130 (Ctrl-C), 141 (reader gone)."""
    prepare_streams()
    for sentence in env.misspelt():
        note(f"edgeinfer: warning: {sentence}")
    guarded(app)()  # commands are guarded themselves, before typer sees their errors; this is for help, version and wrong usage


if __name__ == "__main__":
    main()

"""`edgeinfer verify`: our kernels beside llama.cpp and the NumPy reference, or any backends beside the reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.cli import options

if TYPE_CHECKING:
    from edgeinfer.verify.backends import BackendsOptions


def verify(
    model: options.Model,
    tokens: Annotated[int, typer.Option("--tokens", help="tokens of running text to compare, at least; perplexities are judged from 1000 on")] = 2112,
    greedy_tokens: Annotated[int, typer.Option("--greedy-tokens", help="tokens to generate after each of ten prompts")] = 64,
    backend: options.BackendName = "numba",
    backends: Annotated[str | None, typer.Option("--backends", help="compare these, with commas between, each with the float64 reference")] = None,
    provider: options.Provider = None,
    min_share: options.MinimumShare = None,
    report: Annotated[Path | None, typer.Option("--report", help="with --backends: write an HTML page with plots into this file")] = None,
    threads: options.Threads = None,
    cache_type: options.CacheType = None,
    instruction_set: Annotated[str | None, typer.Option("--instruction-set", help="a level's name, to force it")] = None,
    without_oracle: Annotated[bool, typer.Option("--without-oracle", help="leave llama.cpp out")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare with llama.cpp and a reference. Token ids, divergence, perplexity and greedy generation are compared.

    With --backends every backend is compared with the reference instead, in the same run.

    Ends with 0 when every bar that could be judged holds, and with 1 when one is missed.
    """
    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import print_json
    from edgeinfer.cli.stages import StageReporter
    from edgeinfer.core.errors import InvalidRequestError
    from edgeinfer.core.tables import report_console
    from edgeinfer.verify.display import print_report
    from edgeinfer.verify.run import VerifyOptions, verify_model

    if backends is not None:
        from edgeinfer.backends.choice import parse_backends
        from edgeinfer.verify.backends import BackendsOptions

        if backend != "numba" or instruction_set is not None or without_oracle:
            raise InvalidRequestError("--backend, --instruction-set and --without-oracle are for verify without --backends; leave them out")
        compared = BackendsOptions(parse_backends(backends), tokens, greedy_tokens, threads, cache_type, provider, min_share)
        _verify_backends(model, compared, report, as_json)
        return
    if report is not None:
        raise InvalidRequestError("--report writes the comparison of backends; name them with --backends, such as --backends numba,llamacpp")
    wanted = VerifyOptions(tokens, greedy_tokens, backend, threads, cache_type, instruction_set, not without_oracle, provider, min_share)
    path = resolve_model(model)
    with StageReporter() as reporter:
        found = verify_model(path, wanted, reporter.stage, reporter.say)
    print_report(found, report_console(stderr=as_json))
    if as_json:
        print_json(found.to_json())
    if not found.holds:
        raise typer.Exit(1)


def _verify_backends(model: str, wanted: BackendsOptions, report: Path | None, as_json: bool) -> None:
    """Verify with --backends."""
    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import note, print_json
    from edgeinfer.cli.stages import StageReporter
    from edgeinfer.core.outputs import require_writable_file
    from edgeinfer.core.tables import report_console
    from edgeinfer.verify.backends import verify_backends
    from edgeinfer.verify.backends_display import print_backends
    from edgeinfer.verify.html import write_html

    path = resolve_model(model)
    if report is not None:
        require_writable_file(report, "--report")
    with StageReporter() as reporter:
        found = verify_backends(path, wanted, reporter.stage)
    print_backends(found, report_console(stderr=as_json))
    if report is not None:
        write_html(found, report)
        note(f"written to {report}")
    if as_json:
        print_json(found.to_json())
    if not found.holds:
        raise typer.Exit(1)

"""`edgeinfer verify`: our kernels beside llama.cpp and the NumPy reference."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeinfer.cli import options


def verify(
    model: options.Model,
    tokens: Annotated[int, typer.Option("--tokens", help="tokens of running text to compare, at least; some hundreds are too few for perplexities")] = 2112,
    greedy_tokens: Annotated[int, typer.Option("--greedy-tokens", help="tokens to generate after each of ten prompts")] = 64,
    backend: options.BackendName = "numba",
    threads: options.Threads = None,
    cache_type: options.CacheType = "f16",
    instruction_set: Annotated[str | None, typer.Option("--instruction-set", help="a level's name, to force it")] = None,
    without_oracle: Annotated[bool, typer.Option("--without-oracle", help="leave llama.cpp out")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare with llama.cpp and a reference. Token ids, divergence, perplexity and greedy generation are compared.

    Ends with 0 when every bar that could be judged holds, and with 1 when one is missed.
    """
    from rich.console import Console

    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import print_json
    from edgeinfer.cli.stages import StageReporter
    from edgeinfer.verify.display import print_report
    from edgeinfer.verify.run import VerifyOptions, verify_model

    wanted = VerifyOptions(tokens, greedy_tokens, backend, threads, cache_type, instruction_set, not without_oracle)
    path = resolve_model(model)
    with StageReporter() as reporter:
        report = verify_model(path, wanted, reporter.stage)
    print_report(report, Console(stderr=as_json))
    if as_json:
        print_json(report.to_json())
    if not report.holds:
        raise typer.Exit(1)

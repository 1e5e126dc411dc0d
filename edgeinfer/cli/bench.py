"""`edgeinfer bench`: our engine beside its peers, and beside what the machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeinfer.cli import options

Threads = Annotated[str | None, typer.Option("--threads", help="worker threads; several with commas between; default: the cores that may be used")]


def bench(
    model: options.Model,
    threads: Threads = None,
    prompt_lengths: Annotated[str, typer.Option("--prompt-lengths", help="tokens of the prompts, with commas between")] = "512",
    decode_tokens: Annotated[int, typer.Option("--decode-tokens", help="tokens decoded after a prompt of 16")] = 96,
    batch: Annotated[str, typer.Option("--batch", help="sequences that decode together, with commas between")] = "1",
    rounds: Annotated[int, typer.Option("--rounds", help="alternating rounds, after one that warms up")] = 5,
    backends: Annotated[str, typer.Option("--backends", "--backend", help="backends of our own engine, with commas between; the first must run")] = "numba",
    provider: options.Provider = None,
    min_share: options.MinimumShare = None,
    peers: Annotated[str, typer.Option("--peers", help="llamacpp, ik_llamacpp, openvino, several with commas between, or none")] = "llamacpp",
    peer_python: Annotated[list[str] | None, typer.Option("--peer-python", help="PEER=INTERPRETER: the Python that has a peer")] = None,
    roofline: Annotated[bool, typer.Option("--roofline/--no-roofline", help="measure the machine's limits in every round")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="show where the time of our steps goes, by operation")] = False,
    search: Annotated[bool, typer.Option("--search/--no-search", help="look for each peer's fastest settings first")] = True,
    write: Annotated[Path | None, typer.Option("--write", help="folder to write DATE-MODEL.json into")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="draw the result into this PNG file (needs the extra `bench`)")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure speed, memory and loading beside peers. Prefill, decode and time to first token, in alternating rounds, each in its own process.

    What is measured of several backends in one run is kept on this machine, and `--backend auto` chooses by it.
    """
    from edgeinfer.backends.choice import parse_backends
    from edgeinfer.backends.onnx.providers import check_provider
    from edgeinfer.benchmark.comparisons import keep_comparisons
    from edgeinfer.benchmark.display import print_result
    from edgeinfer.benchmark.options import parse_interpreters, parse_numbers, parse_peers, peer_interpreters
    from edgeinfer.benchmark.record import write_result
    from edgeinfer.benchmark.rounds import BenchmarkOptions, run_benchmark
    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import note, print_json
    from edgeinfer.core.errors import InvalidRequestError
    from edgeinfer.core.host import worker_threads
    from edgeinfer.core.outputs import require_writable_file, require_writable_folder
    from edgeinfer.core.tables import report_console

    check_provider(provider, min_share)  # before processes are started, which could only fail for it
    wanted = BenchmarkOptions(
        threads=(worker_threads().count,) if threads is None else parse_numbers(threads, "threads", "1,2"),
        prompt_lengths=parse_numbers(prompt_lengths, "prompt lengths", "32,512"),
        decode_tokens=decode_tokens,
        batch_sizes=parse_numbers(batch, "batch sizes", "1,8"),
        rounds=rounds,
        peers=parse_peers(peers),
        backends=parse_backends(backends),
        interpreters=peer_interpreters(parse_interpreters(peer_python or [])),
        roofline=roofline,
        search=search,
        provider=provider,
        minimum_share=min_share,
    )
    for count in wanted.threads:
        worker_threads(count)
    if profile and "numba" not in wanted.backends:
        named = ", ".join(wanted.backends)
        raise InvalidRequestError(f"--profile is of the backend numba, which is not among {named}; name it as well, or leave --profile out")
    path = resolve_model(model)
    if write is not None:  # before minutes are spent on measuring
        require_writable_folder(write, "--write")
    if plot is not None:
        from edgeinfer.benchmark.plot import check_plot

        check_plot(plot)
        require_writable_file(plot, "--plot")
    result = run_benchmark(path, wanted, note)
    kept = keep_comparisons(result, path) if provider is None else []  # auto takes the backend onnx on its default provider
    if profile:
        from edgeinfer.benchmark.profile import with_profiles

        result = with_profiles(result, path, max(wanted.prompt_lengths), decode_tokens, note)
    print_result(result, report_console(stderr=as_json))
    for sentence in kept:
        note(f"edgeinfer: {sentence}")
    if write is not None:
        note(f"written to {write_result(result, write)}")
    if plot is not None:
        from edgeinfer.benchmark.plot import plot_record

        plot_record(result.to_json(), plot)
        note(f"drawn into {plot}")
    if as_json:
        print_json(result.to_json())

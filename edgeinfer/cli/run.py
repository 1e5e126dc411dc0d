"""`edgeinfer run`: continue a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeinfer.cli import options

if TYPE_CHECKING:
    from edgeinfer.core.results import Completion


def run(
    model: options.Model,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="the text to continue; - reads it from standard input")],
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="go on after an end-of-text token")] = False,
    backend: options.BackendName = "numba",
    provider: options.Provider = None,
    min_share: options.MinimumShare = None,
    threads: options.Threads = None,
    context: options.Context = None,
    cache_type: options.CacheType = None,
    as_json: options.AsJson = False,
) -> None:
    """Continue a prompt. The text goes to standard output as it comes, timings to standard error."""
    import sys

    from edgeinfer.cli.console import is_terminal, loading, note, print_json, text_argument
    from edgeinfer.core.requests import SamplingParams

    params = SamplingParams(max_tokens, temperature, top_k, top_p, min_p, seed, [text_argument("--stop", text) for text in stop or []], ignore_eos)
    text = read_standard_input() if prompt == "-" else text_argument("--prompt", prompt)
    with loading(model, backend=backend, context=context, threads=threads, cache_type=cache_type, provider=provider, minimum_share=min_share) as engine:
        completion = None
        for event in engine.stream(text, params):
            if not as_json:
                sys.stdout.write(event.text)
                sys.stdout.flush()
            completion = event.completion or completion
        assert completion is not None, "the last event of a stream carries the completion"
        if not as_json and is_terminal(sys.stdout):
            print()
        for warning in (*engine.warnings, *completion.warnings):
            note(f"edgeinfer: warning: {warning}")
        placement = engine.capabilities.placement
    note(summary(completion))
    if as_json:
        print_json(as_object(completion) | ({"placement": placement.to_json()} if placement is not None else {}))


def read_standard_input() -> str:
    """All of standard input as text. Raises InvalidRequestError when it is not UTF-8."""
    import sys

    from edgeinfer.core.errors import InvalidRequestError

    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not valid UTF-8 (byte {error.start}); pass UTF-8 text") from error


def summary(completion: Completion) -> str:
    """Counts and speeds on one line, for people."""
    usage, timings = completion.usage, completion.timings
    return (
        f"[{usage.prompt_tokens} prompt tokens at {timings.prefill_tokens_per_second:.1f}/s, {usage.completion_tokens} generated at "
        f"{timings.decode_tokens_per_second:.1f}/s; first token after {timings.first_token:.2f} s, {timings.total:.2f} s in all; "
        f"ended by {completion.finish_reason}; seed {completion.seed}]"
    )


def as_object(completion: Completion) -> dict[str, Any]:
    """A completion as a JSON object; the same for `run --json` and the lines of `batch`."""
    usage, timings = completion.usage, completion.timings
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "timings": {
            "first_token": timings.first_token,
            "total": timings.total,
            "prefill_tokens_per_second": timings.prefill_tokens_per_second,
            "decode_tokens_per_second": timings.decode_tokens_per_second,
        },
        "seed": completion.seed,
        "warnings": list(completion.warnings),
    }

"""`edgeinfer chat`: talk with a model, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.cli import options

if TYPE_CHECKING:
    from edgeinfer.core.requests import SamplingParams
    from edgeinfer.engine import Engine

HELP = "/quit ends, /new begins a new conversation, /help shows this; Ctrl-C stops an answer"


def chat(
    model: options.Model,
    system: Annotated[str | None, typer.Option("--system", help="instructions for the model, before the conversation")] = None,
    max_tokens: options.MaxTokens = 1024,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.95,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    timings: Annotated[bool, typer.Option("--timings", help="show counts and speeds after each answer, on standard error")] = False,
    backend: options.BackendName = "numba",
    provider: options.Provider = None,
    min_share: options.MinimumShare = None,
    threads: options.Threads = None,
    context: options.Context = None,
    cache_type: options.CacheType = None,
) -> None:
    """Talk with a model. Answers go to standard output; the conversation is kept until /new or /quit."""
    from edgeinfer.cli.console import loading, note, text_argument
    from edgeinfer.core.requests import SamplingParams

    params = SamplingParams(max_tokens, temperature, top_k, top_p, min_p, seed)
    instructions = None if system is None else text_argument("--system", system)
    refuse_without_template(model)
    with loading(model, backend=backend, context=context, threads=threads, cache_type=cache_type, provider=provider, minimum_share=min_share) as engine:
        for warning in engine.warnings:
            note(f"edgeinfer: warning: {warning}")
        converse(engine, params, instructions, timings)


def refuse_without_template(model: str) -> None:
    """Raise ChatTemplateError before anything is loaded when the file has no chat template: a base model, which only continues text."""
    from edgeinfer.cards import resolve_model
    from edgeinfer.core.errors import ChatTemplateError
    from edgeinfer.core.printable import printable
    from edgeinfer.gguf.reader import GGUFFile

    with GGUFFile.open(resolve_model(model)) as file:
        if not any(key.startswith("tokenizer.chat_template") for key in file.metadata):
            raise ChatTemplateError(
                f"{printable(model)} has no chat template (it is a base model, or was converted without one), and a guessed one would give wrong "
                f"answers; continue text with `edgeinfer run {printable(model)} -p ...`, or choose an instruction-tuned model"
            )


def converse(engine: Engine, params: SamplingParams, system: str | None, timings: bool) -> None:
    """Read lines and answer them until /quit or the end of input."""
    import sys

    from edgeinfer.cli.console import is_terminal, note, text_argument
    from edgeinfer.core.errors import ContextLengthError, InvalidRequestError

    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    if interactive:
        import readline  # noqa: F401  (gives `input` line editing and a history)

        note(HELP)
    beginning = [] if system is None else [{"role": "system", "content": system}]
    messages = list(beginning)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            if interactive:
                print()
            return
        if line in ("/quit", "/exit"):
            return
        if line == "/new":
            messages = list(beginning)
            continue
        if line.startswith("/"):
            note(HELP)
            continue
        if not line:
            continue
        try:
            asked = [*messages, {"role": "user", "content": text_argument("the line", line)}]
            messages = [*asked, {"role": "assistant", "content": answer(engine, asked, params, timings)}]
        except ContextLengthError as error:
            note(f"edgeinfer: error: {error}; /new begins a new conversation")
        except InvalidRequestError as error:
            note(f"edgeinfer: error: {error}")


def answer(engine: Engine, messages: list[dict[str, str]], params: SamplingParams, timings: bool) -> str:
    """Stream one answer to standard output and return it; Ctrl-C keeps what has come so far."""
    import sys

    from edgeinfer.cli.console import note
    from edgeinfer.cli.run import summary

    pieces: list[str] = []
    completion = None
    stream = engine.chat_stream(messages, params)
    try:
        for event in stream:
            pieces.append(event.text)
            sys.stdout.write(event.text)
            sys.stdout.flush()
            completion = event.completion
    except KeyboardInterrupt:
        getattr(stream, "close", lambda: None)()
    print(flush=True)
    if timings and completion is not None:
        note(summary(completion))
    return "".join(pieces)

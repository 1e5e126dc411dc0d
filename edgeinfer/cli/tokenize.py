"""`edgeinfer tokenize`: the token ids of a text. Works on files that hold a vocabulary alone."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeinfer.cli import options


def tokenize(
    model: options.Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="the text; - reads it from standard input")],
    add_special: Annotated[bool, typer.Option("--add-special", help="add what the file says to put at the ends of a text")] = False,
    parse_special: Annotated[bool, typer.Option("--parse-special", help="names of special tokens in the text become those tokens")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Print the token ids of a text. Beside each, what it stands for."""
    from edgeinfer.cards import resolve_model
    from edgeinfer.cli.console import print_json, print_table, text_argument
    from edgeinfer.cli.run import read_standard_input
    from edgeinfer.tokenizer import load_tokenizer

    plain = read_standard_input() if text == "-" else text_argument("TEXT", text)
    tokenizer = load_tokenizer(resolve_model(model))
    ids = tokenizer.encode(plain, add_special=add_special, parse_special=parse_special)
    pieces = [tokenizer.decode([token]) for token in ids]
    if as_json:
        print_json({"token_ids": ids, "pieces": pieces})
    else:
        print_table(("id", "text"), [(str(token), repr(piece)) for token, piece in zip(ids, pieces)])

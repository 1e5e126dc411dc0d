"""Arguments and options that several commands share, so that they have one name, one meaning and one help text."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="path of a GGUF file, or name of a pulled model (`edgeinfer list`)")]
BackendName = Annotated[
    str, typer.Option("--backend", help="numba, llamacpp, onnx, or an installed one (`edgeinfer doctor` lists them); auto: the fastest that was measured here")
]
Provider = Annotated[
    str | None,
    typer.Option(
        "--provider",
        metavar="NAME[:key=value,...]",
        help="what runs the graph of --backend onnx: auto, cpu, openvino, qnn, xnnpack, coreml, dml, acl or another (`edgeinfer doctor` lists them)",
    ),
]
MinimumShare = Annotated[
    float | None, typer.Option("--min-share", help="of the model's graph that the provider must run itself, or it is refused; default: 0.5")
]
Threads = Annotated[int | None, typer.Option("--threads", help="worker threads; default: the cores that this process may use")]
Context = Annotated[int | None, typer.Option("--context", help="tokens that prompt and answer may have together; default: as trained, at most 4096")]
CacheType = Annotated[
    str | None, typer.Option("--cache-type", help="type of keys and values: f16, f32, q8_0 (half the memory), or q16_0; default: the backend's fastest")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="tokens to generate at most")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 always takes the likeliest token")]
TopK = Annotated[int, typer.Option("--top-k", help="choose among the K likeliest tokens; 0: off")]
TopP = Annotated[float, typer.Option("--top-p", help="choose among the likeliest tokens that together have this probability; 1: off")]
MinP = Annotated[float, typer.Option("--min-p", help="choose among tokens of at least this share of the likeliest one's probability; 0: off")]
Seed = Annotated[int | None, typer.Option("--seed", help="the same seed gives the same tokens; default: a fresh one, which is reported")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="end before this text appears; may be given several times")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object, as the last line of standard output")]

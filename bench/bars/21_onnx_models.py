"""Bar 21: the three models on ONNX Runtime: divergence from the reference, memory, load time and speed, beside llama.cpp.

    python bench/bars/21_onnx_models.py [--rounds N] [--models NAME,NAME] [--tokens N] [--only divergence|memory|speed]

divergence: `edgeinfer verify MODEL --backend onnx`; KL(reference || ours) is not above KL(reference || llama.cpp).
memory: private memory at its peak, from loading on, after a prompt of 512 and 96 tokens, above what a process has that only imported numpy and onnxruntime;
on qwen2.5-coder-0.5b at most 1.6x the file plus the cache of those tokens. speed: prefill of 512 and decode of 96 tokens with 2 threads in the same run as
llama.cpp's; on smollm2-135m at least 3x and 1.15x.
"""

from __future__ import annotations

import sys
from pathlib import Path

from beside import arguments, beside
from common import COMMAND_LINE, MODELS, at_least, at_most, finish, last_json, measured, model_file, unable

from edgeinfer.backends.onnx.cache import token_bytes
from edgeinfer.benchmark.peers.runner import Start
from edgeinfer.benchmark.process import Child
from edgeinfer.benchmark.results import engine_on
from edgeinfer.benchmark.rounds import DECODE_PROMPT, prompt_ids
from edgeinfer.core.errors import BackendUnavailableError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program

ONNX = engine_on("onnx")
PARTS = ("divergence", "memory", "speed")
CONTEXT = 1024
TOKENS_CACHED = 512
MEMORY = {"qwen2.5-coder-0.5b": 1.6}
SPEED = {"smollm2-135m": {"prefill 512": 3.0, "decode 96": 1.15}}

IMPORTS = """
import json
import numpy, onnxruntime
lines = open("/proc/self/status").read().splitlines()
print(json.dumps({"private": 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))}))
"""


def divergence(name: str, tokens: int | None) -> None:
    wanted = [] if tokens is None else ["--tokens", str(tokens)]
    found = last_json([*COMMAND_LINE, "verify", name, "--backend", "onnx", "--json", *wanted], allowed=(0, 1))
    if found["kl_reference_oracle"] is None:
        unable("llama-cpp-python is not installed")
    print(f"{name}: {found['tokens']} tokens; top-1 {found['top1_ours']:.4f}", flush=True)
    at_most(f"{name}: KL(reference || ours)", found["kl_reference_ours"], found["kl_reference_oracle"], "nats", 6)


def memory(name: str, path: Path, imports: int) -> None:
    with GGUFFile.open(path) as file:
        cache = TOKENS_CACHED * token_bytes(build_program(file).stores)
    try:
        child = Child(Start(ONNX, str(path), 2, CONTEXT, 1, CONTEXT, {}), sys.executable)
    except BackendUnavailableError as error:
        unable(str(error))
    with child:
        vocabulary = child.description["vocabulary"]
        with child.memory:
            child.ask("prefill", ids=prompt_ids(512, vocabulary))
            child.ask("decode", prompts=[prompt_ids(512, vocabulary, 1)[:DECODE_PROMPT]], count=96)
        private, loaded = child.memory.peak - imports, child.description["load_seconds"]
    size = path.stat().st_size
    ratio = (private - cache) / size
    print(
        f"{name}: loaded in {loaded:.2f} s; {private / 1e6:.0f} MB above the {imports / 1e6:.0f} MB of imports, file {size / 1e6:.0f} MB, "
        f"cache {cache / 1e6:.0f} MB: {ratio:.2f} x the file",
        flush=True,
    )
    if name in MEMORY:
        at_most(f"{name}: memory above imports and cache", ratio, MEMORY[name], "x the file")


def speed(name: str, path: Path, rounds: int) -> None:
    run = beside(path, rounds, prompt_lengths=(512,), batch_sizes=(1,), peers=("llamacpp",), backends=("onnx",))
    for measurement, required in SPEED.get(name, {}).items():
        at_least(f"{name}, {measurement}: onnx over llama.cpp", run.speed(ONNX, measurement) / run.speed("llamacpp", measurement), required)


def main() -> None:
    parser = arguments(__doc__, rounds=5, models=MODELS)
    parser.add_argument("--tokens", type=int, help="tokens of the divergence (default: as verify)")
    parser.add_argument("--only", choices=PARTS, help="one part (default all)")
    options = parser.parse_args()
    parts = (options.only,) if options.only else PARTS
    files = {name: model_file(name) for name in options.models.split(",")}
    imports = measured(IMPORTS)["private"] if "memory" in parts else 0
    for name, path in files.items():
        if "divergence" in parts:
            divergence(name, options.tokens)
        if "memory" in parts:
            memory(name, path, imports)
        if "speed" in parts:
            speed(name, path, options.rounds)
    finish()


main()

"""Bar 21: the three models on ONNX Runtime: divergence from the reference, memory, load time and speed, beside llama.cpp.

    python bench/bars/21_onnx_models.py [--rounds N] [--models NAME,NAME] [--tokens N] [--only divergence|memory|speed]

divergence: `edgeinfer verify MODEL --backend onnx`; KL(reference || ours) is not above KL(reference || llama.cpp). memory: private memory at its peak, from
loading on, after a prompt of 512 and 96 tokens, above what a process has that only imported the libraries; on qwen2.5-coder-0.5b at most 1.6x the file plus
the cache of those tokens, on smollm2-135m below that of onnxruntime-genai, in an environment of its own, on the graph that `edgeinfer export` writes.
speed: prefill of 512 and decode of 96 tokens with 2 threads in the same run as llama.cpp's, and openvino-genai's where it reads the file; on smollm2-135m
at least 3x and 1.15x of llama.cpp.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from beside import arguments, beside
from common import COMMAND_LINE, MODELS, at_least, at_most, finish, last_json, model_file, unable

from edgeinfer.backends.onnx.cache import token_bytes
from edgeinfer.benchmark.options import peer_python
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
DECODED = 96
TOKENS_CACHED = 512 + DECODE_PROMPT + DECODED
"""Both sequences are kept for others to begin with."""

TOKENS_COMPARED = 528
MEMORY = {"qwen2.5-coder-0.5b": 1.6}
BELOW_GENAI = ("smollm2-135m",)
SPEED = {"smollm2-135m": {"prefill 512": 3.0, "decode 96": 1.15}}

IMPORTS = """
import json, sys
import numpy
__import__(sys.argv[1])
lines = open("/proc/self/status").read().splitlines()
print(json.dumps({"private": 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))}))
"""


def divergence(name: str, tokens: int) -> None:
    wanted = ["--tokens", str(tokens), "--greedy-tokens", "1"]
    found = last_json([*COMMAND_LINE, "verify", name, "--backend", "onnx", "--json", *wanted], allowed=(0, 1))
    if found["kl_reference_oracle"] is None:
        unable("llama-cpp-python is not installed")
    print(f"{name}: {found['tokens']} tokens; top-1 {found['top1_ours']:.4f}", flush=True)
    at_most(f"{name}: KL(reference || ours)", found["kl_reference_ours"], found["kl_reference_oracle"], "nats", 6)


def memory(name: str, path: Path) -> None:
    with GGUFFile.open(path) as file:
        cache = TOKENS_CACHED * token_bytes(build_program(file).stores)
    peak, imports, version = peak_memory(ONNX, path, sys.executable, "onnxruntime")
    size, private = path.stat().st_size, peak - imports
    ratio = (private - cache) / size
    print(
        f"{name}: {version}; {private / 1e6:.0f} MB above the {imports / 1e6:.0f} MB of imports, file {size / 1e6:.0f} MB, cache {cache / 1e6:.0f} MB: "
        f"{ratio:.2f} x the file",
        flush=True,
    )
    if name in MEMORY:
        at_most(f"{name}: memory above imports and cache", ratio, MEMORY[name], "x the file")
    if name not in BELOW_GENAI:
        return
    with tempfile.TemporaryDirectory() as folder:
        last_json([*COMMAND_LINE, "export", str(path), str(Path(folder) / "model.onnx"), "--dialect", "cpu", "--json"])
        other, other_imports, version = peak_memory("onnxruntime_genai", Path(folder), str(peer_python("onnxruntime_genai")), "onnxruntime_genai")
    print(f"{name}: {version}; {(other - other_imports) / 1e6:.0f} MB above the {other_imports / 1e6:.0f} MB of its imports", flush=True)
    at_most(f"{name}: memory above imports, ours and that of onnxruntime-genai", private / 1e6, (other - other_imports) / 1e6, "MB", 1)


def peak_memory(engine: str, model: Path, interpreter: str, library: str) -> tuple[int, int, str]:
    """Private bytes of an engine at their peak, of a process that has only imported its libraries, and its version with the time that it took to load."""
    try:
        child = Child(Start(engine, str(model), 2, CONTEXT, 1, CONTEXT, {}), interpreter)
    except BackendUnavailableError as error:
        unable(f"{error}; the peers are made by: make bench-peers")
    with child:
        vocabulary = child.description["vocabulary"] or 30000
        with child.memory:
            child.ask("prefill", ids=prompt_ids(512, vocabulary))
            child.ask("decode", prompts=[prompt_ids(512, vocabulary, 1)[:DECODE_PROMPT]], count=DECODED)
        peak, version = child.memory.peak, f"{child.description['version']}, loaded in {child.description['load_seconds']:.2f} s"
    return peak, last_json([interpreter, "-c", IMPORTS, library])["private"], version


def speed(name: str, path: Path, rounds: int) -> None:
    """Models without a bar are measured in few rounds, to be seen."""
    rounds = rounds if name in SPEED else min(rounds, 2)
    run = beside(path, rounds, prompt_lengths=(512,), batch_sizes=(1,), peers=("llamacpp", "openvino"), backends=("onnx",))
    for measurement, required in SPEED.get(name, {}).items():
        at_least(f"{name}, {measurement}: onnx over llama.cpp", run.speed(ONNX, measurement) / run.speed("llamacpp", measurement), required)


def main() -> None:
    parser = arguments(__doc__, rounds=5, models=MODELS)
    parser.add_argument("--tokens", type=int, default=TOKENS_COMPARED, help=f"tokens of the divergence (default {TOKENS_COMPARED})")
    parser.add_argument("--only", choices=PARTS, help="one part (default all)")
    options = parser.parse_args()
    parts = (options.only,) if options.only else PARTS
    files = {name: model_file(name) for name in options.models.split(",")}
    for name, path in files.items():
        if "divergence" in parts:
            divergence(name, options.tokens)
        if "memory" in parts:
            memory(name, path)
        if "speed" in parts:
            speed(name, path, options.rounds)
    finish()


main()

"""Bar 16: peak memory of a warm process after a prompt of 512 and 96 tokens, f16 cache, beside llama.cpp's.

    python bench/bars/16_memory.py [--models NAME,NAME] [--context N]

Private memory at its peak, from loading on, and the file pages (program code, and of the model what is still read in place) that answering takes: pages of the
source file that were copied into packed weights are not counted twice, for either engine (see "Memory" in bench/README.md). Kernels are compiled before. Bar:
at most 1.1x llama.cpp as it comes (flash attention, repacking, mapped file) on gemma-3-270m and qwen2.5-coder-0.5b. Its other settings are printed too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from beside import arguments
from common import MODELS, at_most, finish, model_file, unable

from edgeinfer.benchmark.options import peer_interpreters
from edgeinfer.benchmark.peers.runner import Start
from edgeinfer.benchmark.process import Child
from edgeinfer.benchmark.results import Memory
from edgeinfer.benchmark.rounds import DECODE_PROMPT, answering_memory, prompt_ids
from edgeinfer.benchmark.settings import describe, first_settings
from edgeinfer.core.errors import BackendUnavailableError

JUDGED = ("gemma-3-270m", "qwen2.5-coder-0.5b")
AT_MOST = 1.1
OURS: dict[str, Any] = {"cache_type": "f16"}


def peak(engine: str, model: Path, context: int, settings: dict[str, Any]) -> Memory:
    """Loads, reads a prompt, decodes, and looks."""
    try:
        child = Child(Start(engine, str(model), 2, context, 1, context, settings), peer_interpreters({}).get(engine, sys.executable))
    except BackendUnavailableError as error:
        unable(f"{error}; the peers are made by: make bench-peers")
    with child:
        vocabulary = child.description["vocabulary"]
        with child.memory:
            child.ask("prefill", ids=prompt_ids(512, vocabulary))
            child.ask("decode", prompts=[prompt_ids(512, vocabulary, 1)[:DECODE_PROMPT]], count=96)
        return answering_memory(child, vocabulary)


def main() -> None:
    parser = arguments(__doc__, rounds=1, models=MODELS)
    parser.add_argument("--context", type=int, default=2048, help="tokens of context for both (default 2048)")
    options = parser.parse_args()
    files = {name: model_file(name) for name in options.models.split(",")}
    first = dict(first_settings("llamacpp"))
    candidates: list[tuple[str, dict[str, Any]]] = [("edgeinfer", OURS)]
    candidates += [("llamacpp", {**first, "mmap": mmap, "repack": repack}) for mmap in (True, False) for repack in (True, False)]
    for name, path in files.items():
        print(f"\n{name}: file {path.stat().st_size / 1e6:.0f} MB, context {options.context}, f16 cache, 2 threads; MB", flush=True)
        print(f"{'private':>9}{'files':>8}{'together':>10}{'VmHWM':>8}")
        peak("edgeinfer", path, options.context, OURS)  # compiles what is not compiled yet
        found = []
        for engine, settings in candidates:
            memory = peak(engine, path, options.context, settings)
            found.append(memory)
            figures = f"{memory.private_peak / 1e6:>9.1f}{memory.file_pages / 1e6:>8.1f}{memory.peak / 1e6:>10.1f}{memory.resident_peak / 1e6:>8.1f}"
            print(f"{figures}  {engine} {describe(settings)}", flush=True)
        ratio = found[0].peak / found[1].peak
        if name in JUDGED:
            at_most(f"{name}, peak memory over llama.cpp's", ratio, AT_MOST)
        else:
            print(f"{name}: {ratio:.2f} x llama.cpp's (not judged)")
    finish()


main()

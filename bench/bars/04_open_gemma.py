"""Bar 4: opening gemma-3-270m (262,144 tokens of vocabulary), reader plus tokenizer: time and memory, beside gguf-py and llama.cpp.

Each in a process of its own, the median of 5 (gguf-py: of 1); imports are not counted, and a first text is encoded, so that nothing lazy hides.
Memory is the growth of the anonymous resident bytes. Bar: ours below 0.5 s.
"""

from __future__ import annotations

import importlib.util
import statistics

from common import bar, finish, measured, model_file

_FRAME = """
import json, sys, time
def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
path = sys.argv[1]
{imports}
before, began, used = anonymous(), time.perf_counter(), time.process_time()
{work}
print(json.dumps({{"seconds": time.perf_counter() - began, "processor": time.process_time() - used, "bytes": anonymous() - before}}))
"""

OURS = _FRAME.format(
    imports="from edgeinfer.tokenizer import load_tokenizer",
    work="tokenizer = load_tokenizer(path)\nassert tokenizer.encode('Hello, world!')",
)
GGUF_PY = _FRAME.format(imports="from gguf import GGUFReader", work="reader = GGUFReader(path)")
LLAMA_CPP = _FRAME.format(
    imports="from pathlib import Path\nfrom edgeinfer.backends.llamacpp import load_library\n"
    "from edgeinfer.backends.llamacpp_vocabulary import LlamaCppVocabulary\nload_library()",
    work="vocabulary = LlamaCppVocabulary(Path(path))\nassert vocabulary.encode('Hello, world!')",
)


def main() -> None:
    path = str(model_file("gemma-3-270m"))
    candidates = [("edgeinfer (reader and tokenizer)", OURS, 5)]
    if importlib.util.find_spec("gguf"):
        candidates.append(("gguf-py (reader alone)", GGUF_PY, 1))
    if importlib.util.find_spec("llama_cpp"):
        candidates.append(("llama.cpp (vocabulary alone)", LLAMA_CPP, 5))
    seconds = {}
    for name, code, rounds in candidates:
        found = [measured(code, path) for _ in range(rounds)]
        seconds[name] = statistics.median(item["seconds"] for item in found)
        memory = statistics.median(item["bytes"] for item in found)
        processor = statistics.median(item["processor"] for item in found)
        print(f"{name:<36}{seconds[name]:8.3f} s ({processor:.3f} s of processor time) {memory / 1e6:8.1f} MB", flush=True)
    ours = seconds["edgeinfer (reader and tokenizer)"]
    bar("opening gemma-3-270m, below 0.5 s", ours < 0.5, f"{ours:.3f} s")
    finish()


main()

"""One engine in a process of its own, told what to run by lines of JSON on standard input, answering on standard output.

    python child.py START            START: a JSON object with the fields of `peers.runner.Start`

A script: an engine may live in an environment without edgeinfer, whose folder `benchmark/peers` is all that is borrowed then.

Requests: {"command": "prefill", "ids": [...]} computes a prompt up to its first token; {"command": "decode", "prompts": [[...], ...], "count": n} computes
prompts and then n more tokens of each, one of each in a step, and times only the latter; {"command": "forget_file"} gives back the pages of the model's
file; {"command": "memory"}. Each is answered by one object, a failure by {"error": text}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from edgeinfer.benchmark.peers.runner import Runner

STARTS = {
    "edgeinfer": ("ours", "EdgeInferRunner"),
    "llamacpp": ("llama", "start_llamacpp"),
    "ik_llamacpp": ("llama", "start_ik_llamacpp"),
    "openvino": ("openvino", "OpenVinoRunner"),
    "onnxruntime_genai": ("genai", "GenaiRunner"),
}
"""Engine -> the module of `peers` and what starts it there. Ours on another backend, `edgeinfer-BACKEND`, starts like ours. onnxruntime-genai reads no GGUF
files, so it is no peer of `bench`: a bar starts it on an exported graph."""


def _mappings(model: str) -> list[tuple[int, int, int]]:
    """(start, end, resident bytes) of each mapping of the model's file in this process, by /proc/self/smaps."""
    found: list[tuple[int, int, int]] = []
    path, inside = os.path.realpath(model), False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split(None, 5)
            if not words[0].endswith(":"):  # the head of a mapping: addresses, permissions, offset, device, inode, path
                inside = len(words) == 6 and words[5].strip() == path
                if inside:
                    start, end = (int(part, 16) for part in words[0].split("-"))
                    found.append((start, end, 0))
            elif inside and words[0] == "Rss:":
                found[-1] = (*found[-1][:2], int(words[1]) * 1024)
    return found


def forget_file(model: str) -> int:
    """Gives back the pages of the model's file that are mapped here; whatever is read of them later is mapped again. Bytes given back."""
    import ctypes

    mappings = _mappings(model)
    madvise, dont_need = ctypes.CDLL(None).madvise, 4
    for start, end, _ in mappings:
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), dont_need)
    return sum(resident for _, _, resident in mappings) - sum(resident for _, _, resident in _mappings(model))


def memory() -> dict[str, int]:
    """Bytes of this process by /proc/self/status: private memory and file pages now, and the largest resident size so far."""
    found = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("VmHWM", "RssAnon", "RssFile", "RssShmem"):
                found[name] = int(value.split()[0]) * 1024
    return {"private_bytes": found["RssAnon"] + found["RssShmem"], "file_bytes": found["RssFile"], "resident_peak_bytes": found["VmHWM"]}


def load_runner(fields: dict[str, Any]) -> Runner:
    """The engine of a start, with the model loaded. Raises RuntimeError for an engine that there is not; libraries raise what they like."""
    engine = "edgeinfer" if fields["engine"].startswith("edgeinfer-") else fields["engine"]
    if engine not in STARTS:
        raise RuntimeError(f"there is no engine named {engine!r}")
    from edgeinfer.benchmark.peers.runner import Start

    module, name = STARTS[engine]
    runner: Runner = getattr(import_module(f"edgeinfer.benchmark.peers.{module}"), name)(Start(**fields))
    return runner


def answer(runner: Runner, model: str, request: dict[str, Any]) -> dict[str, Any]:
    """Runs one request."""
    command = request["command"]
    if command == "prefill":
        return {"seconds": runner.prefill(request["ids"])}
    if command == "decode":
        return {"seconds": runner.decode(request["prompts"], request["count"])}
    if command == "forget_file":
        return {"forgotten_bytes": forget_file(model)}
    if command == "memory":
        return dict(memory())
    raise RuntimeError(f"there is no command named {command!r}")


def serve(fields: dict[str, Any], requests: TextIO, answers: TextIO) -> None:
    """Loads, describes itself on one line, and answers until `requests` ends. Whatever fails is the last answer."""
    try:
        began = time.perf_counter()
        runner = load_runner(fields)
        loaded = time.perf_counter() - began
        print(json.dumps({"engine": fields["engine"], "load_seconds": loaded, **runner.describe()}), file=answers, flush=True)
        for line in requests:
            print(json.dumps(answer(runner, fields["model"], json.loads(line))), file=answers, flush=True)
    except Exception as error:  # the parent shows it to the user
        failure = {"error": told(error)}
        code = getattr(error, "exit_code", None)
        print(json.dumps(failure if code is None else {**failure, "exit_code": code}), file=answers, flush=True)


def told(error: Exception) -> str:
    """An error for people: ours, known here by name alone, say everything themselves; a library that is not there needs a remedy."""
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{sys.executable} has no {error.name}; `make bench-peers` in a checkout makes an environment for each peer, "
            "and --peer-python names another Python"
        )
    ours = any(kind.__name__ == "EdgeInferError" for kind in type(error).__mro__)
    return str(error) if ours else f"{type(error).__name__}: {error}"


def main() -> None:
    """Keeps the real standard output for answers: libraries that print there must not garble them."""
    fields = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if not __package__:
        # Only `peers` is borrowed from here: nothing else beside this package may stand before what the engine's own environment has.
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        import_module("edgeinfer.benchmark.peers")
        sys.path.pop(0)
    serve(fields, sys.stdin, answers)


if __name__ == "__main__":
    main()

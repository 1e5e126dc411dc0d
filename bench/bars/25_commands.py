"""Bar 25: run, chat, batch, bench and verify on the backends onnx and llamacpp, as a person calls them, and what the doctor says of this machine.

    python bench/bars/25_commands.py [BACKEND ...]

On smollm2-135m, each command in a process of its own. What it prints is judged, not only how it ends: the known answer, the same text in every command,
figures above zero, the bars of verify, nothing of a library's log.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import COMMAND_LINE, bar, environment, finish, model_file

MODEL = "smollm2-135m"
BACKENDS = ("onnx", "llamacpp")
PROMPT = "The capital of France is"
ANSWER = " Paris"
QUESTION, WORD = "What is the opposite of hot?", "cold"  # no token of the answer is close to another: every backend gives it
LOGS = ("ggml", "llama_", "[W:onnxruntime", "[E:onnxruntime", "Traceback")
TOKENS, GREEDY = "256", "16"


def edgeinfer(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command, and shows it with what it printed."""
    ended = subprocess.run([*COMMAND_LINE, *arguments], input=given, capture_output=True, text=True, encoding="utf-8", env=environment(), check=False)
    print(f"\n$ edgeinfer {' '.join(arguments)}        (exit code {ended.returncode})", flush=True)
    for line in [*ended.stdout.splitlines(), *ended.stderr.splitlines()]:
        print(f"  {line[:300]}{' ...' if len(line) > 300 else ''}")
    return ended


def silent(ended: subprocess.CompletedProcess[str]) -> bool:
    """Nothing of a library's log, and no traceback."""
    return not any(word in ended.stderr or word in ended.stdout for word in LOGS)


def last_object(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object on the last line of standard output; empty if there is none."""
    try:
        found = json.loads(ended.stdout.strip().splitlines()[-1])
        return found if isinstance(found, dict) else {}
    except (IndexError, ValueError):
        return {}


def run(backend: str) -> str:
    """Judges `run`; returns the text."""
    options = ["-p", PROMPT, "-n", "12", "--backend", backend]
    answer = last_object(as_json := edgeinfer("run", MODEL, *options, "--json"))
    plain = edgeinfer("run", MODEL, *options)
    text = str(answer.get("text", ""))
    bar(f"{backend}: run answers", as_json.returncode == 0 and text.startswith(ANSWER) and len(answer["token_ids"]) == 12 and silent(as_json), repr(text))
    bar(f"{backend}: run prints the same text as it comes", plain.returncode == 0 and plain.stdout == text and silent(plain), repr(plain.stdout))
    return text


def chat(backend: str) -> None:
    ended = edgeinfer("chat", MODEL, "-n", "8", "--temperature", "0", "--backend", backend, given=f"{QUESTION}\n/new\n{QUESTION}\n")
    text = ended.stdout.strip()
    half = text[: len(text) // 2].strip()
    bar(f"{backend}: chat answers", ended.returncode == 0 and WORD in text and silent(ended), repr(text[:80]))
    bar(f"{backend}: a new conversation begins anew", half != "" and text[len(text) // 2 :].strip() == half, "the same question has the same answer")


def batch(backend: str, text: str) -> None:
    requests: list[dict[str, Any]] = [
        {"id": "a", "prompt": PROMPT, "max_tokens": 12},
        {"id": "b", "prompt": "Two plus two is", "max_tokens": 6},
        {"id": "c", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8},
        {"id": "d", "prompt": PROMPT, "temperature": -1},
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
        ended = edgeinfer("batch", str(source), str(target), "--model", MODEL, "--backend", backend)
        lines = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    print("".join(f"  {json.dumps(line)[:200]}\n" for line in lines), end="")
    by_id = {line["id"]: line for line in lines}
    bar(f"{backend}: batch answers in order", [line["id"] for line in lines] == ["a", "b", "c", "d"] and silent(ended), f"{len(lines)} lines")
    bar(f"{backend}: batch gives the text of run", by_id["a"].get("text") == text, repr(by_id["a"].get("text")))
    bar(f"{backend}: batch chats", WORD in by_id["c"].get("text", ""), repr(by_id["c"].get("text", "")[:60]))
    refused = by_id["d"].get("error", {})
    bar(f"{backend}: a bad line is refused alone", ended.returncode == 1 and "temperature" in refused.get("message", ""), str(refused.get("message")))


def bench(backend: str) -> None:
    options = ["--rounds", "1", "--prompt-lengths", "64", "--decode-tokens", "16", "--peers", "none", "--no-roofline", "--json"]
    ended = edgeinfer("bench", MODEL, "--backend", backend, *options)
    (found,) = last_object(ended).get("runs") or [{}]
    engine = found.get("engines", {}).get(f"edgeinfer-{backend}", {})
    speeds = {name: measurement["tokens_per_second"] for name, measurement in engine.get("measurements", {}).items()}
    holds = ended.returncode == 0 and set(speeds) == {"prefill 64", "decode 16"} and all(math.isfinite(speed) and speed > 0 for speed in speeds.values())
    bar(f"{backend}: bench measures", holds and silent(ended), ", ".join(f"{name} {speed:.0f} tokens/s" for name, speed in speeds.items()))


def verify(backend: str) -> None:
    options = ["--tokens", TOKENS, "--greedy-tokens", GREEDY, "--json"]
    alone = edgeinfer("verify", MODEL, "--backend", backend, *options)
    report = last_object(alone)
    missed = [item["name"] for item in report.get("bars", [{"name": "no report"}]) if item.get("holds") is False]
    ends = alone.returncode == (1 if missed else 0)  # whether the bars themselves hold is what bars 19 and 21 judge, on enough text
    figures = f"KL {report.get('kl_reference_ours')}, top-1 {report.get('top1_ours')}, missed on so little text: {', '.join(missed) or 'none'}"
    bar(f"{backend}: verify compares", bool(report) and ends and report["kl_reference_ours"] < 0.05 and report["top1_ours"] > 0.9 and silent(alone), figures)


def verify_together(backends: list[str]) -> None:
    """The form with --backends, with its page."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        names = ",".join(["numba", *backends])
        ended = edgeinfer("verify", MODEL, "--backends", names, "--report", str(page), "--tokens", TOKENS, "--greedy-tokens", GREEDY, "--json")
        written = page.read_text(encoding="utf-8") if page.is_file() else ""
    report = last_object(ended)
    missed = [item["name"] for item in report.get("bars", []) if item.get("holds") is False]
    rows = report.get("backends", {})
    print(f"  bars missed: {', '.join(missed) or 'none'}")
    figures = ", ".join(f"{name} KL {row['agreement']['all']['kl']:.6f}" for name, row in rows.items())
    bar("verify --backends compares all", set(rows) == {"numba", *backends} and ended.returncode == (1 if missed else 0), figures)
    bar("verify --backends writes its page", "<svg" in written and all(name in written for name in rows), f"{len(written)} characters")


def doctor(backends: list[str]) -> None:
    ended = edgeinfer("doctor")
    found = json.loads(edgeinfer("doctor", "--json").stdout)["backends"]
    for backend in ("numba", *backends):
        bar(f"doctor: {backend} works", ended.returncode == 0 and str(found.get(backend)).startswith("works"), str(found.get(backend)))


def main() -> None:
    model_file(MODEL)
    backends = sys.argv[1:] or list(BACKENDS)
    for backend in backends:
        text = run(backend)
        chat(backend)
        batch(backend, text)
        bench(backend)
        verify(backend)
    verify_together(backends)
    doctor(backends)
    finish()


main()

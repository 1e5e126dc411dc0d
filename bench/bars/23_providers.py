"""Bar 23: other providers of ONNX Runtime: OpenVINO runs a whole model, QNN's simulator the operators of a decoder layer.

    python bench/bars/23_providers.py [--rounds N] [--tokens N] [--models NAME,NAME] [--only openvino|qnn]

Each has an environment of its own, made by `make provider-environments` (EDGEINFER_PROVIDERS names another folder with NAME/bin/python).
openvino: the share of the graph's nodes that it takes, which is all; prefill of 512 and decode of 96 tokens with 2 threads, in alternating rounds beside
ONNX Runtime's CPU provider; KL(reference || ours), at most 1.25 times llama.cpp's where that is installed, beside the CPU provider's (OpenVINO quantizes
activations to 8 bits by itself).
qnn: every different operator of a decoder layer of SmolLM2's shapes as a graph of its own with fixed shapes, in two dialects: who runs it, and its error
against NumPy; then the layer as a whole. It computes in half precision: an operator is off by at most 0.3 % of its result, the layer's logits by 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, at_least, at_most, bar, environment, finish, last_json, model_file, unable

from edgeinfer.benchmark.peers.runner import Start
from edgeinfer.benchmark.process import Child
from edgeinfer.benchmark.results import engine_on
from edgeinfer.benchmark.rounds import DECODE_PROMPT, prompt_ids
from edgeinfer.core.errors import EdgeInferError

ONNX = engine_on("onnx")
CONTEXT = 1024
LAYERS = (("cpu", "Q4_1"), ("cpu", "Q8_0"), ("opset21", "Q4_1"), ("opset23", "Q8_0"))
MUST_TAKE = ("MatMulNBits", "MatMul", "RMSNormalization", "Softmax")

PLACEMENT = """
import json, sys
from edgeinfer import Engine
with Engine.load(sys.argv[1], backend="onnx", provider=sys.argv[2], minimum_share=0.0, context=256) as engine:
    print(json.dumps({**engine.capabilities.placement.to_json(), "description": engine.capabilities.description}))
"""


def interpreter(name: str) -> str | None:
    """The Python that has a provider, or None after saying why there is none."""
    folder = Path(os.environ.get("EDGEINFER_PROVIDERS") or ROOT / ".cache" / "providers")
    found = folder / name / "bin" / "python"
    if found.exists():
        return str(found)
    log = folder / f"{name}.log"
    reason = f"{log} ends with: {log.read_text(errors='replace').strip().splitlines()[-1:]}" if log.exists() else "make it with: make provider-environments"
    print(f"{name}: there is no environment {found.parent.parent}; {reason}", flush=True)
    return None


def openvino(name: str, model: Path, python: str, rounds: int, tokens: int) -> None:
    placement = last_json([python, "-c", PLACEMENT, str(model), "openvino"])
    print(f"{name}: {placement['description']}", flush=True)
    at_least(f"{name}: share of the nodes that OpenVINO runs", placement["share"], 1.0, "", 4)
    divergence(name, model, python, tokens)
    speed(name, model, python, rounds)


def divergence(name: str, model: Path, python: str, tokens: int) -> None:
    """Greedy generation is judged by `edgeinfer verify` itself; here only the divergence is."""
    asked = ["-m", "edgeinfer.cli.main", "verify", str(model), "--backend", "onnx", "--json", "--tokens", str(tokens), "--greedy-tokens", "1"]
    ours = last_json([python, *asked, "--provider", "openvino", "--min-share", "1", "--without-oracle"], allowed=(0, 1))
    cpu = last_json([sys.executable, *asked], allowed=(0, 1))
    print(
        f"{name}: {ours['tokens']} tokens: KL(reference || openvino) {ours['kl_reference_ours']:.6f}, top-1 {ours['top1_ours']:.4f}; "
        f"cpu {cpu['kl_reference_ours']:.6f}, {cpu['top1_ours']:.4f}",
        flush=True,
    )
    if cpu["kl_reference_oracle"] is None:
        print("llama-cpp-python is not installed, so the divergence has nothing to be compared with")
    else:
        at_most(f"{name}: KL(reference || openvino)", ours["kl_reference_ours"] / cpu["kl_reference_oracle"], 1.25, "x llama.cpp's")


def speed(name: str, model: Path, python: str, rounds: int) -> None:
    """Tokens a second, medians of alternating rounds after one that warms up."""
    starts = {
        "openvino": (python, {"provider": "openvino", "minimum_share": 1.0}),
        "cpu": (sys.executable, {"provider": "cpu"}),
    }
    measured: dict[tuple[str, str], list[float]] = {}
    children: dict[str, Child] = {}
    try:
        for provider, (own_python, settings) in starts.items():
            children[provider] = Child(Start(ONNX, str(model), 2, CONTEXT, 1, CONTEXT, settings), own_python)
        for number in range(rounds + 1):
            for provider, child in children.items():
                vocabulary = child.description["vocabulary"]
                seconds = {
                    "prefill 512": child.ask("prefill", ids=prompt_ids(512, vocabulary, number)),
                    "decode 96": child.ask("decode", prompts=[prompt_ids(512, vocabulary, number)[:DECODE_PROMPT]], count=96),
                }
                for what, answer in seconds.items():
                    if number:
                        measured.setdefault((provider, what), []).append(int(what.split()[1]) / answer["seconds"])
    except EdgeInferError as error:
        bar(f"{name}: speed", False, str(error))
        return
    finally:
        for child in children.values():
            child.close()
    for what in ("prefill 512", "decode 96"):
        ours, cpu = (statistics.median(measured[provider, what]) for provider in starts)
        print(f"{name}, {what}: openvino {ours:.1f} tokens/s, cpu {cpu:.1f}; {ours / cpu:.2f} x", flush=True)
    for provider, child in children.items():
        print(f"{name}: {provider} loaded in {child.description['load_seconds']:.2f} s", flush=True)


def qnn(python: str, dialect: str, weight_format: str) -> None:
    command = [python, str(Path(__file__).with_name("qnn_layer.py")), dialect, weight_format]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment(), check=False)
    found: list[dict[str, Any]] = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    label = f"QNN, {dialect}, {weight_format}"
    if run.returncode != 0 or not found or found[-1]["operator"] != "whole":
        bar(label, False, f"its process ended with code {run.returncode} after {found[-1] if found else 'nothing'}")
        return
    whole = found.pop()
    print(f"\n{label}:")
    taken = [entry for entry in found if entry.get("qnn")]
    for kind in dict.fromkeys(entry["operator"] for entry in found):
        forms = [entry for entry in found if entry["operator"] == kind]
        errors = [entry["error"] for entry in forms if entry.get("qnn")]
        refusals = [entry["refused"] for entry in forms if "refused" in entry]
        fate = f"off by at most {max(errors):.1e}" if errors else "left to the CPU provider"
        print(f"  {kind:<34}{len(errors):>2} of {len(forms):>2} on QNN, {fate}{'; refused: ' + refusals[0] if refusals else ''}; such as {forms[0]['shapes']}")
    left = sorted({entry["operator"] for entry in found if not entry.get("qnn")})
    print(f"  {len(taken)} of {len(found)} different operators on QNN; not: {', '.join(left) or 'none'}", flush=True)
    missed = [entry["operator"] for entry in found if entry["operator"] in MUST_TAKE and not entry.get("qnn")]
    bar(f"{label}: products, norms and softmax on QNN", not missed, f"left out: {', '.join(missed) or 'none'}")
    worst = max(taken, key=lambda entry: entry["error"])
    at_most(f"{label}: worst operator ({worst['operator']})", 100 * worst["error"], 0.3, "% of its result", 3)
    if "refused" in whole:
        bar(f"{label}: the whole layer", False, whole["refused"])
        return
    others = ", ".join(f"{count} {kind}" for kind, count in whole["left"].items())
    print(f"  the layer as a whole: {whole['qnn']} of {whole['nodes']} nodes on QNN; not: {others or 'none'}")
    at_most(f"{label}: logits of the whole layer", 100 * whole["error"], 1.0, "% of their size", 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m", help="names of cards with commas between")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds of speed (default 5)")
    parser.add_argument("--tokens", type=int, default=2112, help="tokens of the divergence (default 2112)")
    parser.add_argument("--only", choices=("openvino", "qnn"), help="one provider (default both)")
    options = parser.parse_args()
    names = (options.only,) if options.only else ("openvino", "qnn")
    pythons = {name: interpreter(name) for name in names}
    if not any(pythons.values()):
        unable(f"no environment for {' or '.join(names)}")
    if python := pythons.get("openvino"):
        for name in options.models.split(","):
            openvino(name, model_file(name), python, options.rounds, options.tokens)
    if python := pythons.get("qnn"):
        for dialect, weight_format in LAYERS:
            qnn(python, dialect, weight_format)
    for name in (name for name, python in pythons.items() if python is None):
        bar(name, False, "has no environment; what there was to say is above")
    finish()


main()

"""Bar 7: `edgeinfer bench` on the three models beside llama.cpp in the same run, prefill of 512 and decode of 96, as ratios.

    python bench/bars/07_speed.py [OPTION OF BENCH ...]        for example --write bench/results

The issue names no figure for these ratios, so the script only fails when a model cannot be measured beside llama.cpp.
"""

from __future__ import annotations

import sys

from common import COMMAND_LINE, MODELS, bar, finish, last_json, model_file


def main() -> None:
    for name in MODELS:
        model_file(name)
        found = last_json([*COMMAND_LINE, "bench", name, "--json", *sys.argv[1:]])
        for run in found["runs"]:
            for engine, item in run["engines"].items():
                speeds = {measurement: value["tokens_per_second"] for measurement, value in item["measurements"].items()}
                print(f"{name} {engine}: " + ", ".join(f"{measurement} {speed:,.1f}/s" for measurement, speed in speeds.items()))
            for peer, ratios in run["ratios"].items():
                print(f"{name} ours / {peer}: " + ", ".join(f"{measurement} {ratio:.2f} x" for measurement, ratio in ratios.items()))
            compared = set(run["ratios"].get("llamacpp", {})) == set(run["engines"]["edgeinfer"]["measurements"])
            bar(f"{name}: measured beside llama.cpp", compared, f"{found['rounds']} rounds, {run['threads']} threads")
    finish()


main()

"""Bar 19: the divergence of our logits from the reference's is what it was before the kernels became fast, within 3 %, or better.

    python bench/bars/19_quality.py [--models NAME,NAME]

`edgeinfer verify MODEL --without-oracle`: KL(reference || ours), mean nats a token over the same 2,112 tokens of running text as before. The reference
computes in float64 with the weights as the file stores them; it takes minutes.
"""

from __future__ import annotations

import argparse

from common import COMMAND_LINE, MODELS, at_most, finish, last_json, model_file

BEFORE = {"smollm2-135m": 0.003735, "gemma-3-270m": 0.003495, "qwen2.5-coder-0.5b": 0.000854}
WITHIN = 1.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names of cards with commas between")
    names = parser.parse_args().models.split(",")
    for name in names:
        model_file(name)
    for name in names:
        found = last_json([*COMMAND_LINE, "verify", name, "--json", "--without-oracle"], allowed=(0, 1))
        divergence = found["kl_reference_ours"]
        print(
            f"{name}: KL(reference || ours) {divergence:.6f} over {found['tokens']} tokens; before {BEFORE[name]:.6f}; top-1 {found['top1_ours']:.4f}",
            flush=True,
        )
        at_most(f"{name}: KL against the reference", divergence, BEFORE[name] * WITHIN, "nats", 6)
    finish()


main()

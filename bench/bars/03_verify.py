"""Bar 3: `edgeinfer verify` on the three models, the whole tables, and every bar of theirs.

python bench/bars/03_verify.py [MODEL ...] [-- OPTION OF VERIFY ...]
"""

from __future__ import annotations

import sys

from common import COMMAND_LINE, MODELS, bar, finish, last_json, model_file


def main() -> None:
    arguments = sys.argv[1:]
    options = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    names = arguments[: arguments.index("--")] if "--" in arguments else arguments
    found = {}
    for name in names or MODELS:
        model_file(name)
        found[name] = last_json([*COMMAND_LINE, "verify", name, "--json", *options], allowed=(0, 1))
    for name, report in found.items():
        print(f"\n{name}: {report['tokens']} tokens")
        for key in ("kl_reference_ours", "kl_reference_oracle", "kl_oracle_ours", "top1_ours", "top1_oracle"):
            print(f"  {key:<24}{report[key] if report[key] is None else format(report[key], '.6f')}")
        for key in ("perplexity_reference", "perplexity_ours", "perplexity_oracle"):
            print(f"  {key:<24}{report[key] if report[key] is None else format(report[key], '.4f')}")
        for item in report["bars"]:
            bar(f"{name}: {item['name']}", item["holds"] is True, item["detail"])
    finish()


main()

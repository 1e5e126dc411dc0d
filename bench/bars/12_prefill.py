"""Bar 12: prefill of 512 and of 8,192 tokens, beside llama.cpp, ik_llama.cpp and openvino-genai at their fastest settings, and as a share of the int8 peak.

    python bench/bars/12_prefill.py [--rounds N] [--long-rounds N] [--models NAME,NAME]

Bars, 2 threads: 512 tokens against the faster of the two llamas smollm2-135m at least 3x, gemma-3-270m 2.8x, qwen2.5-coder-0.5b 3.2x; smollm2-135m at
least 1.1x openvino-genai; at least 45 % of the int8 peak, measured in the same rounds, counting the multiply-adds of the matrices, the embedding excluded.
At 8,192 tokens our ratio to each peer is no worse than at 512 (both from the same rounds). Ratios are medians over alternating rounds.
"""

from __future__ import annotations

from beside import LLAMAS, arguments, beside, faster_llama, share
from common import at_least, finish, model_file

SHORT, LONG = 512, 8192
AGAINST_THE_FASTER = {"smollm2-135m": 3.0, "gemma-3-270m": 2.8, "qwen2.5-coder-0.5b": 3.2}
AGAINST_OPENVINO = {"smollm2-135m": 1.1}  # it refuses the files of the other two
PERCENT_OF_PEAK = 45.0


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--long-rounds", type=int, default=3, help="rounds with 8,192 tokens, which take minutes (default 3; 0 leaves them out)")
    options = parser.parse_args()
    files = {name: model_file(name) for name in options.models.split(",")}
    short, long = f"prefill {SHORT}", f"prefill {LONG}"
    for name, path in files.items():
        required = (*LLAMAS, "openvino") if name in AGAINST_OPENVINO else LLAMAS
        peers = (*LLAMAS, "openvino")
        run = beside(path, options.rounds, prompt_lengths=(SHORT,), peers=peers, required=required, roofline=True)
        peer = faster_llama(run, short)
        at_least(f"{name}, {SHORT} tokens, against the faster llama ({peer})", run.ratio(peer, short), AGAINST_THE_FASTER[name])
        if name in AGAINST_OPENVINO:
            at_least(f"{name}, {SHORT} tokens, against openvino-genai", run.ratio("openvino", short), AGAINST_OPENVINO[name])
        at_least(f"{name}, {SHORT} tokens, share of the int8 peak", share(run, short), PERCENT_OF_PEAK, "%", 1)
        if options.long_rounds:
            both = beside(path, options.long_rounds, prompt_lengths=(SHORT, LONG), peers=peers, required=required, roofline=True)
            for other in both.peers():
                at_least(f"{name}, {LONG} tokens, against {other}, no worse than at {SHORT}", both.ratio(other, long), both.ratio(other, short))
    finish()


main()

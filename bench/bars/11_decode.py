"""Bar 11: decode of 96 tokens after 16, beside llama.cpp and ik_llama.cpp at their fastest settings, and as a share of the read bandwidth.

    python bench/bars/11_decode.py [--rounds N] [--models NAME,NAME]

Bars, 2 threads: against the faster of the two llamas smollm2-135m at least 1.6x, gemma-3-270m and qwen2.5-coder-0.5b at least 1.05x; against llama.cpp at
least 1.9x on all three; of the read bandwidth, measured in the same rounds, at least 85 % on smollm2-135m and 95 % on the other two. With one thread at
least 1.5x llama.cpp. Ratios are medians over alternating rounds.
"""

from __future__ import annotations

from beside import arguments, beside, faster_llama, share
from common import at_least, finish, model_file

DECODE = "decode 96"
AGAINST_THE_FASTER = {"smollm2-135m": 1.6, "gemma-3-270m": 1.05, "qwen2.5-coder-0.5b": 1.05}
AGAINST_LLAMACPP = 1.9
PERCENT_OF_BANDWIDTH = {"smollm2-135m": 85.0, "gemma-3-270m": 95.0, "qwen2.5-coder-0.5b": 95.0}
ONE_THREAD_AGAINST_LLAMACPP = 1.5


def main() -> None:
    options = arguments(__doc__, rounds=7).parse_args()
    files = {name: model_file(name) for name in options.models.split(",")}
    for name, path in files.items():
        run = beside(path, options.rounds, batch_sizes=(1,), roofline=True)
        peer = faster_llama(run, DECODE)
        at_least(f"{name}, 2 threads, against the faster llama ({peer})", run.ratio(peer, DECODE), AGAINST_THE_FASTER[name])
        at_least(f"{name}, 2 threads, against llamacpp", run.ratio("llamacpp", DECODE), AGAINST_LLAMACPP)
        at_least(f"{name}, 2 threads, share of the read bandwidth", share(run, DECODE), PERCENT_OF_BANDWIDTH[name], "%", 1)
        alone = beside(path, options.rounds, threads=1, batch_sizes=(1,), peers=("llamacpp",), roofline=True)
        at_least(f"{name}, 1 thread, against llamacpp", alone.ratio("llamacpp", DECODE), ONE_THREAD_AGAINST_LLAMACPP)
    finish()


main()

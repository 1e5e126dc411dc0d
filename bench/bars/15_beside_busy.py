"""Bar 15: beside one busy process per core (a spinning loop each), and on one core by affinity or by a control group's quota.

    python bench/bars/15_beside_busy.py [--rounds N] [--models NAME,NAME]

Bars: beside the loops decode of 96 keeps at least 40 % of its undisturbed speed, 2 threads, every model; llama.cpp's share is printed from the same rounds.
With the affinity of one core, and under a quota of one core, with the number of threads left to the engine: no slower than `--threads 1` with both cores free.
"No slower" is judged within the noise of the same rounds: two processes with `--threads 1` are measured beside each other, and the larger of the distance of
their medians' ratio from 1 and half of the middle half of their ratios is allowed. Noise above 10 % is a missed bar: nothing could be judged by it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from beside import arguments
from common import MODELS, at_least, at_most, finish, model_file, unable

from edgeinfer.benchmark.options import peer_interpreters
from edgeinfer.benchmark.peers.runner import Start
from edgeinfer.benchmark.process import Child
from edgeinfer.benchmark.rounds import DECODE_PROMPT, prompt_ids
from edgeinfer.benchmark.settings import describe, first_settings
from edgeinfer.core.errors import BackendUnavailableError

CONTEXT, DECODED, PROMPT = 1024, 96, 512
KEPT_AT_LEAST = 40.0
NOISE_AT_MOST = 10.0
ENGINES = ("edgeinfer", "llamacpp")
_SETTLE_SECONDS = 0.3


def start(engine: str, model: Path, threads: int | None, prepare: Callable[[], None] | None = None) -> Child:
    """An engine's process; ends the script when it cannot be had."""
    record = Start(engine, str(model), threads, CONTEXT, 1, CONTEXT, first_settings(engine))
    try:
        return Child(record, peer_interpreters({}).get(engine, sys.executable), prepare)
    except BackendUnavailableError as error:
        unable(f"{error}; the peers are made by: make bench-peers")


def decode_speed(child: Child, turn: int) -> float:
    """Tokens a second."""
    prompt = prompt_ids(512, child.description["vocabulary"], turn)[:DECODE_PROMPT]
    return DECODED / float(child.ask("decode", prompts=[prompt], count=DECODED)["seconds"])


def prefill_speed(child: Child, turn: int) -> float:
    """Tokens a second; no prompt begins like one that was decoded after."""
    ids = prompt_ids(PROMPT, child.description["vocabulary"], turn + PROMPT // 2)
    return PROMPT / float(child.ask("prefill", ids=ids)["seconds"])


class Loops:
    """A spinning process on each usable core, held still until they are let go."""

    def __init__(self) -> None:
        self._processes = []
        for core in sorted(os.sched_getaffinity(0)):
            code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
            self._processes.append(subprocess.Popen([sys.executable, "-c", code]))
        time.sleep(_SETTLE_SECONDS)
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)
        time.sleep(_SETTLE_SECONDS)

    @contextmanager
    def spinning(self) -> Iterator[None]:
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)

    def __enter__(self) -> Loops:
        return self

    def __exit__(self, *ignored: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def beside_loops(name: str, model: Path, rounds: int) -> None:
    """Quiet and busy in turns, so that both meet the same machine."""
    threads = len(os.sched_getaffinity(0))
    quiet: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    busy: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    with ExitStack() as stack:
        loops = stack.enter_context(Loops())
        children = {engine: stack.enter_context(start(engine, model, threads)) for engine in ENGINES}
        for child in children.values():
            decode_speed(child, 0)
        for turn in range(1, rounds + 1):
            for engine in ENGINES if turn % 2 else ENGINES[::-1]:
                quiet[engine].append(decode_speed(children[engine], 2 * turn))
                with loops.spinning():
                    busy[engine].append(decode_speed(children[engine], 2 * turn + 1))
    kept = {}
    for engine in ENGINES:
        kept[engine] = 100 * statistics.median(slow / fast for slow, fast in zip(busy[engine], quiet[engine], strict=True))
        settings = describe(first_settings(engine)) or "as a user has it"
        print(
            f"{name}, {engine} ({settings}): quiet {statistics.median(quiet[engine]):,.1f} tokens/s, beside {threads} loops "
            f"{statistics.median(busy[engine]):,.1f}: {kept[engine]:.1f} % kept"
        )
    at_least(f"{name}, beside a loop per core, share of the undisturbed decode speed", kept["edgeinfer"], KEPT_AT_LEAST, "%", 1)


@contextmanager
def one_core_quota() -> Iterator[Callable[[], None] | None]:
    """What a new process calls to live under a quota of one core; None where no control group can be made."""
    for parent, files in (
        (Path("/sys/fs/cgroup"), {"cpu.max": "100000 100000"}),
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}),
    ):
        folder = parent / f"edgeinfer-bar-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if all((folder / file).exists() for file in files):
                for file, text in files.items():
                    (folder / file).write_text(text)
                yield lambda folder=folder: (folder / "cgroup.procs").write_text(str(os.getpid())) and None  # type: ignore[misc]
                return
        finally:
            folder.rmdir()
    yield None


def on_one_core(name: str, model: Path, rounds: int) -> None:
    """Decode and prefill with one core's worth of processor time, beside `--threads 1`."""
    core = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        quota = stack.enter_context(one_core_quota())
        if quota is None:
            unable("no control group with a processor quota can be made here (root is needed, and a mounted cpu controller)")
        children = {
            "threads 1": stack.enter_context(start("edgeinfer", model, 1)),
            "threads 1 again": stack.enter_context(start("edgeinfer", model, 1)),
            "affinity of one core": stack.enter_context(start("edgeinfer", model, None, lambda: os.sched_setaffinity(0, {core}))),
            "quota of one core": stack.enter_context(start("edgeinfer", model, None, quota)),
        }
        for label, child in children.items():
            print(f"{name}, {label}: {child.description['details']}")
        for what, measure in (("decode 96", decode_speed), ("prefill 512", prefill_speed)):
            speeds: dict[str, list[float]] = {label: [] for label in children}
            for turn in range(rounds + 1):
                for label in list(children) if turn % 2 else list(children)[::-1]:
                    speed = measure(children[label], turn)
                    if turn > 0:
                        speeds[label].append(speed)
            ratios = {label: [one / other for one, other in zip(speeds[label], speeds["threads 1"], strict=True)] for label in children}
            middle = statistics.quantiles(ratios["threads 1 again"], n=4) if rounds > 1 else [1.0, 1.0, 1.0]
            noise = max(abs(statistics.median(ratios["threads 1 again"]) - 1), (middle[2] - middle[0]) / 2)
            print(f"{name}, {what}: " + ", ".join(f"{label} {statistics.median(values):,.1f}/s" for label, values in speeds.items()))
            at_most(f"{name}, {what}: noise of two processes with one thread, small enough to judge by", 100 * noise, NOISE_AT_MOST, "%", 1)
            for label in ("affinity of one core", "quota of one core"):
                slower = 1 / statistics.median(ratios[label])
                at_most(f"{name}, {what}, {label}: time over that of --threads 1", slower, 1 + noise, "x", 3)


def main() -> None:
    options = arguments(__doc__, rounds=7, models=MODELS).parse_args()
    files = {name: model_file(name) for name in options.models.split(",")}
    for name, path in files.items():
        beside_loops(name, path, options.rounds)
        on_one_core(name, path, options.rounds)
    finish()


main()

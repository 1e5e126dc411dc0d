"""Bar 8: a model too large for a memory limit is refused before anything is loaded, with the numbers and the remedies.

Two limits, each in a process of its own: RLIMIT_AS (`ulimit -v`), and a memory control group where one can be made (as root, or by systemd-run).
Bars: exit code 3, a message with numbers, no kill by the kernel, the peak far below the model; and without a limit the same command answers.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from common import COMMAND_LINE, bar, environment, finish, model_file

MODEL = "qwen2.5-coder-0.5b"
ADDRESS_SPACE = 1_000_000_000
CGROUP_BYTES = 300_000_000
REFUSED = 3
COMMAND = [*COMMAND_LINE, "run", MODEL, "-p", "def add(a, b):", "-n", "4"]


def refusal(name: str, command: list[str], prepare: Callable[[], None] | None = None) -> None:
    """Runs the command under a limit and judges how it ended."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), preexec_fn=prepare)
    assert process.stdout is not None
    printed = process.stdout.read().strip()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    print(printed)
    message = next((line for line in printed.splitlines() if "edgeinfer: error" in line), "")
    figures = f"exit code {code} after {time.perf_counter() - began:.1f} s, peak {usage.ru_maxrss / 1e3:.0f} MB"
    bar(f"{name}: refused with numbers", code == REFUSED and len(re.findall(r"[\d,]+ MB", message)) >= 3, figures)
    bar(f"{name}: refused before loading", usage.ru_maxrss * 1024 < model_file(MODEL).stat().st_size / 2, figures)


def limit_address_space() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def control_group() -> tuple[Path, str] | None:
    """A new memory control group (version 2 or 1) and the name of its limit's file, or None where none can be made."""
    for parent, limit in ((Path("/sys/fs/cgroup"), "memory.max"), (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")):
        folder = parent / f"edgeinfer-bar-{os.getpid()}"
        try:
            folder.mkdir()
            if (folder / limit).exists():
                (folder / limit).write_text(str(CGROUP_BYTES))
                return folder, limit
            folder.rmdir()
        except OSError:
            if folder.is_dir():
                folder.rmdir()
    return None


def main() -> None:
    model_file(MODEL)
    refusal("ulimit -v", COMMAND, limit_address_space)
    group = control_group()
    if group is not None:
        folder, _ = group
        try:
            refusal("control group", COMMAND, lambda: (folder / "cgroup.procs").write_text(str(os.getpid())) and None)
        finally:
            folder.rmdir()
    elif shutil.which("systemd-run"):
        scope = ["systemd-run", "--user", "--scope", "-q", "-p", f"MemoryMax={CGROUP_BYTES}"]
        if subprocess.run([*scope, "true"], capture_output=True, check=False).returncode == 0:
            refusal("systemd-run", [*scope, *COMMAND])
        else:
            print("control group: cannot be made here, left out")
    else:
        print("control group: cannot be made here, left out")
    run = subprocess.run(COMMAND, capture_output=True, text=True, env=environment(), check=False)
    bar("without a limit the same command answers", run.returncode == 0 and bool(run.stdout.strip()), repr(run.stdout[:60]))
    finish()


main()

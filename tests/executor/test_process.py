"""What the executor does to its process, each in one of its own: no Numba when kernels are compiled, a quiet exit, a forked child refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kernels import lowest_level

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import sys
from pathlib import Path
import numpy as np
from kernels_numba.executor.step import StepRecord
from kernels_numba.executor.store import KernelStore
from kernels_numba.executor.tape import Tape
from kernels_numba.executor.workers import WorkerPool, WorkerPoolError
from kernels_numba.simd.levels import level_by_name

store = KernelStore(level_by_name({level!r}), Path({directory!r}))
pool = WorkerPool(3, None, store)
step = StepRecord(1, 1, 0)
zero = np.zeros(1, np.int32)
step.fill(zero, zero, zero, zero, zero, [[]])
tape = Tape.build([], {{}})
for _ in range(50):
    assert pool.run(tape, step) is None
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A folder with the pool's kernels in it."""
    directory = tmp_path_factory.mktemp("compiled")
    directory.chmod(0o700)
    subprocess_run(directory, "pool.close()")
    return directory


def subprocess_run(directory: Path, code: str) -> str:
    prelude = PRELUDE.format(level=lowest_level().name, directory=str(directory))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", prelude + code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_subprocess_without_numba(directory: Path) -> None:
    out = subprocess_run(directory, "print(store.compiled, [name for name in sys.modules if name.split('.')[0] == 'numba'])")
    assert out.strip() == "[] []"


RUN_BESIDE = "import threading; threading.Thread(target=pool.run, args=(tape, step)).start()"


@pytest.mark.parametrize("ending", ["", "pool.close()", "del pool", "sys.exit(0)", RUN_BESIDE])
def test_subprocess_exit_is_quiet(directory: Path, ending: str) -> None:
    subprocess_run(directory, ending)


def test_subprocess_fork_is_refused_in_the_child_and_harmless(directory: Path) -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own about fork and threads
child = os.fork()
if child == 0:
    try:
        pool.run(tape, step)
    except WorkerPoolError as error:
        assert "forked" in str(error)
        pool.close()
        with WorkerPool(2, None, store) as own:
            assert own.run(tape, step) is None
        os._exit(7)
    os._exit(1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7
assert pool.run(tape, step) is None
"""
    subprocess_run(directory, code)

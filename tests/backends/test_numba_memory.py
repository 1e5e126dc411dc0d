"""The numba backend's memory: the plan against what is really used, refusals with numbers, nothing left behind, file pages given back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba.backend import NumbaBackend, plan
from edgeinfer.backends.numba.memory import Region
from edgeinfer.core import host
from edgeinfer.core.errors import MemoryPlanError, ModelFileError
from edgeinfer.gguf.reader import GGUFFile
from tests.backends.support import Driver, Rows
from tests.backends.test_numba import model, tokens
from tests.support.tiny_models import tiny_llama

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 50 if float(os.environ.get("EDGEINFER_FUZZ_SCALE", "1")) > 1 else 10


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 100 MB of weights, of which some are only looked up."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    tiny_llama(path, width=2048, layers=2, heads=16, kv_heads=4, feed_forward=6144, weight_format="Q8_0", context_length=4096)
    assert path.stat().st_size > 90e6
    return path


MEASURE = """
import sys, numpy as np
from pathlib import Path
from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba.backend import NumbaBackend
from edgeinfer.core import host
from tests.backends.support import Driver, Rows
path, cache_type = Path(sys.argv[1]), sys.argv[2]
before = host.resident_memory()
options = BackendOptions(context=2048, threads=2, cache_type=cache_type, cache_tokens=2048, maximum_step_rows=512, maximum_sequences=1)
backend = NumbaBackend.load(path, options)
loaded = host.resident_memory()
driver, ids = Driver(backend), (np.arange(2048) % 200 + 40).tolist()
for start in range(0, 2048, 512):
    driver.run(Rows(1, start, ids[start : start + 512], outputs=64))
used = host.resident_memory()
plan = backend.memory_plan
print(plan.resident, plan.resident - plan.process, used.total - before.total, used.anonymous - before.anonymous, loaded.file - before.file)
"""


def measured(large: Path, cache_type: str) -> list[int]:
    """Of a fresh process: planned in all, planned without the process's own; growth in all, of anonymous memory, and of file-backed memory by loading."""
    command = [sys.executable, "-c", MEASURE, str(large), cache_type]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("cache_type", ["f16", "f32", "q8_0", "q16_0"])
def test_the_plan_is_what_is_used(large: Path, cache_type: str) -> None:
    measured(large, cache_type)  # compiles what is missing: the plan is about a process that does not
    planned, planned_anonymous, growth, anonymous, file = (value / 1e6 for value in measured(large, cache_type))
    print(f"planned {planned:.1f} MB, used {growth:.1f}; anonymous: {planned_anonymous:.1f}, {anonymous:.1f}; file-backed after loading {file:.1f}")
    assert abs(growth - planned) <= 0.15 * planned
    assert abs(anonymous - planned_anonymous) <= 0.15 * planned_anonymous
    assert file < 10  # the packed tensors' 100 MB were given back


def test_planning_touches_no_weight(large: Path) -> None:
    options = BackendOptions(context=4096, cache_tokens=4096, threads=1, maximum_step_rows=256, cache_type="f16")
    with GGUFFile.open(large) as file:
        before = host.resident_memory()
        decided = plan(file, options)
        assert host.resident_memory().total - before.total < 10e6
    memory = decided.memory
    assert memory.cache == 2 * 4096 * 4 * (128 + 128) * 2  # layers, tokens, heads, elements, bytes
    assert 0.98 < (memory.weights + memory.mapped) / large.stat().st_size < 1.05
    assert memory.peak >= memory.resident > memory.weights


def test_a_model_that_does_not_fit_is_refused_before_anything_is_loaded(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = BackendOptions(context=4096, threads=1)
    monkeypatch.setattr(host, "available_memory", lambda: host.AvailableMemory(90_000_000, "a limit of a test", ()))
    before = host.resident_memory()
    with pytest.raises(MemoryPlanError) as caught:
        NumbaBackend.load(large, options)
    assert host.resident_memory().total - before.total < 10e6
    message = str(caught.value)
    for part in ("large.gguf needs", "weights 1", "KV cache of 4096 tokens", "arena", "only 90 MB are available (a limit of a test)", "nothing was loaded",
                 "a smaller quantization"):  # fmt: skip
        assert part in message, message
    assert caught.value.exit_code == 3


def test_a_context_that_does_not_fit_names_one_that_does(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFFile.open(large) as file:
        small = plan(file, BackendOptions(context=256, threads=1, maximum_sequences=1)).memory
    monkeypatch.setattr(host, "available_memory", lambda: host.AvailableMemory(small.peak + 20_000_000, "a limit of a test", ()))
    with pytest.raises(MemoryPlanError, match=r"--context (\d+)\)") as caught:
        NumbaBackend.load(large, BackendOptions(context=100_000, threads=1, maximum_sequences=1))
    fitting = int(str(caught.value).split("--context ")[1].split(")")[0])
    assert 256 < fitting < 100_000
    with GGUFFile.open(large) as file:
        plan(file, BackendOptions(context=fitting, threads=1, maximum_sequences=1)).memory.check("large.gguf", fitting)


LIMITED = """
import resource, sys
from pathlib import Path
from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba.backend import NumbaBackend
from edgeinfer.core import host
from edgeinfer.core.errors import MemoryPlanError
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, resource.RLIM_INFINITY))
try:
    NumbaBackend.load(Path(sys.argv[1]), BackendOptions(context=4096, threads=1))
except MemoryPlanError as error:
    print(error)
"""


def test_a_limit_of_the_process_is_seen(large: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(large)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "large.gguf needs" in done.stdout and "process limit (ulimit -v)" in done.stdout, done.stdout + done.stderr


def test_memory_that_the_system_refuses_is_a_typed_error() -> None:
    with pytest.raises(MemoryPlanError, match=r"the system refused .* MB for the KV cache .*ulimit -v.*smaller context"):
        Region(1 << 60, "KV cache")


def resources() -> tuple[int, int, int, int]:
    """Anonymous bytes, threads, open files and mappings of this process."""
    threads = len(os.listdir("/proc/self/task"))
    return host.resident_memory().anonymous, threads, len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_loading_again_and_again_leaves_nothing_behind_soak(how: str) -> None:
    """Field case 080: flat after the first rounds."""
    path = model("llama", "Q8_0")

    def once() -> None:
        backend = NumbaBackend.load(path, BackendOptions(context=256, threads=2, maximum_step_rows=64, cache_tokens=512))
        Driver(backend).run(Rows(1, 0, tokens(30), outputs=1))
        if how == "closed":
            backend.close()

    for _ in range(5):
        once()
    gc.collect()
    before = resources()
    for _ in range(ROUNDS):
        once()
    gc.collect()
    after = resources()
    assert after[0] - before[0] < 4e6
    assert after[1:3] == before[1:3]
    assert after[3] - before[3] <= 4  # the allocator's own


def test_a_failed_load_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "nan.gguf", tensors={"blk.1.ffn_norm.weight": np.full(64, np.nan, np.float32)})

    def once() -> None:
        with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_norm\.weight"):
            NumbaBackend.load(path, BackendOptions(context=64, threads=2))

    for _ in range(3):
        once()
    gc.collect()
    before = resources()
    for _ in range(ROUNDS):
        once()
    gc.collect()
    after = resources()
    assert after[0] - before[0] < 4e6 and after[1:3] == before[1:3] and after[3] - before[3] <= 4


def test_the_file_may_vanish_after_loading(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "gone.gguf", tied=True, weight_format="Q8_0")
    backend = NumbaBackend.load(path, BackendOptions(context=64, threads=1, cache_tokens=64))
    try:
        first = Driver(backend).run(Rows(1, 0, tokens(20)))[0]
        os.truncate(path, 0)  # every matrix was packed: nothing of the mapping is read any more
        np.testing.assert_array_equal(Driver(backend).run(Rows(1, 0, tokens(20)))[0], first)
    finally:
        backend.close()

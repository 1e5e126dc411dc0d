"""One model, the same logits bit for bit: every level of this machine, threads 1 and 2, chunks of 1, 7, 64 and 512, one sequence and eight, and a calling
thread that flushes subnormals to zero. Real models: bench/bars/18_same_bits.py. arm64: tests/arm64.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba.backend import NumbaBackend
from tests.backends.support import Driver, Logits, Rows
from tests.support.kernels import runnable_levels
from tests.support.tiny_models import tiny_gemma3, tiny_llama

LENGTH = 520  # one chunk of 512, and a rest
COMPARED = range(448, LENGTH)  # positions whose logits every way of cutting asks for
CHUNKS = (1, 7, 64, 512)
FLUSH_TO_ZERO = 0x8040  # with denormals are zero, of the SSE control word
MODELS: dict[str, Any] = {
    "llama": lambda path: tiny_llama(path, width=256, heads=4, kv_heads=2, head_size=64, feed_forward=256, layers=2, weight_format="Q4_K"),
    "gemma3": lambda path: tiny_gemma3(path, weight_format="Q5_0"),
}


@pytest.fixture(scope="module", name="model", params=MODELS)
def model_fixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp("models") / "model.gguf")


@contextmanager
def loaded(model: Path, level: str, threads: int, sequences: int = 1) -> Iterator[Driver]:
    options = BackendOptions(
        context=LENGTH + 8, threads=threads, cache_tokens=sequences * (LENGTH + 64), maximum_step_rows=512, maximum_sequences=8, instruction_set=level
    )
    backend = NumbaBackend.load(model, options)
    try:
        yield Driver(backend)
    finally:
        backend.close()


def tokens(seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(33, 280), k=LENGTH)


def last_rows(driver: Driver, chunk: int, others: Sequence[list[int]] = ()) -> Logits:
    """The logits of COMPARED of the first sequence, cut into chunks, with rows of the others in the same steps."""
    found: dict[int, np.ndarray] = {}
    ids = tokens()
    for start in range(0, LENGTH, chunk):
        end = min(start + chunk, LENGTH)
        wanted = max(0, min(end - start, end - COMPARED.start))
        beside = [Rows(2 + index, start, other[start:end], 0) for index, other in enumerate(others)]
        rows = driver.run(Rows(1, start, ids[start:end], min(wanted, 64)), *beside)[0]
        found |= dict(zip(range(end - len(rows), end), rows, strict=True))
    driver.release(*range(1, 2 + len(others)))
    return np.stack([found[position] for position in COMPARED])


@contextmanager
def flushing_to_zero() -> Iterator[None]:
    """Sets the calling thread's SSE control word by two instructions of machine code, and sees that it is kept."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0fae17c30fae1fc3"))  # ldmxcsr [rdi]; ret  stmxcsr [rdi]; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    load, store = (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address + offset) for offset in (0, 4))
    before, after = ctypes.c_uint32(), ctypes.c_uint32()
    store(ctypes.addressof(before))
    load(ctypes.addressof(ctypes.c_uint32(0x1F80 | FLUSH_TO_ZERO)))
    try:
        assert np.float32(1e-38) * np.float32(0.01) == 0  # it is in force
        yield
        store(ctypes.addressof(after))
    finally:
        load(ctypes.addressof(before))
    assert after.value & FLUSH_TO_ZERO == FLUSH_TO_ZERO


def test_levels_threads_chunks_batches_and_floating_point_modes_change_no_bit(model: Path) -> None:
    levels = [level.name for level in runnable_levels()]
    with loaded(model, levels[0], 1) as driver:
        expected = last_rows(driver, 64)
    assert np.isfinite(expected).all() and len(np.unique(expected)) > 1000
    different = []
    for level in levels:
        for threads in (1, 2):
            with loaded(model, level, threads) as driver:
                found = {f"chunks of {chunk}": last_rows(driver, chunk) for chunk in CHUNKS}
                if platform.machine() == "x86_64":
                    with flushing_to_zero():
                        found["caller flushes to zero"] = last_rows(driver, 64)
            with loaded(model, level, threads, sequences=8) as driver:
                others = [tokens(seed) for seed in range(1, 8)]
                found |= {f"batch 8, chunks of {chunk}": last_rows(driver, chunk, others) for chunk in CHUNKS[:3]}
            different += [f"{level}, {threads} threads, {what}" for what, logits in found.items() if logits.tobytes() != expected.tobytes()]
    assert different == []

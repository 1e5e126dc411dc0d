"""Bar 18: the same bits of logits whatever the threads, the batch, the chunks, the instruction set and the caller's floating-point mode; arm64 as well.

    python bench/bars/18_same_bits.py [--models NAME,NAME] [--without-arm64]

Per model, one digest of logits must come from every run: each instruction-set level of this machine (AVX-512, AVX2, portable), threads 1 and 2, one sequence
in chunks of 1, 7, 64 and 512 (of 520 tokens), the same beside seven other sequences in the same steps (batch 8, chunks of 1, 7 and 64), and a calling thread
that flushes subnormals to zero. Then the tests: kernels against committed hashes, the run loop's floating-point mode, and tools/arm64: small models in
every format on emulated arm64 processors (plain NEON, dotprod, i8mm) must give the bits that x86-64 gives.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import mmap
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from common import ROOT, bar, environment, finish, model_file, unable

from edgeinfer import Engine
from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.load import load_backend
from edgeinfer.core.host import instruction_sets
from edgeinfer.core.steps import OutputKind, SequenceTable, Step
from edgeinfer.verify.corpus import running_text

LENGTH, SHORT = 520, 136  # tokens of the long run, and of the one beside seven others
ROWS = 32  # logits kept: before SHORT, and before LENGTH
CHUNKS, CHUNKS_TOGETHER, BATCH = (1, 7, 64, 512), (1, 7, 64), 8
TESTS = ("tests/kernels/test_golden_bits.py", "tests/executor/test_run.py", "tests/simd", "tests/backends/test_numba.py", "tests/backends/test_same_bits.py")


def step(backend: Backend, sequences: list[list[int]], start: int, end: int, context: int) -> np.ndarray:
    """One forward pass over positions start to end of every sequence; logits of the first one's rows that are kept."""
    rows = end - start
    count = len(sequences)
    positions = np.tile(np.arange(start, end, dtype=np.int32), count)
    of = np.repeat(np.arange(count, dtype=np.int32), rows)
    kept = ((positions >= SHORT - ROWS) & (positions < SHORT)) | (positions >= LENGTH - ROWS)
    outputs = np.where(kept & (of == 0), OutputKind.LOGITS, OutputKind.NONE).astype(np.uint8)
    tables = []
    for index in range(count):
        pages = [-(-context // group.page_size) for group in backend.capabilities.cache_groups]
        tables.append(SequenceTable(index + 1, start, tuple(np.arange(size, dtype=np.int32) + index * size for size in pages)))
    tokens = np.concatenate([np.array(ids[start:end], dtype=np.int32) for ids in sequences])
    record = Step(tokens, of, positions, positions.copy(), np.zeros(rows * count, dtype=np.int32), outputs, tuple(tables))
    return np.array(backend.step(record).logits)


@contextmanager
def flushing_to_zero() -> Iterator[None]:
    """The calling thread's SSE control word says: flush to zero, denormals are zero. Where that word exists."""
    if platform.machine() not in ("x86_64", "AMD64"):
        unable("the preset of a floating-point mode is written for x86-64")
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0fae17c30fae1fc3"))  # ldmxcsr [rdi]; ret  stmxcsr [rdi]; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    load, store = (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address + offset) for offset in (0, 4))
    before, odd, after = ctypes.c_uint32(), ctypes.c_uint32(0x1F80 | 0x8040), ctypes.c_uint32()
    store(ctypes.addressof(before))
    load(ctypes.addressof(odd))
    try:
        yield
        store(ctypes.addressof(after))
        assert after.value & 0x8040 == 0x8040, "the caller's mode was not kept"
    finally:
        load(ctypes.addressof(before))


def logits(model: Path, sequences: list[list[int]], length: int, threads: int, chunk: int, level: str, flush: bool = False) -> np.ndarray:
    """The kept rows, with a backend of its own."""
    context = LENGTH + 56  # whole pages
    count = len(sequences)
    rows = max(count * min(chunk, length), 64)
    options = BackendOptions(
        context=context, cache_tokens=count * context, threads=threads, maximum_step_rows=rows, maximum_sequences=count, instruction_set=level
    )
    backend = load_backend("numba", model, options)
    try:
        with flushing_to_zero() if flush else nullcontext():
            parts = [step(backend, sequences, start, min(start + chunk, length), context) for start in range(0, length, chunk)]
    finally:
        backend.close()
    return np.concatenate([part for part in parts if len(part)])


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def judge(name: str, levels: list[str]) -> None:
    """All runs of one model."""
    model = model_file(name)
    with Engine.load(model, context=LENGTH + 56) as engine:
        ids = engine.tokenize(running_text("prose"), add_special=True)[:LENGTH]
        vocabulary = engine.vocabulary
    random = np.random.default_rng(5)
    others = [[int(token) for token in random.integers(0, vocabulary, LENGTH)] for _ in range(BATCH - 1)]
    plan = [(level, threads, chunk, 1, False) for level in levels for threads in (1, 2) for chunk in CHUNKS]
    plan += [(level, threads, chunk, BATCH, False) for level in levels for threads in (1, 2) for chunk in CHUNKS_TOGETHER]
    plan += [(level, 2, chunk, 1, True) for level in levels for chunk in (1, 64)]
    early, late = {}, {}
    for level, threads, chunk, batch, flush in plan:
        began = time.perf_counter()
        length = LENGTH if batch == 1 else SHORT
        values = logits(model, [ids, *others[: batch - 1]], length, threads, chunk, level, flush)
        what = f"{level}, {threads} threads, chunks of {chunk}, batch {batch}" + (", caller flushes to zero" if flush else "")
        early[what] = digest(values[:ROWS])
        if batch == 1:
            late[what] = digest(values[ROWS:])
        print(f"  {name}: {what:<74}{early[what]}  {late.get(what, ''):<18}{time.perf_counter() - began:6.1f} s", flush=True)
    bar(f"{name}: logits of positions {SHORT - ROWS} to {SHORT}", len(set(early.values())) == 1, f"{len(early)} runs, {len(set(early.values()))} digest(s)")
    bar(f"{name}: logits of positions {LENGTH - ROWS} to {LENGTH}", len(set(late.values())) == 1, f"{len(late)} runs, {len(set(late.values()))} digest(s)")


def arm64() -> None:
    """The tests on emulated processors; the script ends with 0 and the words "left out" where there is no emulator."""
    run = subprocess.run([str(ROOT / "tools" / "arm64" / "run_tests.sh")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    print("\n".join(lines[-12:]))
    held = run.returncode == 0 and not any("left out" in line for line in lines)
    summaries = [line.strip("= ") for line in lines if " passed" in line]
    bar("arm64 under emulation: the bits of x86-64", held, "; ".join(summaries) or (lines[-1] if lines else f"exit code {run.returncode}"))


def main() -> None:
    from kernels_numba.simd.levels import usable_levels

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m", help="names of cards with commas between (default smollm2-135m)")
    parser.add_argument("--without-arm64", action="store_true", help="leave the emulated processors out; the bar is then counted as missed")
    options = parser.parse_args()
    names = options.models.split(",")
    for name in names:
        model_file(name)
    levels = [level.name for level in usable_levels(platform.machine(), instruction_sets())]
    print(f"levels: {', '.join(levels)}")
    for name in names:
        judge(name, levels)
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment(), check=False)
    last = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else "no output"
    bar("tests of the same bits", run.returncode == 0, last)
    if options.without_arm64:
        bar("arm64 under emulation: the bits of x86-64", False, "left out on the command line")
    else:
        arm64()
    finish()


main()

"""Bar 6: the same prompt gives the same bits: with 1 and 2 threads, in one chunk and in chunks of 7, on the portable kernels and on each better level.

    python bench/bars/06_same_bits.py [MODEL ...]

The backend is driven step by step, so that "one chunk" is one step: 200 tokens of running text, logits of the last 64 rows. Their SHA-256 must be one.
Then `Engine.logits` over the same tokens and greedy generation must agree with it too.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import numpy as np
from common import MODELS, bar, finish, model_file

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.base import Backend, BackendOptions
from edgeinfer.backends.load import load_backend
from edgeinfer.core.host import instruction_sets
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, OutputKind, SequenceTable, Step
from edgeinfer.verify.corpus import running_text

TOKENS = 200
CONTEXT = 512


def step(backend: Backend, ids: list[int], start: int, end: int) -> np.ndarray:
    """One forward pass over positions start to end of one sequence; the logits of those among the last 64 of all."""
    rows = end - start
    positions = np.arange(start, end, dtype=np.int32)
    groups = backend.capabilities.cache_groups
    pages = tuple(np.arange(-(-len(ids) // group.page_size), dtype=np.int32) for group in groups)
    zeros = np.zeros(rows, dtype=np.int32)
    outputs = np.where(positions >= len(ids) - MAXIMUM_OUTPUT_ROWS, OutputKind.LOGITS, OutputKind.NONE).astype(np.uint8)
    record = Step(np.array(ids[start:end], dtype=np.int32), zeros, positions, positions.copy(), zeros, outputs, (SequenceTable(1, start, pages),))
    return np.array(backend.step(record).logits)


def logits(model: Path, ids: list[int], threads: int, chunk: int, level: str) -> np.ndarray:
    """Logits of the last 64 rows with a backend of its own."""
    options = BackendOptions(context=CONTEXT, threads=threads, maximum_step_rows=max(chunk, 64), maximum_sequences=1, instruction_set=level)
    backend = load_backend("numba", model, options)
    try:
        parts = [step(backend, ids, start, min(start + chunk, len(ids))) for start in range(0, len(ids), chunk)]
    finally:
        backend.close()
    return np.concatenate([part for part in parts if len(part)])


def usable() -> list[str]:
    """Names of the levels that this machine can run, best first."""
    import platform

    from kernels_numba.simd.levels import usable_levels

    return [level.name for level in usable_levels(platform.machine(), instruction_sets())]


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def main() -> None:
    levels = usable()
    print(f"levels: {', '.join(levels)}")
    for name in sys.argv[1:] or MODELS:
        model = model_file(name)
        with Engine.load(model, context=CONTEXT) as engine:
            ids = engine.tokenize(running_text("prose"), add_special=True)[:TOKENS]
            whole = engine.logits(ids)[-MAXIMUM_OUTPUT_ROWS:]
            generated = engine.generate(ids[:40], SamplingParams(max_tokens=24, ignore_eos=True)).token_ids
            replayed = engine.logits([*ids[:40], *generated])[39:-1].argmax(axis=1)
        found = {"Engine.logits": digest(whole)}
        for level in levels:
            for threads in (1, 2):
                for chunk in (TOKENS, 7):
                    began = time.perf_counter()
                    values = logits(model, ids, threads, chunk, level)
                    what = f"{level}, {threads} thread{'s' if threads > 1 else ''}, chunks of {chunk}"
                    found[what] = digest(values)
                    differing = np.count_nonzero(values.view(np.int32) != whole.view(np.int32)) if values.shape == whole.shape else -1
                    print(f"  {name}: {what:<44}{found[what]}  {differing} of {whole.size} differ  {time.perf_counter() - began:6.1f} s", flush=True)
        bar(f"{name}: logits equal bit for bit", len(set(found.values())) == 1, f"{len(found)} runs, {len(set(found.values()))} digest(s)")
        same = list(replayed) == list(generated)
        bar(f"{name}: generated tokens are the arg-maxima of teacher forcing", same, f"{np.count_nonzero(replayed == generated)} of {len(generated)}")
    finish()


main()

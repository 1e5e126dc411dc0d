"""`python -m tests.arm64.prepare FOLDER`, on x86-64: writes models and the digests of their logits here, logits of the backend onnx where it is
installed, and compiles kernels for the levels of arm64 into the folder that the kernel tests use."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from edgeinfer.backends.numba.backend import choose_level, plan
from edgeinfer.backends.numba.weights import pack_kernels
from edgeinfer.gguf.reader import GGUFFile
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.workers import RUN_KERNELS
from kernels_numba.simd.levels import LEVELS
from tests.arm64.onnx_logits import CASES, has_onnx, logits_file, onnx_logits
from tests.arm64.whole_models import logits_digest, options, write_models
from tests.kernels import test_golden_bits as golden
from tests.kernels.support import KERNEL_FOLDER, kernel_store
from tests.kernels.weights import FORMATS


def kernels_of(model: Path) -> list[KernelName]:
    """What the backend loads for a model."""
    file = GGUFFile.open(model)
    try:
        decided = plan(file, options(None))
        return [*RUN_KERNELS, *pack_kernels(decided.weights), *(draft.kernel for draft in decided.emitter.drafts)]
    finally:
        file.close()


def kernels_of_golden_bits() -> list[KernelName]:
    """What the tests of committed hashes run, found by running them here."""
    level = choose_level().name
    for call in golden.CALLS.values():
        call(golden.Fixture(level))
    for name in FORMATS:
        golden.linear(level, name)
    return kernel_store(level).loaded


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    models = write_models(folder)
    needed = {kernel for model in models for kernel in kernels_of(model)} | set(kernels_of_golden_bits())
    for level in LEVELS:
        if level.architecture == "aarch64":
            compiled = KernelStore(level, KERNEL_FOLDER).compile_ahead(sorted(needed))
            print(f"{level.name}: {len(needed)} kernels, {len(compiled.compiled)} of them compiled now", flush=True)
    os.environ["EDGEINFER_CACHE"] = str(KERNEL_FOLDER)
    digests = {model.name: logits_digest(model, None) for model in models}
    (folder / "digests.json").write_text(json.dumps(digests, indent=1))
    for case in CASES:
        logits_file(folder, case).unlink(missing_ok=True)
        if has_onnx():
            np.save(logits_file(folder, case), onnx_logits(folder, case))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

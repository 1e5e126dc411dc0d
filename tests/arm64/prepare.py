"""`python -m tests.arm64.prepare FOLDER`, on x86-64: writes models, the digests of their logits here, and their kernels compiled for the levels of arm64."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgeinfer.backends.numba.backend import plan
from edgeinfer.backends.numba.weights import pack_kernels
from edgeinfer.gguf.reader import GGUFFile
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.workers import RUN_KERNELS
from kernels_numba.simd.levels import LEVELS
from tests.arm64.whole_models import logits_digest, options, write_models


def kernels_of(model: Path) -> list[KernelName]:
    """What the backend loads for a model."""
    file = GGUFFile.open(model)
    try:
        decided = plan(file, options(None))
        return [*RUN_KERNELS, *pack_kernels(decided.weights), *(draft.kernel for draft in decided.emitter.drafts)]
    finally:
        file.close()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kernels = folder / "kernels"
    kernels.mkdir(mode=0o700, exist_ok=True)
    models = write_models(folder)
    needed = [kernel for model in models for kernel in kernels_of(model)]
    for level in LEVELS:
        if level.architecture == "aarch64":
            compiled = KernelStore(level, kernels).compile_ahead(needed)
            print(f"{level.name}: {len(set(needed))} kernels, {len(compiled)} of them compiled now")
    digests = {model.name: logits_digest(model, None) for model in models}
    (folder / "digests.json").write_text(json.dumps(digests, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The memory plan: what loading and running a model will take, by part, against what is available. Backends make it before they load; faces show it."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.core.errors import MemoryPlanError


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by part. `peak_while_packing` is what loading needs beyond the weights for a moment. `mapped` is file-backed and can be reclaimed."""

    weights: int
    cache: int
    arena: int
    process: int  # interpreter, libraries, compiled kernels: measured, not guessed per model
    peak_while_packing: int
    mapped: int
    available: int
    available_reason: str  # what set the limit: MemAvailable, a cgroup, RLIMIT_AS

    @property
    def resident(self) -> int:
        """Bytes in RAM while running: anonymous memory, and the libraries' pages that work needs."""
        return self.weights + self.cache + self.arena + self.process

    @property
    def peak(self) -> int:
        """The larger of loading (no cache touched yet) and running."""
        return max(self.resident, self.weights + self.process + self.peak_while_packing)

    def rows(self) -> list[tuple[str, int]]:
        """(label, bytes) for a table."""
        return [
            ("weights", self.weights),
            ("KV cache", self.cache),
            ("arena", self.arena),
            ("process", self.process),
            ("peak while packing", self.peak_while_packing),
            ("file-mapped (reclaimable)", self.mapped),
            ("needed at most", self.peak),
            (f"available ({self.available_reason})", self.available),
        ]

    def check(self, model: str, context: int) -> None:
        """Raises MemoryPlanError with the numbers and the remedies if the model cannot fit."""
        if self.peak <= self.available:
            return
        remedies = []
        beside = self.available - (self.peak - self.cache)
        fitting = int(context * beside / self.cache) // 64 * 64 if self.cache and beside > 0 else 0  # whole pages, whatever their size
        if fitting:
            remedies.append(f"a smaller context (about {fitting} tokens would fit: --context {fitting})")
        elif self.peak - self.cache - self.arena <= self.available:  # the arena of some backends grows with the context too
            remedies.append("a much smaller context (--context)")
        remedies += ["a smaller quantization of the model", "a smaller model", "more memory or a higher limit"]
        raise MemoryPlanError(
            f"{model} needs {megabytes(self.peak)} (weights {megabytes(self.weights)}, KV cache of {context} tokens {megabytes(self.cache)}, arena "
            f"{megabytes(self.arena)}, process {megabytes(self.process)}, while packing {megabytes(self.peak_while_packing)}), but only "
            f"{megabytes(self.available)} are available ({self.available_reason}); nothing was loaded. What helps: {'; '.join(remedies)}"
        )


def megabytes(count: int) -> str:
    """Bytes as a person reads them: decimal megabytes."""
    return f"{count / 1e6:,.0f} MB"

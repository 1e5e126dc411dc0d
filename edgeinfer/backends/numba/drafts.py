"""Drafts: tape entries before memory is laid out, what the emitter knows about how their kernels share work, and hints at the weights to come. For `emit`;
`backend` gives the drafts their addresses.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kernels_numba.executor.store import KernelName
from kernels_numba.layouts import PLANES, packed_layout, planes_layout


@dataclass(frozen=True)
class Address:
    """An operand that is an address known only when memory is laid out: `kind` says in which table, `key` where in it, `slot` an arena slot."""

    kind: str  # "slot" | "packed" | "rows" | "mapped" | "store" | "constant"
    key: object


Operand = int | Address
Split = tuple[str, int]
"""How workers divide an entry: ("columns", width) in groups of 32 of a row, all rows; ("heads", heads) in heads of `heads` a row, all rows of the first
before those of the second."""

READ_OWN = frozenset({"ops.activation", "ops.rope", "ops.pages"})
"""Modules of kernels that read rows only where they write: each worker reads what it wrote itself, if the entry before was divided in the same way."""

ROW_WISE = frozenset({
    "rms_norm", "rms_norm_quantize", "linear", "linear_float", "rope", "activation", "activation_quantize", "quantize", "add", "scale", "softcap",
    "store_keys_values",
})  # fmt: skip
"""Kernels that write a row from the same row alone, and share rows in the same way where the step says so."""


@dataclass(frozen=True)
class Draft:
    """A tape entry whose addresses are still symbolic."""

    kernel: KernelName
    operands: tuple[Operand, ...]
    label: str
    barrier_after: bool = True
    row_wise: bool = False  # see FLAG_ROW_WISE

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the packed matrices that it multiplies by. A look-up reads a row, a hint nothing."""
        if self.kernel.module in ("ops.embedding", "ops.prefetch"):
            return ()
        return tuple(str(operand.key) for operand in self.operands if isinstance(operand, Address) and operand.kind == "packed")

    @property
    def cache_stores(self) -> tuple[int, ...]:
        """Numbers of the stores whose keys and values it reads."""
        if self.kernel.function == "store_keys_values":
            return ()
        return tuple(int(str(operand.key)) for operand in self.operands if isinstance(operand, Address) and operand.kind == "store")


def with_hints(written: list[Draft]) -> list[Draft]:
    """The drafts with hints: before workers wait for each other on the way to a matrix, they ask for its first lines, so that memory answers meanwhile."""
    drafts: list[Draft] = []
    last_matrix = -1  # where the last linear operation is in `drafts`; -1: none yet
    for draft in written:
        if draft.kernel.module == "ops.linear":
            if last_matrix < 0 or any(other.barrier_after for other in drafts[last_matrix:]):
                drafts.insert(last_matrix + 1, _hint(draft))
                if last_matrix >= 0:  # the hint takes over the barrier
                    before = drafts[last_matrix]
                    drafts[last_matrix] = dataclasses.replace(before, barrier_after=False)
                    drafts[last_matrix + 1] = dataclasses.replace(drafts[last_matrix + 1], barrier_after=before.barrier_after)
            last_matrix = len(drafts)
        drafts.append(draft)
    return drafts


def _hint(linear: Draft) -> Draft:
    """The hint at the matrix of a linear operation, without a barrier."""
    weights, row_tiles, columns = linear.operands[:3]
    assert isinstance(columns, int)
    tag = linear.kernel.tags[0]
    row_tile_bytes = (planes_layout() if tag == PLANES else packed_layout(tag)).tile_bytes(columns)
    return Draft(KernelName("ops.prefetch", "prefetch_weights"), (weights, row_tiles, row_tile_bytes), f"hint at {linear.label}", False, linear.row_wise)

"""How passes of a burst end where its tokens are drawn, or found from bounds: drafts that take the place of some at the end of the tape. For `emit`."""

from __future__ import annotations

from edgeinfer.backends.numba.arena import Arena, Slot, blocks_bytes, row_stride, rows_bytes
from edgeinfer.backends.numba.drafts import Address, Draft, Operand
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS
from edgeinfer.model.program import Operation
from kernels_numba.executor.store import KernelName
from kernels_numba.layouts import PLANES, TILE_ROWS, UPPER_PLANE
from kernels_numba.ops import candidates, draw_weights, elementwise, sampling, screen

WEIGH_LOGITS, SAMPLE_TOKENS = KernelName("ops.draw_weights", "weigh_logits"), KernelName("ops.sampling", "sample_tokens")
DRAWING_KERNELS = (WEIGH_LOGITS, SAMPLE_TOKENS)
"""These and those for bounds compile for seconds, so beside the first burst that could use them: see `late`."""

BOUND_LOGITS, REFINE_BOUNDS = KernelName("ops.screen", "bound_logits", (UPPER_PLANE,)), KernelName("ops.screen", "refine_bounds", (PLANES,))
CHOOSE_BEST = KernelName("ops.screen", "choose_best")
SCREENING_KERNELS = (BOUND_LOGITS, REFINE_BOUNDS, CHOOSE_BEST)


class DrawingEnd:
    """What stands before the last of the drafts in bursts that draw tokens. Takes its memory when it is made."""

    def __init__(self, arena: Arena, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._sums_stride = draw_weights.SUM_BYTES * -(-vocabulary // elementwise.MAXIMA_COLUMNS)
        self._sums = arena.take(MAXIMUM_OUTPUT_ROWS * self._sums_stride)
        self._scratch = arena.take(candidates.SAMPLING_SCRATCH_BYTES)

    def drafts(self, logits: Slot, maxima: Slot) -> list[Draft]:
        read: dict[str, Operand] = {
            "input": Address("slot", logits), "input_stride": row_stride(self._vocabulary), "width": self._vocabulary,
            "block_columns": elementwise.MAXIMA_COLUMNS, "block_maxima": Address("slot", maxima),
            "block_maxima_stride": row_stride(elementwise.maxima_width(self._vocabulary)),
        }  # fmt: skip
        sums = Address("slot", self._sums)
        weigh: dict[str, Operand] = {**read, "sums": sums, "sums_stride": self._sums_stride}
        sample: dict[str, Operand] = {**read, "block_sums": sums, "block_sums_stride": self._sums_stride, "scratch": Address("slot", self._scratch)}
        return [
            Draft(WEIGH_LOGITS, tuple(weigh[name] for name in draw_weights.WEIGH_LOGITS_OPERANDS), "weigh logits"),
            Draft(SAMPLE_TOKENS, tuple(sample[name] for name in sampling.SAMPLE_TOKENS_OPERANDS), "sample tokens", barrier_after=False),
        ]


class ScreeningEnd:
    """What takes the place of an output matrix in two planes, and of all behind it, in bursts that find their tokens from bounds. Takes its memory when it is
    made: `best` is what the workers found, of which the layout is in `ops.screen`."""

    def __init__(self, arena: Arena, output: Operation, workers: int) -> None:
        self.weight = output.weights[0]
        self.row_tiles = -(-self.weight.shape[0] // TILE_ROWS)
        self._blocks_bytes = blocks_bytes(screen.SCREENED_ROWS, output.inputs[0].width)
        self._blocks = arena.take(workers * self._blocks_bytes)
        self._maxima = arena.take(rows_bytes(screen.SCREENED_ROWS, screen.chunks_of(self.row_tiles)))
        self.best = arena.take(workers * screen.BEST_BYTES)

    def drafts(self, input_blocks: Slot, logits: Slot) -> list[Draft]:
        """Bounds lie where the logits would."""
        vocabulary, columns = self.weight.shape
        blocks, bounds, best = Address("slot", input_blocks), Address("slot", logits), Address("slot", self.best)
        known: dict[str, Operand] = {
            "weights": Address("packed", self.weight.name), "row_tiles": self.row_tiles, "columns": columns, "width": vocabulary,
            "bound_maxima": Address("slot", self._maxima), "bound_maxima_stride": row_stride(screen.chunks_of(self.row_tiles)),
        }  # fmt: skip
        bound: dict[str, Operand] = {
            **known, "input": blocks, "input_stride": 0, "bias": 0, "residual": 0, "residual_stride": 0, "per_output": 1, "output": bounds,
            "output_stride": row_stride(vocabulary), "bound_blocks": Address("slot", self._blocks), "bound_blocks_bytes": self._blocks_bytes,
        }  # fmt: skip
        refine: dict[str, Operand] = {**known, "input": bounds, "input_stride": row_stride(vocabulary), "input_blocks": blocks, "best": best}
        return [
            Draft(BOUND_LOGITS, tuple(bound[name] for name in screen.BOUND_LOGITS_OPERANDS), f"bounds {self.weight.name}"),
            Draft(REFINE_BOUNDS, tuple(refine[name] for name in screen.REFINE_BOUNDS_OPERANDS), "refine bounds"),
            Draft(CHOOSE_BEST, (vocabulary, best), "choose the best"),
        ]

"""What the emitter writes, without running it: slots that live at once do not overlap, and workers wait wherever they must.

The hazards are found anew from the addresses of operands and the sizes that the kernels' documentation gives, not from the emitter's own lists.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeinfer.backends.numba.arena import Arena, Slot, blocks_bytes
from edgeinfer.backends.numba.drafts import Address, Draft
from edgeinfer.backends.numba.emit import Emitter
from edgeinfer.core import env
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program, build_program, fuse
from kernels_numba.executor.tape import Tape, TapeEntry
from kernels_numba.formats import format_by_name
from kernels_numba.layouts import PLANES
from kernels_numba.ops import (
    activation,
    attention,
    draw_weights,
    elementwise,
    embedding,
    greedy,
    linear,
    norm,
    pages,
    prefetch,
    quantize,
    rope,
    sampling,
    screen,
)  # fmt: skip
from tests.backends.test_numba import CASES, model

GOLDEN = Path(__file__).parent / "golden"
ROWS, WORKERS, CONTEXT = 48, 3, 256
Range = tuple[int, int]

OPERANDS = {
    **{f"ops.embedding.{name}": embedding.EMBEDDING_OPERANDS for name in ("embedding", "embedding_float", "embedding_mapped", "embedding_mapped_float")},
    "ops.rope.rope_table": rope.ROPE_TABLE_OPERANDS, "ops.rope.rope": rope.ROPE_OPERANDS,
    "ops.norm.rms_norm": norm.RMS_NORM_OPERANDS, "ops.norm.rms_norm_quantize": norm.RMS_NORM_QUANTIZE_OPERANDS,
    "ops.linear.linear": linear.LINEAR_OPERANDS, "ops.linear.linear_float": linear.LINEAR_OPERANDS,
    "ops.pages.store_keys_values": pages.STORE_KEYS_VALUES_OPERANDS, "ops.attention.attention": attention.ATTENTION_OPERANDS,
    "ops.activation.activation": activation.ACTIVATION_OPERANDS, "ops.activation.activation_quantize": activation.ACTIVATION_QUANTIZE_OPERANDS,
    "ops.quantize.quantize": quantize.QUANTIZE_OPERANDS, "ops.elementwise.add": elementwise.ADD_OPERANDS, "ops.elementwise.scale": elementwise.SCALE_OPERANDS,
    "ops.elementwise.softcap": elementwise.SOFTCAP_OPERANDS, "ops.elementwise.select_outputs": elementwise.SELECT_OUTPUTS_OPERANDS,
    "ops.elementwise.check_logits": elementwise.CHECK_LOGITS_OPERANDS, "ops.prefetch.prefetch_weights": prefetch.PREFETCH_WEIGHTS_OPERANDS,
    "ops.greedy.choose_tokens": greedy.CHOOSE_TOKENS_OPERANDS, "ops.screen.bound_logits": screen.BOUND_LOGITS_OPERANDS,
    "ops.screen.refine_bounds": screen.REFINE_BOUNDS_OPERANDS, "ops.screen.choose_best": screen.CHOOSE_BEST_OPERANDS,
    "ops.draw_weights.weigh_logits": draw_weights.WEIGH_LOGITS_OPERANDS, "ops.sampling.sample_tokens": sampling.SAMPLE_TOKENS_OPERANDS,
}  # fmt: skip
READ = {"input", "other", "residual", "gate", "up", "queries", "table", "keys", "values", "block_maxima", "block_sums", "input_blocks"}
WRITTEN = {"output", "blocks", "maxima", "sums"}
SCREENED = {  # what those kernels read and write beside
    "ops.screen.bound_logits": ((), ("bound_blocks", "bound_maxima")), "ops.screen.refine_bounds": (("bound_maxima",), ("best",)),
    "ops.screen.choose_best": (("best",), ()),
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """What one entry touches in the arena (byte ranges) and in the cache stores."""

    kernel: str
    reads: dict[str, Range]
    writes: dict[str, Range]
    stores_read: frozenset[int]
    stores_written: frozenset[int]
    heads: object = None  # of a row, where that is how workers divide it


def emitted(program: Program, rows: int = ROWS, workers: int = WORKERS) -> tuple[Emitter, int]:
    emitter = Emitter(program, rows, workers, CONTEXT, "f16", {})
    emitter.emit()
    return emitter, emitter.arena.lay_out()


def tapes(emitter: Emitter) -> list[list[Draft]]:
    """The drafts of steps, of bursts that draw tokens, and of those that find them from bounds, if the program can do so."""
    found = [emitter.drafts, [*emitter.drafts[:-1], *emitter.drawing_drafts(), emitter.drafts[-1]]]
    if emitter.screening is not None:
        found.append([*emitter.drafts[: emitter.hidden_end], *emitter.screening_drafts()])
    return found


def program_of(case: tuple[str, str, bool], fused: bool = True) -> Program:
    with GGUFFile.open(model(*case)) as file:
        program = build_program(file)
    return fuse(program) if fused else program


def access(draft: Draft) -> Access:
    kernel = f"{draft.kernel.module}.{draft.kernel.function}"
    names = embedding.EMBEDDING_PLANES_OPERANDS if kernel == "ops.embedding.embedding" and PLANES in draft.kernel.tags else OPERANDS[kernel]
    operands = dict(zip(names, draft.operands, strict=True))
    quantized_input = kernel in ("ops.linear.linear", "ops.screen.bound_logits")
    per_output = operands.get("per_output", 0) == 1 or kernel.endswith(("select_outputs", "_logits", "_tokens", "refine_bounds"))
    more_read, more_written = SCREENED.get(kernel, ((), ()))

    def extent(name: str, rows: int) -> Range | None:
        place = operands[name]
        if not (isinstance(place, Address) and place.kind == "slot"):
            return None
        assert isinstance(place.key, Slot)
        sizes = {"best": WORKERS * screen.BEST_BYTES}
        if kernel == "ops.screen.bound_logits":
            sizes["bound_blocks"] = WORKERS * int(str(operands["bound_blocks_bytes"]))
        if name in sizes:
            return place.key.offset, place.key.offset + sizes[name]
        is_blocks = name in ("blocks", "input_blocks") or (name == "output" and kernel in ("ops.quantize.quantize", "ops.activation.activation_quantize"))
        if is_blocks or (name == "input" and quantized_input):
            width = operands["columns"] if name.startswith("input") else operands["width"]
            assert isinstance(width, int)
            return place.key.offset, place.key.offset + blocks_bytes(rows, width)
        stride = operands["residual_stride" if name == "residual" else f"{name}_stride"]
        assert isinstance(stride, int)
        return place.key.offset, place.key.offset + (screen.SCREENED_ROWS if name == "bound_maxima" else rows) * stride

    reads, writes = {}, {}
    for name in (READ & set(operands)) | set(more_read):
        source_rows = ROWS if kernel.endswith("select_outputs") or not per_output else MAXIMUM_OUTPUT_ROWS
        found = extent(name, source_rows) if not (kernel.startswith("ops.embedding") and name == "table") else None
        if found is not None:
            reads[name] = found
    for name in (WRITTEN & set(operands)) | set(more_written):
        found = extent(name, MAXIMUM_OUTPUT_ROWS if per_output else ROWS)
        if found is not None:
            writes[name] = found
    store = operands.get("store")
    touched = frozenset([store.key]) if isinstance(store, Address) and isinstance(store.key, int) else frozenset()
    writes_store = kernel.endswith("store_keys_values")
    heads = operands.get("segments", operands.get("kv_heads" if writes_store else "heads"))
    return Access(kernel, reads, writes, frozenset() if writes_store else touched, touched if writes_store else frozenset(), heads)


def overlap(first: Range, second: Range) -> bool:
    return first[0] < second[1] and second[0] < first[1]


def must_wait(before: Access, after: Access) -> str | None:
    """Why all of `before` has to be done before any worker starts `after`; None if there is no reason."""
    if before.stores_written & (after.stores_read | after.stores_written) or before.stores_read & after.stores_written:
        return "the cache"
    for name, read in after.reads.items():
        for written in before.writes.values():
            # each worker reads the columns that it wrote itself: both share out 32 columns at a time
            own = after.kernel.startswith("ops.activation.") and before.kernel.startswith("ops.linear.") and name in ("gate", "up")
            # and a head that is turned was normed by the same worker, one that is kept was turned by it, if there are as many of them in a row
            headwise = ("ops.norm.rms_norm", "ops.rope.rope", "input"), ("ops.rope.rope", "ops.pages.store_keys_values", "keys")
            own |= (before.kernel, after.kernel, name) in headwise and before.heads == after.heads
            if overlap(read, written) and not (own and read[0] == written[0]):
                return f"it reads {name} from what was written"
    for name, written in after.writes.items():
        if any(overlap(written, other) for other in before.writes.values()):
            return f"both write {name}"
        if any(overlap(written, other) for other in before.reads.values()):
            # an elementwise operation may write over its own input, another entry's input may not be overwritten
            return f"it overwrites an input as {name}"
    return None


MORE_CASES = [("llama", "F32", False), ("llama", "Q8_0", True), ("qwen2", "Q4_0", True), ("llama", "Q4_K", False)]
ALL = [(case, fused) for case in [*CASES, *MORE_CASES] for fused in (True, False)]


def missing_barriers(drafts: list[Draft], barriers: list[bool]) -> list[tuple[str, str, str]]:
    """(entry, later entry that must not start before it is done, why) for the pairs without a barrier between them."""
    accesses = [access(draft) for draft in drafts]
    missing = []
    for later, current in enumerate(accesses):
        for earlier in range(later - 1, -1, -1):
            if barriers[earlier]:
                break
            reason = must_wait(accesses[earlier], current)
            if reason:
                missing.append((drafts[earlier].label, drafts[later].label, reason))
    return missing


@pytest.mark.parametrize(("case", "fused"), ALL)
def test_workers_wait_wherever_they_must(case: tuple[str, str, bool], fused: bool) -> None:
    for drafts in tapes(emitted(program_of(case, fused))[0]):
        assert not missing_barriers(drafts, [draft.barrier_after for draft in drafts])
        assert any(not draft.barrier_after for draft in drafts)


@pytest.mark.parametrize("case", CASES)
def test_no_barrier_is_without_a_reason(case: tuple[str, str, bool]) -> None:
    """Each barrier that is taken away is missed: they cost time, and the test above can see what it is there for."""
    for drafts in tapes(emitted(program_of(case))[0]):
        for index, draft in enumerate(drafts[:-1]):
            if draft.barrier_after:
                without = [other.barrier_after and place != index for place, other in enumerate(drafts)]
                assert missing_barriers(drafts, without), f"the barrier after {draft.label} protects nothing"


@pytest.mark.parametrize(("case", "fused"), ALL)
def test_entries_of_a_chain_meet_in_their_own_rows_alone(case: tuple[str, str, bool], fused: bool) -> None:
    """Workers that share rows do not wait within a chain: what two of its entries have in common must start at the same place and have rows of the same
    size, and nobody may read what another entry leaves in the cache."""
    drafts = emitted(program_of(case, fused))[0].drafts
    lengths = []
    for row_wise, chain in itertools.groupby(drafts, lambda draft: draft.row_wise):
        entries = [access(draft) for draft in chain if draft.kernel.module != "ops.prefetch"]
        if not row_wise:
            continue
        lengths.append(len(entries))
        assert not any(entry.stores_read for entry in entries)
        for first, second in itertools.combinations(entries, 2):
            touched = [*first.reads.values(), *first.writes.values()], [*second.reads.values(), *second.writes.values()]
            for one, other in itertools.product(*touched):
                assert one == other or not overlap(one, other), (first.kernel, second.kernel)
    assert max(lengths) > 10


@pytest.mark.parametrize(("case", "fused"), ALL)
def test_values_that_live_at_once_do_not_overlap(case: tuple[str, str, bool], fused: bool) -> None:
    """A read must find what the last entry that wrote exactly there put there: nobody else may have written into the range since."""
    emitter, arena_bytes = emitted(program_of(case, fused))
    for drafts in tapes(emitter):
        content: dict[Range, int] = {}  # range -> the entry that wrote it last and has not been overwritten
        for index, draft in enumerate(drafts):
            current = access(draft)
            for name, read in current.reads.items():
                assert read[0] >= 0 and read[1] <= arena_bytes
                held = [written for written in content if written[0] == read[0] and written[1] >= read[1]]
                assert held, f"{draft.label} reads {name}, which nothing holds any more"
            for name, written in current.writes.items():
                assert written[0] >= 0 and written[1] <= arena_bytes, (draft.label, name)
                for other in [other for other in content if overlap(other, written)]:
                    del content[other]
                content[written] = index
        assert emitter.logits_slot().offset in {start for start, _ in content}


@pytest.mark.parametrize("case", CASES)
def test_slots_have_room_for_the_largest_step(case: tuple[str, str, bool]) -> None:
    emitter, arena_bytes = emitted(program_of(case))
    spans = sorted((slot.offset, slot.offset + slot.size) for slot in emitter.arena.slots)
    assert all(first[1] < second[0] for first, second in itertools.pairwise(spans)) and spans[-1][1] <= arena_bytes
    starts = dict(spans)
    for draft in itertools.chain(*tapes(emitter)):
        current = access(draft)
        for start, end in [*current.reads.values(), *current.writes.values()]:
            assert start % 64 == 0 and end <= starts[start]


def test_an_arena_reuses_what_is_given_back_for_values_of_the_same_size() -> None:
    arena = Arena()
    first, second = arena.take(1000), arena.take(100)
    assert first is not second and first.size == 1024
    arena.give_back(first)
    assert arena.take(600) is not first
    assert arena.take(1020) is first
    arena.give_back(second)
    assert arena.lay_out() >= sum(slot.size for slot in arena.slots)
    assert all(slot.offset % 64 == 0 for slot in arena.slots)


def test_formats_that_are_read_as_blocks_are_quantized_first() -> None:
    for case, fused in ALL:
        written: set[int] = set()
        for draft in emitted(program_of(case, fused))[0].drafts:
            current = access(draft)
            if current.kernel == "ops.linear.linear":
                assert draft.kernel.tags[0] == PLANES or format_by_name(draft.kernel.tags[0]).quantized
                assert current.reads["input"][0] in written, draft.label
            if "quantize" in current.kernel:
                written.update(start for start, _ in current.writes.values())
            else:
                written -= {start for start, _ in current.writes.values()}


def listing(program: Program) -> str:
    """The tape as people read it; operands are left out, for addresses differ from run to run."""
    emitter, _ = emitted(program)
    kernels = {draft.kernel: 1 for draft in emitter.drafts}
    entries = [TapeEntry(draft.kernel, (), draft.barrier_after, draft.label) for draft in emitter.drafts]
    return Tape.build(entries, kernels).listing() + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_golden_listing(case: tuple[str, str, bool]) -> None:
    """Fusion and barriers, for review. EDGEINFER_UPDATE_GOLDEN=1 writes the files anew."""
    path = GOLDEN / f"{case[0]}-{case[1]}.txt"
    text = listing(program_of(case))
    if env.value("EDGEINFER_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    assert text == listing(program_of(case))


def test_float_operands_are_bits() -> None:
    emitter, _ = emitted(program_of(CASES[0]))
    scales = [dict(zip(OPERANDS["ops.attention.attention"], draft.operands))["scale"] for draft in emitter.drafts if draft.kernel.function == "attention"]
    assert scales and all(struct.unpack("<f", struct.pack("<I", scale))[0] == 0.125 for scale in scales)

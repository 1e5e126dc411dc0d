"""The contract between the scheduler and whatever runs a model. A backend is loaded once, runs steps, and forgets sequences when told to.

`load` knows the backends by name. Backends import their libraries lazily.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.core.memory_plan import MemoryPlan
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS, Burst, OutputKind, Step, StepOutputs, can_be_drawn


@dataclass(frozen=True)
class BackendOptions:
    """What the engine asks of a backend. None means: the backend's own choice, which it reports."""

    context: int  # tokens a sequence may hold
    threads: int | None = None
    cache_tokens: int | None = None  # tokens that all sequences together may hold; default: decided by the memory plan
    maximum_step_rows: int = 512  # rows of a step (the chunk of a prefill)
    maximum_sequences: int = 32
    instruction_set: str | None = None  # a level's name, to force it
    cache_type: str | None = None  # of CACHE_TYPES
    profile: bool = False  # time every operation of a step, for backends that can: see `ProfilingBackend`
    provider: str | None = None  # of ONNX Runtime, for the backend onnx: `NAME[:key=value,...]`, or auto
    minimum_share: float | None = None  # of a graph's nodes, that the provider must run
    prewarm: bool = False  # make while loading what else would be made beside the first work that could use it


@dataclass(frozen=True)
class CacheGroup:
    """A cache group that the scheduler must hand out pages for."""

    name: str
    page_size: int  # tokens
    pages: int
    window: int  # 0: positions live as long as the sequence; w: positions more than w behind may be released


@dataclass(frozen=True)
class Placement:
    """Who runs the nodes of a graph, as ONNX Runtime tells after the session is made. `nodes`: its name of a provider -> nodes."""

    provider: str  # as users name it
    dialect: str
    device: str
    nodes: Mapping[str, int]
    provider_nodes: int  # those that this provider runs itself
    reason: str = ""  # why this one was taken, when none was named

    @property
    def total(self) -> int:
        return sum(self.nodes.values())

    @property
    def share(self) -> float:
        """Of all nodes, that the provider runs itself."""
        return self.provider_nodes / self.total if self.total else 0.0

    def __str__(self) -> str:
        """Such as: provider openvino (CPU, dialect opset21) runs 179 of 179 nodes."""
        rest = {name: count for name, count in self.nodes.items() if count} if self.provider_nodes < self.total else {}
        others = f" ({', '.join(f'{name} {count}' for name, count in rest.items())})" if rest else ""
        chosen = f"provider auto is {self.provider}: {self.reason}; it" if self.reason else f"provider {self.provider}"
        return f"{chosen} runs {self.provider_nodes} of {self.total} nodes{others} on {self.device} in the dialect {self.dialect}"

    def to_json(self) -> dict[str, object]:
        return {
            "provider": self.provider, "device": self.device, "dialect": self.dialect, "nodes": dict(self.nodes), "share": round(self.share, 6),
            "reason": self.reason or None,
        }  # fmt: skip


@dataclass(frozen=True)
class Capabilities:
    """What a backend promises. Declared here, tested by the contract suite: what is declared holds, what is not is refused (`refuse_undeclared`)."""

    uses_block_tables: bool  # False: keeps its own cache by sequence id
    cache_groups: tuple[CacheGroup, ...]
    bit_exact_batches: bool  # the same bits whatever shares the step
    bit_exact_chunks: bool
    vocabulary: int
    context: int
    maximum_step_rows: int
    maximum_sequences: int
    threads: int
    description: str  # one line for a person: instruction set, version
    warnings: tuple[str, ...] = ()  # what is not as the file or the options have it
    output_kinds: frozenset[OutputKind] = frozenset({OutputKind.LOGITS})  # what a row of a step may ask for, beside nothing
    separate_rope_positions: bool = False  # rope positions may differ from slots
    kept_sequences: int = 0  # above 0 it is a `PrefixSharingBackend`, which can hold so many sequences beside `maximum_sequences` that run
    copies_prefixes: bool = False  # what sequences share is held by each of them, so it is counted for each
    maximum_passes: int = 1  # of a burst; 1: it has none
    draws: bool = False  # its bursts may have `draws`
    times_operations: bool = False  # it is a `ProfilingBackend`, and was loaded with `profile`
    placement: Placement | None = None  # of a graph that a provider runs


class Backend(Protocol):
    """`step` is called by one thread at a time. After `close` only `close` may be called."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def memory_plan(self) -> MemoryPlan: ...

    def step(self, step: Step) -> StepOutputs:
        """Runs one forward pass. Raises NonFiniteError if a requested output is not finite."""
        ...

    def release(self, sequence_ids: Sequence[int]) -> None:
        """These sequences have ended or were preempted; nothing of them is needed any more."""
        ...

    def close(self) -> None:
        """Gives back memory and threads. Idempotent."""
        ...


class PrefixSharingBackend(Backend, Protocol):
    """A backend that keeps its own cache by sequence id and can hand positions of one sequence to another (`Capabilities.kept_sequences`).

    Backends with block tables need nothing of the kind: there a page is shared by being in two tables.
    """

    def share_prefix(self, source: int, target: int, length: int) -> None:
        """The new sequence `target` holds the first `length` positions of the living sequence `source` as well; each may be released or go on alone."""
        ...


@dataclass(frozen=True)
class OperationTime:
    """An operation of a backend's forward pass and the wall-clock seconds that it took in the steps since the last look, waiting for others included.

    `matrices` names the weight matrices that it multiplies by, `cache_stores` the numbers of the stores whose keys and values it reads.
    """

    label: str
    kernel: str
    seconds: float
    matrices: tuple[str, ...] = ()
    cache_stores: tuple[int, ...] = ()


class ProfilingBackend(Backend, Protocol):
    """A backend that was loaded with `BackendOptions.profile`, if it can count at all."""

    def take_profile(self) -> tuple[OperationTime, ...]:
        """The operations of a pass in order, with their times since the last call; starts from zero again."""
        ...


def refuse_undeclared(step: Step, capabilities: Capabilities) -> None:
    """Raises InvalidRequestError for a step that asks for what the backend does not declare, or for more. Backends call this before they compute."""
    outputs = int(np.count_nonzero(step.outputs))
    if step.rows > capabilities.maximum_step_rows or outputs > MAXIMUM_OUTPUT_ROWS:
        raise InvalidRequestError(
            f"a step has {step.rows} rows with {outputs} outputs; this backend takes {capabilities.maximum_step_rows} rows with {MAXIMUM_OUTPUT_ROWS} outputs"
        )
    kinds = {OutputKind(kind) for kind in np.unique(step.outputs)} - {OutputKind.NONE} - capabilities.output_kinds
    if kinds:
        known = ", ".join(sorted(kind.name.lower() for kind in capabilities.output_kinds))
        raise InvalidRequestError(f"a step asks for {min(kinds).name.lower()} outputs, but this backend gives only: {known}")
    if not capabilities.separate_rope_positions and not np.array_equal(step.rope_positions, step.slots):
        raise InvalidRequestError("this backend turns every token by its place in the cache, but a step asks for other rope positions")
    if step.adapters.any():
        raise InvalidRequestError(f"a step asks for adapter {int(step.adapters.max())}, but this backend has none")
    if step.burst is not None:
        refuse_impossible_burst(step, step.burst, capabilities)


def refuse_impossible_burst(step: Step, burst: Burst, capabilities: Capabilities) -> None:
    """Raises InvalidRequestError for a burst that the backend does not declare or that is none: see `Burst`."""
    if not 1 <= burst.passes <= max(1, capabilities.maximum_passes) or capabilities.maximum_passes == 1:
        raise InvalidRequestError(f"a step is a burst of {burst.passes} passes; this backend runs {capabilities.maximum_passes} at a time")
    if not len(step.sequences) == step.rows == np.count_nonzero(step.outputs == int(OutputKind.LOGITS)):
        raise InvalidRequestError(
            f"a burst has {step.rows} rows of {len(step.sequences)} sequences; each row must have a sequence of its own and ask for logits"
        )
    if burst.draws is None:
        return
    if not capabilities.draws:
        raise InvalidRequestError("a burst wants drawn tokens; this backend takes the largest logits alone")
    if len(burst.draws.params) != step.rows or burst.draws.uniforms.shape != (burst.passes, step.rows):
        raise InvalidRequestError(
            f"a burst of {burst.passes} passes of {step.rows} rows has draws for {len(burst.draws.params)} rows, with points of the shape "
            f"{burst.draws.uniforms.shape}"
        )
    refused = [params for params in burst.draws.params if params is not None and not can_be_drawn(params)]
    if refused:
        raise InvalidRequestError(f"a burst wants tokens drawn with {refused[0]}, which is beyond what bursts draw")

"""Teacher forcing: several engines over the same tokens, in lockstep, block by block, so that no engine's logits are ever held whole.

An engine here is anything that yields `(first position, logits block)` for a list of token ids: the engine itself, the reference, a fake in a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.verify.metrics import Agreement, AgreementTally, Logits, Pair


class LogitSource(Protocol):
    """`logits(token_ids)` yields blocks of rows in ascending order, together len(token_ids) rows; a block is valid until the next is asked for."""

    def logits(self, token_ids: Sequence[int]) -> Iterator[tuple[int, Logits]]: ...


@dataclass(frozen=True)
class Chunk:
    """`token_ids` are fed; row i of the logits is judged against `targets[i]`, the token that follows it. `kind` names the sort of text."""

    kind: str
    token_ids: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class TeacherForcing:
    """The agreement over all chunks and by kind of text, and the seconds waited for each engine (less for one that computes ahead)."""

    total: Agreement
    by_kind: Mapping[str, Agreement]
    seconds: Mapping[str, float]


def in_lockstep(
    sources: Mapping[str, LogitSource], token_ids: Sequence[int], seconds: dict[str, float] | None = None
) -> Iterator[tuple[int, dict[str, Logits]]]:
    """Yields (first position, block of each source), all of the same rows, whatever the block sizes of the sources.

    Adds to `seconds[name]` the time that each source took. Raises ValueError when a source leaves out rows, repeats some or ends early.
    """
    seconds = {} if seconds is None else seconds
    streams = {name: source.logits(token_ids) for name, source in sources.items()}
    pending: dict[str, Logits] = {}
    position = 0
    while position < len(token_ids):
        for name, stream in streams.items():
            if name in pending and len(pending[name]):
                continue
            began = time.perf_counter()
            item = next(stream, None)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
            if item is None:
                raise ValueError(f"{name} gave {position} rows of logits for {len(token_ids)} tokens")
            start, block = item
            if start != position or len(block) == 0:
                raise ValueError(f"{name} gave {len(block)} rows from position {start}; position {position} was due")
            pending[name] = block
        rows = min(len(block) for block in pending.values())
        yield position, {name: block[:rows] for name, block in pending.items()}
        pending = {name: block[rows:] for name, block in pending.items()}
        position += rows
    for stream in streams.values():
        if next(stream, None) is not None:
            raise ValueError(f"an engine gave more rows than the {len(token_ids)} tokens it was fed")


def teacher_force(
    chunks: Sequence[Chunk], sources: Mapping[str, LogitSource], pairs: Sequence[Pair], progress: Callable[[int], None] = lambda rows: None
) -> TeacherForcing:
    """Runs every source over every chunk once. `pairs` are the (p, q) whose KL(p || q) is wanted; `progress(rows)` is called as rows are done."""
    by_kind: dict[str, AgreementTally] = {}
    seconds: dict[str, float] = dict.fromkeys(sources, 0.0)
    for chunk in chunks:
        tally = by_kind.setdefault(chunk.kind, AgreementTally(tuple(sources), pairs))
        for start, blocks in in_lockstep(sources, chunk.token_ids, seconds):
            rows = len(next(iter(blocks.values())))
            tally.add(blocks, chunk.targets[start : start + rows])
            progress(rows)
    total = AgreementTally(tuple(sources), pairs)
    for tally in by_kind.values():
        total.merge(tally)
    return TeacherForcing(total.result(), {kind: tally.result() for kind, tally in by_kind.items()}, seconds)

"""A plain driver of a backend for the contract suite: it hands out pages in a scattered order and builds steps by hand, without the scheduler."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Backend, PrefixSharingBackend
from edgeinfer.core.steps import Burst, Draws, OutputKind, SequenceTable, Step

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """Tokens of a sequence from position `start` on; outputs of `kind` are wanted for the last `outputs` of them (None: all).

    `rope`: rope positions, where they are not the slots; `adapter`: that of all tokens.
    """

    identifier: int
    start: int
    tokens: Sequence[int]
    outputs: int | None = None
    kind: OutputKind = OutputKind.LOGITS
    rope: Sequence[int] | None = None
    adapter: int = 0

    @property
    def wanted(self) -> int:
        return len(self.tokens) if self.outputs is None else self.outputs


class Driver:
    """Runs rows on a backend. Every sequence gets pages of its own, in an order that has nothing to do with the positions."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._free = [list(range(group.pages)) for group in backend.capabilities.cache_groups]
        for pages in self._free:
            random.Random(len(pages)).shuffle(pages)
        self._held: dict[int, list[list[int]]] = {}

    def run(self, *parts: Rows) -> list[Logits]:
        """One step; per part float32[outputs, vocabulary], or float32[outputs, width] of hidden states (copies)."""
        step = self.step(*parts)
        result = self.backend.step(step)
        kinds = step.outputs
        assert result.rows.tolist() == np.flatnonzero(kinds == OutputKind.LOGITS).tolist()
        assert result.logits.shape == (len(result.rows), self.backend.capabilities.vocabulary) and result.logits.dtype == np.float32
        if result.largest is not None:
            assert result.largest.tolist() == [result.logits.argmax(axis=1).tolist()]
        found: dict[OutputKind, Logits] = {OutputKind.LOGITS: result.logits}
        if OutputKind.HIDDEN in kinds:
            assert result.hidden is not None and result.hidden_rows is not None and result.hidden.dtype == np.float32
            assert result.hidden_rows.tolist() == np.flatnonzero(kinds == OutputKind.HIDDEN).tolist() and len(result.hidden) == len(result.hidden_rows)
            found[OutputKind.HIDDEN] = result.hidden
        else:
            assert result.hidden is None and result.hidden_rows is None
        taken = dict.fromkeys(found, 0)
        outputs = []
        for part in parts:
            first = taken[part.kind]
            taken[part.kind] += part.wanted
            outputs.append(found[part.kind][first : first + part.wanted].copy())
        return outputs

    def burst(
        self, passes: int, *parts: Rows, end_ids: Sequence[int] = (), interrupt: int = 0, draws: Draws | None = None
    ) -> list[list[int]]:  # fmt: skip
        """The tokens that each part chose."""
        burst = Burst(passes, np.array(end_ids, np.int32), np.array([interrupt], np.int64), draws)
        result = self.backend.step(dataclasses.replace(self.step(*parts, passes=passes), burst=burst))
        assert result.largest is not None and result.largest.dtype == np.int32 and 1 <= len(result.largest) <= passes
        return result.largest.T.tolist()

    def greedy(self, identifier: int, tokens: Sequence[int], count: int) -> list[int]:
        """The tokens after those of a sequence of which all but the last is computed, one step each."""
        known = list(tokens)
        for _ in range(count):
            known.append(int(self.run(Rows(identifier, len(known) - 1, known[-1:]))[0].argmax()))
        return known[len(tokens) :]

    def step(self, *parts: Rows, passes: int = 1) -> Step:
        """The step record of some rows, with pages for them and for what further passes add."""
        token_ids, sequence, slots, rope, adapters, outputs, tables = [], [], [], [], [], [], []
        for index, part in enumerate(parts):
            positions = range(part.start, part.start + len(part.tokens))
            token_ids += list(part.tokens)
            sequence += [index] * len(part.tokens)
            slots += positions
            rope += list(positions if part.rope is None else part.rope)
            adapters += [part.adapter] * len(part.tokens)
            outputs += [OutputKind.NONE] * (len(part.tokens) - part.wanted) + [part.kind] * part.wanted
            tables.append(SequenceTable(part.identifier, part.start, self._tables(part.identifier, part.start + len(part.tokens) + passes - 1)))
        fields = [np.array(field, dtype=np.int32) for field in (token_ids, sequence, slots, rope, adapters)]
        return Step(*fields, np.array(outputs, dtype=np.uint8), tuple(tables))

    def share(self, source: int, target: int, length: int) -> None:
        """The new sequence `target` begins with `length` positions of `source`: whole pages in both tables, or `share_prefix`."""
        if self.backend.capabilities.uses_block_tables:
            assert all(length % group.page_size == 0 for group in self.backend.capabilities.cache_groups)
            groups = self.backend.capabilities.cache_groups
            self._held[target] = [pages[: length // group.page_size] for group, pages in zip(groups, self._held[source], strict=True)]
        else:
            cast(PrefixSharingBackend, self.backend).share_prefix(source, target, length)

    def whole(self, identifier: int, tokens: Sequence[int], chunk: int = 64) -> Logits:
        """Logits of every position of a sequence, in chunks, and the sequence forgotten afterwards."""
        blocks = [self.run(Rows(identifier, start, tokens[start : start + chunk]))[0] for start in range(0, len(tokens), chunk)]
        self.release(identifier)
        return np.concatenate(blocks)

    def release(self, *identifiers: int) -> None:
        for identifier in identifiers:
            for group, pages in enumerate(self._held.pop(identifier, [])):
                shared = {page for held in self._held.values() for page in held[group]}
                self._free[group] += [page for page in pages if page not in shared]
        self.backend.release(identifiers)

    def _tables(self, identifier: int, length: int) -> tuple[NDArray[np.int32], ...]:
        held = self._held.setdefault(identifier, [[] for _ in self._free])
        for group, free, pages in zip(self.backend.capabilities.cache_groups, self._free, held, strict=True):
            while len(pages) * group.page_size < length:
                pages.append(free.pop())
        return tuple(np.array(pages, dtype=np.int32) for pages in held)

"""The driver on engines without a model: block sizes don't matter, every source runs once per chunk, and a source that loses rows is caught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.verify.corpus import KINDS, MAXIMUM_CHUNK, running_text, teacher_forcing_chunks, tokenizer_texts
from edgeinfer.verify.metrics import AgreementTally
from edgeinfer.verify.teacher_forcing import Chunk, in_lockstep, teacher_force
from tests.verify.fakes import VOCABULARY, FakeEngine


def _chunk(kind: str, seed: int, length: int = 23) -> Chunk:
    ids = [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, length + 1)]
    return Chunk(kind, tuple(ids[:-1]), tuple(ids[1:]))


def test_lockstep_aligns_blocks_of_any_size() -> None:
    ids = _chunk("prose", 1).token_ids
    sources = {"a": FakeEngine(block=7), "b": FakeEngine(block=3), "c": FakeEngine(block=100)}
    position = 0
    for start, blocks in in_lockstep(sources, ids):
        assert start == position
        assert len({block.shape for block in blocks.values()}) == 1
        for offset, row in enumerate(blocks["a"]):
            expected = sources["a"].row(ids, start + offset)
            for block in blocks.values():
                np.testing.assert_array_equal(block[offset], expected)
            np.testing.assert_array_equal(row, expected)
        position += len(blocks["a"])
    assert position == len(ids)


def test_every_source_runs_once_per_chunk_and_the_result_is_that_of_whole_logits() -> None:
    chunks = [_chunk("prose", 1), _chunk("code", 2), _chunk("prose", 3)]
    sources = {"a": FakeEngine(block=4), "b": FakeEngine(error=0.3, block=9)}
    rows: list[int] = []
    found = teacher_force(chunks, sources, [("a", "b")], rows.append)
    assert sum(rows) == 69
    assert [source.calls for source in sources.values()] == [3, 3]
    assert found.total.positions == 69
    assert {kind: part.positions for kind, part in found.by_kind.items()} == {"prose": 46, "code": 23}
    direct = AgreementTally(("a", "b"), [("a", "b")])
    for chunk in chunks:
        whole = {name: np.stack([source.row(chunk.token_ids, i) for i in range(23)]) for name, source in sources.items()}
        direct.add(whole, chunk.targets)
    assert found.total.kl["a", "b"] == pytest.approx(direct.result().kl["a", "b"], rel=1e-12)
    assert found.total.kl["a", "b"] > 0.01


class _Broken(FakeEngine):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    def logits(self, token_ids: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        for start, block in super().logits(token_ids):
            if self._fault == "repeats":
                yield max(0, start - 1), block
            elif self._fault == "ends early" and start + len(block) == len(token_ids):
                return
            else:
                yield start, block
        if self._fault == "gives more":
            yield len(token_ids), block


@pytest.mark.parametrize("fault", ["repeats", "ends early", "gives more"])
def test_a_source_that_loses_or_repeats_rows_is_caught(fault: str) -> None:
    with pytest.raises(ValueError, match="rows"):
        teacher_force([_chunk("prose", 1)], {"a": FakeEngine(), "b": _Broken(fault)}, [("a", "b")])


def _words(text: str) -> list[int]:
    return [len(word) for word in text.split(" ")]


@pytest.mark.parametrize("leading", [(), (900,), (900, 901)])
@pytest.mark.parametrize("tokens", [3, 100, 400])
def test_chunks_hold_what_was_asked_for_and_targets_follow_their_tokens(leading: tuple[int, ...], tokens: int) -> None:
    chunks = teacher_forcing_chunks(_words, leading, tokens) if tokens > 3 or len(leading) == 0 else []
    for chunk in chunks:
        assert chunk.token_ids[: len(leading)] == leading
        assert chunk.token_ids[1:] == chunk.targets[:-1]
        assert len(chunk.token_ids) == len(chunk.targets) <= MAXIMUM_CHUNK
    if chunks:
        assert sum(len(chunk.targets) for chunk in chunks) >= tokens
        assert {chunk.kind for chunk in chunks} == set(KINDS)


def test_pieces_of_a_text_follow_each_other() -> None:
    chunks = teacher_forcing_chunks(lambda text: range(5000), (9999,), 3 * 2000)
    prose = [chunk for chunk in chunks if chunk.kind == "prose"]
    assert len(prose) == 3
    judged = [target for chunk in prose for target in chunk.targets]
    assert judged[: len(prose[0].targets)] == list(range(len(prose[0].targets)))
    assert sorted(set(judged)) == list(range(max(judged) + 1))


def test_more_tokens_than_the_corpus_has_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidRequestError, match=r"100000 tokens were asked for, but the .* text"):
        teacher_forcing_chunks(_words, (), 100000)
    with pytest.raises(InvalidRequestError, match="at least 3"):
        teacher_forcing_chunks(_words, (), 2)
    with pytest.raises(InvalidRequestError, match="3 tokens were asked for; with this model's leading tokens verify needs at least 4"):
        teacher_forcing_chunks(_words, (1,), 3)
    assert len(teacher_forcing_chunks(_words, (1,), 4)) == 3


def test_the_most_that_the_refusal_names_is_accepted() -> None:
    def encode(text: str) -> range:
        return range(1300)

    assert sum(len(chunk.targets) for chunk in teacher_forcing_chunks(encode, (1,), 3 * 1300)) == 3900
    with pytest.raises(InvalidRequestError, match="at most 3900"):
        teacher_forcing_chunks(encode, (1,), 3903)


def test_the_running_texts_ship_and_are_varied() -> None:
    assert all(len(running_text(kind)) > 3500 for kind in KINDS)
    texts = tokenizer_texts()
    assert len(texts) == len(tokenizer_texts()) > 400
    assert texts == tokenizer_texts()  # seeded

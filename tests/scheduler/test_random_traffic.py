"""Random traffic over random schedulers: joining, leaving, pausing, cancelling, too few pages. EDGEINFER_FUZZ_SCALE multiplies the scenarios."""

from __future__ import annotations

import os
import random

import pytest

from edgeinfer.scheduler import Sequence
from tests.scheduler.support import Bench, OwnCacheBackend, Recorder, alone

SCENARIOS = round(20 * float(os.environ.get("EDGEINFER_FUZZ_SCALE", "1")))


def _bench(chance: random.Random, own_cache: bool) -> Bench:
    context = chance.choice([48, 100, 256])
    kept = chance.choice([1, 2, 5])
    return Bench(
        context=context,
        chunk=chance.choice([1, 3, 16, 40, 64, 300]),
        sequences=chance.choice([1, 2, 4, 8]),
        cache_tokens=chance.choice([context, context + 16, 2 * context, None]),
        windows=chance.choice([(), (1,), (16,), (20, 50)]),
        prefix_reuse=chance.random() < 0.7,
        backend=(lambda options: OwnCacheBackend(options, kept)) if own_cache else None,
    )


def _submit(bench: Bench, shared: list[int], chance: random.Random) -> tuple[list[int], Sequence, Recorder]:
    """A prompt that begins like others, to be continued or scored."""
    length = chance.randint(1, len(shared) - 1)
    tokens = shared[: chance.randint(0, length)]
    tokens += chance.choices(range(512), k=length - len(tokens))
    limit = chance.choice([0, chance.randint(1, len(shared) - length)])
    ends = [chance.randrange(512) for _ in range(chance.choice([0, 0, 20]))]
    choices = {"greedy": limit > 0 and chance.random() < 0.8, "ends": ends[:10], "end_ids": ends[10:]}
    return tokens, *bench.submit(tokens, limit, **choices)


@pytest.mark.parametrize("own_cache", [False, True], ids=["pages", "own_cache"])
@pytest.mark.parametrize("seed", range(SCENARIOS))
def test_random_traffic_gives_every_sequence_its_solo_answer(seed: int, own_cache: bool) -> None:
    chance = random.Random(seed)
    bench = _bench(chance, own_cache)
    shared = chance.choices(range(512), k=bench.scheduler.context)
    to_come = chance.randint(1, 14)
    living: list[tuple[list[int], Sequence, Recorder]] = []
    for _ in range(30_000):
        if not to_come and not bench.scheduler.has_work:
            break
        if to_come and chance.random() < 0.25:
            to_come -= 1
            living.append(_submit(bench, shared, chance))
        for _, _, recorder in living:
            if recorder.limit == 0 and chance.random() < 0.3:
                recorder.paused = not recorder.paused
            if not to_come and chance.random() < 0.3:
                recorder.paused = False
        if living and chance.random() < 0.01:
            bench.scheduler.cancel(living.pop(chance.randrange(len(living)))[1])
        if chance.random() < 0.1:
            bench.scheduler.interrupt_burst()
        bench.scheduler.step()
        bench.scheduler.allow_bursts()
        bench.scheduler.check()
    assert not bench.scheduler.has_work, "the scheduler does not come to an end"
    for tokens, _, recorder in living:
        assert recorder.error is None
        if recorder.limit:
            expected = alone(tokens, recorder.limit)
            end = next((index for index, token in enumerate(expected) if token in recorder.ends), recorder.limit)
            assert recorder.tokens == expected[: end + 1]
        else:
            assert sorted(recorder.logits) == list(range(len(tokens)))
    assert bench.used == 0

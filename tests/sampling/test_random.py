"""The counter-based generator against the authors' known answers."""

from __future__ import annotations

import pytest

from edgeinfer.sampling.random import philox, uniform


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_philox_gives_the_known_answers(counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    assert philox(counter, key) == expected


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = [uniform(42, index) for index in range(4000)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    counts = [sum(tenth <= 10 * number < tenth + 1 for number in numbers) for tenth in range(10)]
    assert min(counts) > 320 and max(counts) < 480


def test_neighbouring_seeds_and_indexes_have_nothing_in_common() -> None:
    numbers = {uniform(seed, index) for seed in (0, 1, 2, 2**32, 2**63, 2**64 - 1) for index in range(200)}
    assert len(numbers) == 6 * 200


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    assert uniform(7, 3) != uniform(7, 4) != uniform(8, 3)

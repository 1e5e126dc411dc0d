"""Page pools: nothing lost, nothing doubled, idle pages reused last."""

from __future__ import annotations

import random

import pytest

from edgeinfer.kvcache.blocks import PagePool
from edgeinfer.kvcache.prefix import first_needed_page, longest_match, page_keys


def test_pages_are_handed_out_once_and_come_back() -> None:
    pool = PagePool("k", 4, 16)
    pages = pool.allocate(3)
    assert len(set(pages)) == 3 and pool.available == 1 and pool.used == 3
    pool.check([pages])
    pool.release(pages)
    assert pool.available == 4
    pool.check([])


def test_a_shared_page_is_free_when_its_last_holder_has_left() -> None:
    pool = PagePool("k", 2, 16)
    (page,) = pool.allocate(1)
    pool.remember(page, b"key")
    pool.hold(page)
    pool.release([page])
    assert pool.used == 1
    pool.check([[page]])
    pool.release([page])
    assert pool.used == 0 and pool.find(b"key") == page
    pool.check([])


def test_idle_pages_are_given_out_last_and_the_longest_idle_first() -> None:
    pool = PagePool("k", 3, 16)
    first, second, third = pool.allocate(3)
    pool.remember(first, b"1")
    pool.remember(second, b"2")
    pool.release([second, first, third])
    assert pool.allocate(1) == [third]
    assert pool.allocate(1) == [second]
    assert pool.find(b"2") is None and pool.find(b"1") == first


def test_the_check_finds_a_lost_page_and_a_double_release_is_refused() -> None:
    pool = PagePool("k", 4, 16)
    pages = pool.allocate(2)
    with pytest.raises(AssertionError, match="miscounted"):
        pool.check([pages[:1]])
    pool.release(pages)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(pages[:1])


def test_random_use_keeps_the_pool_whole() -> None:
    chance = random.Random(1)
    pool = PagePool("k", 20, 4)
    held: list[list[int]] = []
    for turn in range(500):
        if held and chance.random() < 0.5:
            pool.release(held.pop(chance.randrange(len(held))))
        else:
            wanted = chance.randint(1, 5)
            if wanted <= pool.available:
                pages = pool.allocate(wanted)
                if chance.random() < 0.5:
                    pool.remember(pages[0], str(turn % 30).encode())
                held.append(pages)
        pool.check(held)


def test_a_page_key_stands_for_everything_before_it() -> None:
    keys = page_keys([1, 2, 3, 4, 5, 6], 2, [], 3)
    assert len(set(keys)) == 3
    assert page_keys([1, 2, 3, 4, 9, 9], 2, [], 3)[:2] == keys[:2]
    assert page_keys([9, 2, 3, 4, 5, 6], 2, [], 3)[1:] != keys[1:]
    assert page_keys([1, 2, 3, 4, 5, 6], 2, keys[:1], 3) == keys


def test_the_longest_match_needs_every_group_and_of_a_window_only_its_end() -> None:
    keys = [b"0", b"1", b"2", b"3"]
    whole, window = PagePool("whole", 8, 4), PagePool("window", 8, 4)
    for key, page in zip(keys, whole.allocate(4), strict=True):
        whole.remember(page, key)
    for key, page in zip(keys[2:], window.allocate(2), strict=True):
        window.remember(page, key)
    assert longest_match([whole], [0], keys) == 4
    assert longest_match([whole, window], [0, 8], keys) == 4
    assert longest_match([whole, window], [0, 8], keys[:3]) == 0
    assert longest_match([whole, window], [0, 0], keys) == 0
    assert longest_match([window], [4], keys) == 4


@pytest.mark.parametrize(("computed", "first"), [(0, 0), (10, 0), (19, 0), (20, 1), (40, 6)])
def test_the_first_page_that_a_window_still_reaches(computed: int, first: int) -> None:
    assert first_needed_page(4, 16, computed) == first

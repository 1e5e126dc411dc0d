"""A counter-based random generator: the number at (seed, index) is a pure function of both, so a draw does not depend on what else was drawn.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011). Its key is exactly a 64-bit seed. The sampler calls
it.
"""

from __future__ import annotations

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_KEY_STEP_0 = 0x9E3779B9
_KEY_STEP_1 = 0xBB67AE85
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words for a 128-bit counter and a 64-bit key, both given as 32-bit words, the lowest first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (product_1 >> 32) ^ c1 ^ k0, product_1 & _MASK, (product_0 >> 32) ^ c3 ^ k1, product_0 & _MASK
        k0 = (k0 + _KEY_STEP_0) & _MASK
        k1 = (k1 + _KEY_STEP_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, index: int) -> float:
    """A float64 in [0, 1) with 53 random bits, for a 64-bit `seed` and the `index` of an output token."""
    low, high, _, _ = philox((index & _MASK, (index >> 32) & _MASK, 0, 0), (seed & _MASK, (seed >> 32) & _MASK))
    return (((high << 32) | low) >> 11) * 2.0**-53

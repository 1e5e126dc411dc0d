"""exp, tanh, erf, sine and cosine as fixed sequences of IEEE operations, so that they have the same bits on every instruction set.

Polynomials were fitted for the least maximal relative error and rounded to float32; docs/arithmetic.md states the errors and the tests check them.
No result depends on a mathematical library.
"""

from __future__ import annotations

import math

import numpy as np

from kernels_numba.simd.function import kernel_function

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)  # 9 bits: times a whole number below 2^14 it is exact
LN2_LOW = np.float32(-2.12194440e-4)
EXP_LOWEST = np.float32(-87.3)  # exp is a normal number down to here, and 2^n fits up to EXP_HIGHEST
EXP_HIGHEST = np.float32(88.0)
ROUNDING = np.float32(12582912.0)  # 1.5 * 2^23
EXP_COEFFICIENTS = tuple(
    np.float32(value) for value in (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.0083687175065279, 0.0013814596459269524)
)
E0, E1, E2, E3, E4 = EXP_COEFFICIENTS

TANH_SMALL = np.float32(0.625)
TANH_COEFFICIENTS = tuple(
    np.float32(value) for value in (-0.3333328366279602, 0.13331490755081177, -0.05374349653720856, 0.020650578662753105, -0.005717036779969931)
)
T0, T1, T2, T3, T4 = TANH_COEFFICIENTS

ERF_SMALL = np.float32(0.9375)
ERF_LARGE = np.float32(4.0)  # from here erf is 1 in float32
ERF_SMALL_COEFFICIENTS = tuple(
    np.float32(value)
    for value in (0.12837915122509003, -0.3761248290538788, 0.11281681805849075, -0.02676110714673996, 0.004984378814697266, -0.0005943142459727824)
)
S0, S1, S2, S3, S4, S5 = ERF_SMALL_COEFFICIENTS
ERF_LARGE_COEFFICIENTS = tuple(
    np.float32(value)
    for value in (-1.1285165548324585, -0.6357112526893616, -0.10527053475379944, 0.022895146161317825, -0.003216458484530449, 0.0002141547593055293)
)
L0, L1, L2, L3, L4, L5 = ERF_LARGE_COEFFICIENTS

TWO_OVER_PI = 2 / math.pi
HALF_PI_HIGH = float.fromhex("0x1.921fb544p+0")  # the first 33 bits of pi/2: times a whole number below 2^20 it is exact
HALF_PI_LOW = 6.07710050650619224932e-11  # pi/2 minus that
SINE_COEFFICIENTS = tuple((-1) ** (power // 2) / math.factorial(power) for power in (3, 5, 7, 9, 11, 13, 15))
COSINE_COEFFICIENTS = tuple((-1) ** (power // 2) / math.factorial(power) for power in (2, 4, 6, 8, 10, 12, 14, 16))
SIN3, SIN5, SIN7, SIN9, SIN11, SIN13, SIN15 = SINE_COEFFICIENTS
COS2, COS4, COS6, COS8, COS10, COS12, COS14, COS16 = COSINE_COEFFICIENTS


@kernel_function
def exp(simd, x):
    """e^x with a relative error below 2e-7 for -87.3 <= x <= 88; x is clamped to that range, NaN stays NaN. exp(0) is exactly 1.

    n = round(x log2 e), r = x - n ln 2 in two steps of fma, 1 + (r + r^2 P(r)), times 2^n.
    """
    return exp_of_not_positive(simd, simd.minimum(simd.splat_f32(EXP_HIGHEST), x))


@kernel_function
def power_of_two(simd, shifted):
    """2^n of n + 1.5 * 2^23."""
    return simd.f32x16_from_bits((simd.bits_from_f32x16(shifted) << 23) + simd.splat_i32(127 << 23))


@kernel_function
def exp_of_not_positive(simd, x):
    """`exp` where no lane is positive.

    Adding 1.5 * 2^23 rounds to a whole number, which the low bits of the sum then hold: shifted by 23 they are the exponent of 2^n less its bias.
    """
    x = simd.maximum(simd.splat_f32(EXP_LOWEST), x)
    shifted = x * simd.splat_f32(LOG2_E) + simd.splat_f32(ROUNDING)
    n = shifted - simd.splat_f32(ROUNDING)
    r = simd.fma(n, simd.splat_f32(-LN2_HIGH), x)
    r = simd.fma(n, simd.splat_f32(-LN2_LOW), r)
    p = simd.fma(simd.splat_f32(E4), r, simd.splat_f32(E3))
    p = simd.fma(p, r, simd.splat_f32(E2))
    p = simd.fma(p, r, simd.splat_f32(E1))
    p = simd.fma(p, r, simd.splat_f32(E0))
    p = simd.fma(p, r * r, r) + simd.splat_f32(np.float32(1))
    return p * power_of_two(simd, shifted)


@kernel_function
def exp_of_four(simd, x):
    """`exp` of a tuple of four; see `exp_of_four_not_positive`."""
    highest = simd.splat_f32(EXP_HIGHEST)
    return exp_of_four_not_positive(
        simd, (simd.minimum(highest, x[0]), simd.minimum(highest, x[1]), simd.minimum(highest, x[2]), simd.minimum(highest, x[3]))
    )


@kernel_function
def fma_four(simd, x, y, z):
    """fma(x[i], y[i], z) of two tuples of four vectors and a vector."""
    return simd.fma(x[0], y[0], z), simd.fma(x[1], y[1], z), simd.fma(x[2], y[2], z), simd.fma(x[3], y[3], z)


@kernel_function
def exp_of_four_not_positive(simd, x):
    """`exp_of_not_positive` of a tuple of four, step by step for all: four chains of operations are in flight, which LLVM would leave one after the
    other."""
    lowest = simd.splat_f32(EXP_LOWEST)
    x = simd.maximum(lowest, x[0]), simd.maximum(lowest, x[1]), simd.maximum(lowest, x[2]), simd.maximum(lowest, x[3])
    factor = simd.splat_f32(LOG2_E)
    shifted = x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor
    rounding = simd.splat_f32(ROUNDING)
    shifted = shifted[0] + rounding, shifted[1] + rounding, shifted[2] + rounding, shifted[3] + rounding
    n = shifted[0] - rounding, shifted[1] - rounding, shifted[2] - rounding, shifted[3] - rounding
    high = simd.splat_f32(-LN2_HIGH)
    r = simd.fma(n[0], high, x[0]), simd.fma(n[1], high, x[1]), simd.fma(n[2], high, x[2]), simd.fma(n[3], high, x[3])
    low = simd.splat_f32(-LN2_LOW)
    r = simd.fma(n[0], low, r[0]), simd.fma(n[1], low, r[1]), simd.fma(n[2], low, r[2]), simd.fma(n[3], low, r[3])
    last = simd.splat_f32(E4)
    p = fma_four(simd, (last, last, last, last), r, simd.splat_f32(E3))
    p = fma_four(simd, p, r, simd.splat_f32(E2))
    p = fma_four(simd, p, r, simd.splat_f32(E1))
    p = fma_four(simd, p, r, simd.splat_f32(E0))
    square = r[0] * r[0], r[1] * r[1], r[2] * r[2], r[3] * r[3]
    p = simd.fma(p[0], square[0], r[0]), simd.fma(p[1], square[1], r[1]), simd.fma(p[2], square[2], r[2]), simd.fma(p[3], square[3], r[3])
    one = simd.splat_f32(np.float32(1))
    p = p[0] + one, p[1] + one, p[2] + one, p[3] + one
    power = power_of_two(simd, shifted[0]), power_of_two(simd, shifted[1]), power_of_two(simd, shifted[2]), power_of_two(simd, shifted[3])
    return p[0] * power[0], p[1] * power[1], p[2] * power[2], p[3] * power[3]


@kernel_function
def tanh(simd, x):
    """x + x^3 P(x^2) below 0.625, else 1 - 2 / (exp(2|x|) + 1) with the sign of x; relative error below 3e-7."""
    one = simd.splat_f32(np.float32(1))
    square = x * x
    p = simd.fma(simd.splat_f32(T4), square, simd.splat_f32(T3))
    p = simd.fma(p, square, simd.splat_f32(T2))
    p = simd.fma(p, square, simd.splat_f32(T1))
    p = simd.fma(p, square, simd.splat_f32(T0))
    small = simd.fma(p * square, x, x)
    magnitude = simd.absolute(x)
    large = one - simd.splat_f32(np.float32(2)) / (exp(simd, magnitude + magnitude) + one)
    return simd.select_less(magnitude, simd.splat_f32(TANH_SMALL), small, simd.copy_sign(large, x))


@kernel_function
def erf(simd, x):
    """x + x S(x^2) below 0.9375, else 1 - exp(t L(t)) with t = min(|x|, 4) and the sign of x; relative error below 3e-7."""
    one = simd.splat_f32(np.float32(1))
    square = x * x
    p = simd.fma(simd.splat_f32(S5), square, simd.splat_f32(S4))
    p = simd.fma(p, square, simd.splat_f32(S3))
    p = simd.fma(p, square, simd.splat_f32(S2))
    p = simd.fma(p, square, simd.splat_f32(S1))
    p = simd.fma(p, square, simd.splat_f32(S0))
    small = simd.fma(p, x, x)
    magnitude = simd.absolute(x)
    t = simd.minimum(simd.splat_f32(ERF_LARGE), magnitude)
    q = simd.fma(simd.splat_f32(L5), t, simd.splat_f32(L4))
    q = simd.fma(q, t, simd.splat_f32(L3))
    q = simd.fma(q, t, simd.splat_f32(L2))
    q = simd.fma(q, t, simd.splat_f32(L1))
    q = simd.fma(q, t, simd.splat_f32(L0))
    large = one - exp(simd, q * t)
    return simd.select_less(magnitude, simd.splat_f32(ERF_SMALL), small, simd.copy_sign(large, x))


@kernel_function
def cosine_sine(simd, angle):
    """(cos, sin) as float32 of float64 angles of magnitude below 2^20; absolute error below 1e-7.

    Everything in float64 with separate multiplication and addition: n = round(angle * 2/pi), r = (angle - n * high) - n * low (Cody and Waite),
    Taylor polynomials up to r^15 and r^16 by Horner in r^2, then the quadrant n mod 4.
    """
    n = simd.round_f64(angle * simd.splat_f64(TWO_OVER_PI))
    r = (angle - n * simd.splat_f64(HALF_PI_HIGH)) - n * simd.splat_f64(HALF_PI_LOW)
    z = r * r
    s = simd.splat_f64(SIN15) * z + simd.splat_f64(SIN13)
    s = s * z + simd.splat_f64(SIN11)
    s = s * z + simd.splat_f64(SIN9)
    s = s * z + simd.splat_f64(SIN7)
    s = s * z + simd.splat_f64(SIN5)
    s = s * z + simd.splat_f64(SIN3)
    s = s * z * r + r
    c = simd.splat_f64(COS16) * z + simd.splat_f64(COS14)
    c = c * z + simd.splat_f64(COS12)
    c = c * z + simd.splat_f64(COS10)
    c = c * z + simd.splat_f64(COS8)
    c = c * z + simd.splat_f64(COS6)
    c = c * z + simd.splat_f64(COS4)
    c = c * z + simd.splat_f64(COS2)
    c = c * z + simd.splat_f64(1.0)
    quadrant = simd.round_i32_from_f64(n)
    one = simd.splat_i32(1)
    swapped = simd.splat_i32(0) - (quadrant & one)
    kept = swapped ^ simd.splat_i32(-1)
    sine_bits = simd.bits_from_f32x16(simd.f32_from_f64(s))
    cosine_bits = simd.bits_from_f32x16(simd.f32_from_f64(c))
    cosine = (cosine_bits & kept) | (sine_bits & swapped)
    sine = (sine_bits & kept) | (cosine_bits & swapped)
    cosine = cosine ^ (((quadrant + one) & simd.splat_i32(2)) << 30)
    sine = sine ^ ((quadrant & simd.splat_i32(2)) << 30)
    return simd.f32x16_from_bits(cosine), simd.f32x16_from_bits(sine)

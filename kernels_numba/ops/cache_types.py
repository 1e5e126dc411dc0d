"""How keys and values are kept in the cache: members of the compile-time values `f16`, `f32`, `q8_0` and `q16_0`, which `caches` completes with the steps
of attention. The kernels of `pages` and `attention` call them.

`f16`, `f32`: per head of a page the keys transposed, [key_size][16], then the values, [16][value_size].
`q8_0`: codes of one byte in the same places, with a half-float scale for up to 32 dimensions of a position: int8 [key_size][16], scales
[groups][16], int8 [16][value_size], scales [16][groups]. The product of code and scale is exact in float32.
`q16_0`: codes of two bytes, pairs of which are multiplied at once: keys [key_size / 2][16][2], float32 scales [16], values [8][value_size][2], two positions
side by side, float32 scales [16]. Scales are float32 so that whatever is finite is held, and need no conversion. Computed with as integers, so the type has
`head_bytes`, `store_key`, `store_value` and `overflow` alone.

Members, which take the cache type itself behind `simd`: `head_bytes(size)` of the keys, or the values, of a head in a page; `key_scale(keys, dimension,
size)`, what `key` needs for the 16 dimensions from `dimension`; `key(keys, dimension, scale)`, float32 keys of a page's 16 positions; `value(values,
position, dimension, size)`, 16 dimensions of a position, `dimension` a multiple of 16; `store_key` and `store_value` (source, size, keys or values,
position, largest) round float32[size] and return the larger of `largest` and the bits of the magnitudes; `overflow`, the smallest bits of a magnitude
that the type does not hold; for prefetches, `element_bytes`, also the cache lines of 64 dimensions of a position, and `key_lines`, those of a page's
keys at 16 dimensions. Float types have `load`, `store` and `store_column`, 16 elements in a row or a page's line apart.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.ops.common import INFINITE, SMALLEST_SCALED
from kernels_numba.simd.function import kernel_function

PAGE_POSITIONS = 16
CACHE_TYPES = ("f16", "f32", "q8_0", "q16_0")
LARGEST_CODE = 32767
KEY_NORM = 46300
"""Of the codes of a query or a key: with their roundings below the square root of 2^31, so that (Cauchy, Schwarz) no sum of products leaves 32 bits."""
LARGEST_VALUE_CODE = 8191
"""Times 2^18, the largest sum of the codes of weights: below 2^31."""
GROUP = 32
"""Dimensions that share a scale."""
OVERFLOW_F16 = 0x477FF000  # 65520 rounds to infinity
OVERFLOW_Q8_0 = 0x4AFDF020  # 127 * 65520: its scale does


def head_bytes(cache_type: str, size: int) -> int:
    """Bytes of the keys, or of the values, of a head in a page."""
    if cache_type == "q8_0":
        return PAGE_POSITIONS * (size + 2 * -(-size // GROUP))
    if cache_type == "q16_0":
        return PAGE_POSITIONS * (2 * size + 4)
    return PAGE_POSITIONS * size * {"f16": 2, "f32": 4}[cache_type]


@kernel_function
def larger_magnitudes(simd, value, largest):
    return simd.maximum_i32(largest, simd.bits_from_f32x16(simd.absolute(value)))


@kernel_function
def bytes_float(simd, cache, size):
    return PAGE_POSITIONS * size * cache.element_bytes


@kernel_function
def key_scale_float(simd, cache, keys, dimension, size):
    """Nothing: `key_float` needs none."""
    return simd.splat_f32(np.float32(0))


@kernel_function
def key_float(simd, cache, keys, dimension, scale):
    return cache.load(simd, keys + PAGE_POSITIONS * dimension * cache.element_bytes)


@kernel_function
def value_float(simd, cache, values, position, dimension, size):
    return cache.load(simd, values + (position * size + dimension) * cache.element_bytes)


@kernel_function
def store_key_float(simd, cache, source, size, keys, position, largest):
    for dimension in range(0, size, 16):
        value = simd.load_f32x16(source + 4 * dimension)
        largest = larger_magnitudes(simd, value, largest)
        cache.store_column(simd, keys + (PAGE_POSITIONS * dimension + position) * cache.element_bytes, value)
    return largest


@kernel_function
def store_value_float(simd, cache, source, size, values, position, largest):
    for dimension in range(0, size, 16):
        value = simd.load_f32x16(source + 4 * dimension)
        largest = larger_magnitudes(simd, value, largest)
        cache.store(simd, values + (position * size + dimension) * cache.element_bytes, value)
    return largest


@kernel_function
def load_f16(simd, address):
    return simd.load_f16x16(address)


@kernel_function
def store_f16(simd, address, value):
    simd.store_f16x16(address, value)


@kernel_function
def store_column_f16(simd, address, value):
    simd.store_column_f16(address, value)


@kernel_function
def load_f32(simd, address):
    return simd.load_f32x16(address)


@kernel_function
def store_f32(simd, address, value):
    simd.store_f32x16(address, value)


@kernel_function
def store_column_f32(simd, address, value):
    simd.store_column_f32(address, value)


@kernel_function
def bytes_q8_0(simd, cache, size):
    return PAGE_POSITIONS * (size + 2 * ((size + GROUP - 1) // GROUP))


@kernel_function
def key_scale_q8_0(simd, cache, keys, dimension, size):
    return simd.load_f16x16(keys + PAGE_POSITIONS * (size + 2 * (dimension // GROUP)))


@kernel_function
def key_q8_0(simd, cache, keys, dimension, scale):
    return simd.f32_from_i32(simd.sign_extend_i8(simd.load_i8x16(keys + PAGE_POSITIONS * dimension))) * scale


@kernel_function
def value_q8_0(simd, cache, values, position, dimension, size):
    scale = simd.splat_f16(values + PAGE_POSITIONS * size + 2 * (position * ((size + GROUP - 1) // GROUP) + dimension // GROUP))
    return simd.f32_from_i32(simd.sign_extend_i8(simd.load_i8x16(values + position * size + dimension))) * scale


@kernel_function
def scale_q8_0(simd, magnitudes):
    """(scale, its inverse) of a group, from the bits of its magnitudes: largest / 127 and 127 / largest, 0 below 2^-100."""
    largest = simd.maximum_lanes_i32(magnitudes)
    scale = np.float32(0)
    inverse = np.float32(0)
    if largest >= SMALLEST_SCALED:
        magnitude = simd.f32_from_bits(largest)
        scale = magnitude / np.float32(127)
        inverse = np.float32(127) / magnitude
    return scale, simd.splat_f32(inverse)


@kernel_function
def group_magnitudes(simd, source, dimension, size):
    """Bits of the larger magnitudes of the two halves of the group from `dimension`; the last group may have one."""
    magnitudes = larger_magnitudes(simd, simd.load_f32x16(source + 4 * dimension), simd.splat_i32(0))
    if dimension + 16 < size:
        magnitudes = larger_magnitudes(simd, simd.load_f32x16(source + 4 * dimension + 64), magnitudes)
    return magnitudes


@kernel_function
def store_key_q8_0(simd, cache, source, size, keys, position, largest):
    for dimension in range(0, size, GROUP):
        magnitudes = group_magnitudes(simd, source, dimension, size)
        largest = simd.maximum_i32(largest, magnitudes)
        scale, inverse = scale_q8_0(simd, magnitudes)
        simd.store_f16(keys + PAGE_POSITIONS * (size + 2 * (dimension // GROUP)) + 2 * position, scale)
        for half in range(dimension, min(dimension + GROUP, size), 16):
            codes = simd.round_i32(simd.load_f32x16(source + 4 * half) * inverse)
            simd.store_column_i8(keys + PAGE_POSITIONS * half + position, codes)
    return largest


@kernel_function
def store_value_q8_0(simd, cache, source, size, values, position, largest):
    scales = values + PAGE_POSITIONS * size + 2 * position * ((size + GROUP - 1) // GROUP)
    for dimension in range(0, size, GROUP):
        magnitudes = group_magnitudes(simd, source, dimension, size)
        largest = simd.maximum_i32(largest, magnitudes)
        scale, inverse = scale_q8_0(simd, magnitudes)
        simd.store_f16(scales + 2 * (dimension // GROUP), scale)
        for half in range(dimension, min(dimension + GROUP, size), 16):
            codes = simd.round_i32(simd.load_f32x16(source + 4 * half) * inverse)
            simd.store_i8x16(values + position * size + half, simd.truncate_i8(codes))
    return largest


@kernel_function
def bytes_q16_0(simd, cache, size):
    return PAGE_POSITIONS * (2 * size + 4)


@kernel_function
def q16_norm_scale(simd, source, size, factor):
    """(scale, its inverse in all lanes) of the codes of float32[size] * factor: their norm is at most KEY_NORM and none is larger than LARGEST_CODE. 0 where
    nothing is larger than 2^-100."""
    magnitudes = simd.splat_i32(0)
    for dimension in range(0, size, 16):
        magnitudes = larger_magnitudes(simd, simd.load_f32x16(source + 4 * dimension) * factor, magnitudes)
    largest = simd.maximum_lanes_i32(magnitudes)
    scale = np.float32(0)
    inverse = np.float32(0)
    if largest >= SMALLEST_SCALED:
        magnitude = simd.f32_from_bits(largest)
        reciprocal = np.float32(1) / magnitude
        squares = simd.splat_f32(np.float32(0))
        for dimension in range(0, size, 16):
            part = simd.load_f32x16(source + 4 * dimension) * factor * simd.splat_f32(reciprocal)
            squares = simd.fma(part, part, squares)
        code = min(np.float32(LARGEST_CODE), np.float32(KEY_NORM) / simd.sqrt_f32(simd.sum_lanes(squares)))
        scale = magnitude / code
        inverse = code * reciprocal
    return scale, simd.splat_f32(inverse)


@kernel_function
def store_key_q16_0(simd, cache, source, size, keys, position, largest):
    one = simd.splat_f32(np.float32(1))
    scale, inverse = q16_norm_scale(simd, source, size, one)
    simd.store_f32(keys + PAGE_POSITIONS * 2 * size + 4 * position, scale)
    for dimension in range(0, size, 16):
        key = simd.load_f32x16(source + 4 * dimension)
        largest = larger_magnitudes(simd, key, largest)
        simd.store_column_2xi16(keys + PAGE_POSITIONS * 2 * dimension + 4 * position, simd.round_i32(key * inverse))
    return largest


@kernel_function
def store_value_q16_0(simd, cache, source, size, values, position, largest):
    magnitudes = simd.splat_i32(0)
    for dimension in range(0, size, 16):
        magnitudes = larger_magnitudes(simd, simd.load_f32x16(source + 4 * dimension), magnitudes)
    magnitude = simd.maximum_lanes_i32(magnitudes)
    scale = np.float32(0)
    inverse = np.float32(0)
    if magnitude >= SMALLEST_SCALED:
        scale = simd.f32_from_bits(magnitude) / np.float32(LARGEST_VALUE_CODE)
        inverse = np.float32(LARGEST_VALUE_CODE) / simd.f32_from_bits(magnitude)
    simd.store_f32(values + PAGE_POSITIONS * 2 * size + 4 * position, scale)
    place = values + position // 2 * 4 * size + 2 * (position % 2)
    for dimension in range(0, size, 16):
        codes = simd.round_i32(simd.load_f32x16(source + 4 * dimension) * simd.splat_f32(inverse))
        simd.store_i16_apart(place + 4 * dimension, codes)
    return simd.maximum_i32(largest, magnitudes)


FLOAT = {
    "head_bytes": bytes_float, "key_scale": key_scale_float, "key": key_float, "value": value_float,
    "store_key": store_key_float, "store_value": store_value_float,
}  # fmt: skip
F16 = {
    **FLOAT, "element_bytes": 2, "key_lines": 8, "overflow": OVERFLOW_F16, "load": load_f16, "store": store_f16, "store_column": store_column_f16,
}  # fmt: skip
F32 = {
    **FLOAT, "element_bytes": 4, "key_lines": 16, "overflow": INFINITE, "load": load_f32, "store": store_f32, "store_column": store_column_f32,
}  # fmt: skip
Q8_0 = {
    "element_bytes": 1, "key_lines": 4, "overflow": OVERFLOW_Q8_0, "head_bytes": bytes_q8_0, "key_scale": key_scale_q8_0, "key": key_q8_0, "value": value_q8_0,
    "store_key": store_key_q8_0, "store_value": store_value_q8_0,
}  # fmt: skip
Q16_0 = {"overflow": INFINITE, "head_bytes": bytes_q16_0, "store_key": store_key_q16_0, "store_value": store_value_q16_0}

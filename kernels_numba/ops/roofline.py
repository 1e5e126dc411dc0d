"""Kernels that measure the machine instead of a model: the memory's read bandwidth in several patterns, and the peak of int8 products.

They are written like any other kernel, so that every instruction set is compared with what it could do itself: of products, what its vectors could do.
Results are stored only so that no compiler can leave the work out.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.ops.common import share_start, word
from kernels_numba.ops.linear import PREFETCH_BYTES
from kernels_numba.simd.function import Constant, kernel_function

READ_OPERANDS = ("buffer", "bytes", "results")  # results: 64 bytes a worker
INT8_OPERANDS = ("rounds", "operands", "results")  # operands: 512 bytes that are read; results: 64 bytes a worker

READ_UNIT = 4096
"""Bytes in which the buffer is shared out; the rest of it is not read."""

MULTIPLY_ADDS_PER_DOT = 64
"""Of one `dot_u7i8` of 16 lanes."""


@kernel_function
def sum_of_block(simd: Any, address: int, total: Any) -> Any:
    """512 bytes added to `total`, in eight loads of a cache line each."""
    first = simd.load_i32x16(address) + simd.load_i32x16(address + 64)
    second = simd.load_i32x16(address + 128) + simd.load_i32x16(address + 192)
    third = simd.load_i32x16(address + 256) + simd.load_i32x16(address + 320)
    fourth = simd.load_i32x16(address + 384) + simd.load_i32x16(address + 448)
    return total + ((first + second) + (third + fourth))


@kernel_function
def read(simd: Any, streams: Constant, prefetch: Constant, operands: int, worker: int, workers: int) -> None:
    """Reads a worker's contiguous share forward in `streams` (1 or 4) equal parts at once, 512 bytes of each in turn."""
    buffer = word(simd, operands, 0)
    units = word(simd, operands, 1) // (READ_UNIT * streams)
    first = share_start(simd, units, worker, workers) * READ_UNIT
    size = share_start(simd, units, worker + 1, workers) * READ_UNIT - first
    address = buffer + first * streams
    total = simd.splat_i32(0)
    second = total
    third = total
    fourth = total
    for offset in range(0, size, 512):
        at = address + offset
        if prefetch:
            for stream in range(streams):
                simd.prefetch(at + stream * size + PREFETCH_BYTES, 8)
        total = sum_of_block(simd, at, total)
        if streams == 4:
            second = sum_of_block(simd, at + size, second)
            third = sum_of_block(simd, at + 2 * size, third)
            fourth = sum_of_block(simd, at + 3 * size, fourth)
    simd.store_i32x16(word(simd, operands, 2) + 64 * worker, (total + second) + (third + fourth))


@kernel_function
def read_one_stream(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Every worker reads forward, as the hardware's own prefetcher likes it."""
    read(simd, 1, 0, operands, worker, workers)


@kernel_function
def read_one_stream_prefetched(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    read(simd, 1, 1, operands, worker, workers)


@kernel_function
def read_four_streams(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    read(simd, 4, 0, operands, worker, workers)


@kernel_function
def read_four_streams_prefetched(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    read(simd, 4, 1, operands, worker, workers)


@kernel_function
def int8_products(simd: Any, large: Constant, operands: int, worker: int) -> None:
    """`rounds` rounds of 2 x 2 dot products with an accumulator each, or of 4 x 3 if `large`.

    The operands come from the first-level cache once a round. The store keeps the compiler from taking the products, always the same, out of the loop.
    """
    rounds = word(simd, operands, 0)
    source = word(simd, operands, 1)
    result = word(simd, operands, 2) + 64 * worker
    a = simd.splat_i32(0)
    b, c, d, e, f, g, h, i, j, k, m = a, a, a, a, a, a, a, a, a, a, a
    for index in range(rounds):
        simd.store_i64(result, index)
        first = simd.load_i8x64(source)
        second = simd.load_i8x64(source + 64)
        x = simd.load_i8x64(source + 256)
        y = simd.load_i8x64(source + 320)
        a = simd.dot_u7i8(a, first, x)
        b = simd.dot_u7i8(b, first, y)
        c = simd.dot_u7i8(c, second, x)
        d = simd.dot_u7i8(d, second, y)
        if large:
            third = simd.load_i8x64(source + 128)
            fourth = simd.load_i8x64(source + 192)
            z = simd.load_i8x64(source + 384)
            e = simd.dot_u7i8(e, first, z)
            f = simd.dot_u7i8(f, second, z)
            g = simd.dot_u7i8(g, third, x)
            h = simd.dot_u7i8(h, third, y)
            i = simd.dot_u7i8(i, third, z)
            j = simd.dot_u7i8(j, fourth, x)
            k = simd.dot_u7i8(k, fourth, y)
            m = simd.dot_u7i8(m, fourth, z)
    simd.store_i32x16(result, ((a + b) + (c + d)) + ((e + f) + (g + h)) + ((i + j) + (k + m)))


@kernel_function
def int8_peak_small(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Four accumulators, which the registers of every instruction set hold."""
    int8_products(simd, 0, operands, worker)


@kernel_function
def int8_peak_large(simd: Any, operands: int, step: int, worker: int, workers: int) -> None:
    """Twelve accumulators hide a longer latency where there are registers for them."""
    int8_products(simd, 1, operands, worker)

"""Keys and values in pages: the layout of a store, and the kernel that writes it. Attention reads it.

A page holds 16 positions of every kv head of a store, one head after the other; a head's part is its keys, transposed, then its values, as the cache
type lays them out (`cache_types`). Page p of a store is at store + p * page_bytes; a sequence's page table says which pages are its own.
"""

from __future__ import annotations

from kernels_numba.executor.step import CACHE_GROUPS, PAGE_TABLES, ROW_SEQUENCES, ROWS, SLOTS, STATUS, STATUS_NON_FINITE
from kernels_numba.ops.cache_types import PAGE_POSITIONS, head_bytes
from kernels_numba.ops.common import share_of_heads, word
from kernels_numba.simd.function import kernel_function

STORE_KEYS_VALUES_OPERANDS = (
    "keys", "keys_stride", "values", "values_stride", "store", "page_bytes", "group", "kv_heads", "key_size", "value_size",
)  # fmt: skip


def page_bytes(cache_type: str, kv_heads: int, key_size: int, value_size: int) -> int:
    """Bytes of a page of a store."""
    return kv_heads * (head_bytes(cache_type, key_size) + head_bytes(cache_type, value_size))


@kernel_function
def page_address(simd, pages, page, store, bytes_per_page):
    """Address of a sequence's page number `page`."""
    return store + simd.load_i32(pages + 4 * page) * bytes_per_page


@kernel_function
def page_table(simd, step, sequence, group):
    return simd.load_i64(simd.load_i64(step + PAGE_TABLES) + 8 * (sequence * simd.load_i64(step + CACHE_GROUPS) + group))


@kernel_function
def store_keys_values(simd, cache, operands, step, worker, workers):
    """Writes the keys and values of the step's rows into their pages, rounded to the cache type.

    Sets the step's status to STATUS_NON_FINITE for one that the type does not hold: as an infinity it could end as a weight of 0, unseen.
    """
    keys = word(simd, operands, 0)
    keys_stride = word(simd, operands, 1)
    values = word(simd, operands, 2)
    values_stride = word(simd, operands, 3)
    store = word(simd, operands, 4)
    bytes_per_page = word(simd, operands, 5)
    group = word(simd, operands, 6)
    kv_heads = word(simd, operands, 7)
    key_size = word(simd, operands, 8)
    value_size = word(simd, operands, 9)
    rows = simd.load_i64(step + ROWS)
    slots = simd.load_i64(step + SLOTS)
    sequences = simd.load_i64(step + ROW_SEQUENCES)
    values_at = cache.head_bytes(simd, cache, key_size)
    bytes_per_head = values_at + cache.head_bytes(simd, cache, value_size)
    largest = simd.splat_i32(0)  # bits of magnitudes, which order like the numbers, NaN above all
    first, count, start, end = share_of_heads(simd, step, 0, rows, kv_heads, worker, workers)
    for unit in range(start, end):
        head = unit // count
        row = first + unit - head * count
        slot = simd.load_i32(slots + 4 * row)
        pages = page_table(simd, step, simd.load_i32(sequences + 4 * row), group)
        position = slot % PAGE_POSITIONS
        page = page_address(simd, pages, slot // PAGE_POSITIONS, store, bytes_per_page) + head * bytes_per_head
        largest = cache.store_key(simd, cache, keys + row * keys_stride + 4 * head * key_size, key_size, page, position, largest)
        largest = cache.store_value(simd, cache, values + row * values_stride + 4 * head * value_size, value_size, page + values_at, position, largest)
    if simd.maximum_lanes_i32(largest) >= cache.overflow and simd.load_i64(step + STATUS) == 0:
        simd.store_i64(step + STATUS, STATUS_NON_FINITE)

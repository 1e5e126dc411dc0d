"""Small kernels for the run loop's tests."""

from __future__ import annotations

from kernels_numba.executor.step import PASSES_DONE, PASSES_LEFT, STATUS
from kernels_numba.executor.store import KernelName
from kernels_numba.simd.function import kernel_function


@kernel_function
def add_own(simd, operands, step, worker, workers):
    """counts[worker] += 1"""
    address = simd.load_i64(operands) + 64 * worker
    simd.store_i64(address, simd.load_i64(address) + 1)
    return 0


@kernel_function
def prefix(simd, operands, step, worker, workers):
    """target[i] = source[(i * 7 + 1) % n] * 3 + i modulo 2^32, by shares: every share reads what other workers wrote in the entry before."""
    source = simd.load_i64(operands)
    target = simd.load_i64(operands + 8)
    count = simd.load_i64(operands + 16)
    for i in range(count * worker // workers, count * (worker + 1) // workers):
        simd.store_i64(target + 8 * i, (simd.load_i64(source + 8 * ((i * 7 + 1) % count)) * 3 + i) & 0xFFFFFFFF)
    return 0


@kernel_function
def fault(simd, operands, step, worker, workers):
    """The worker named by the operand, or the last if there are fewer, reports status 1."""
    if worker == min(simd.load_i64(operands), workers - 1):
        simd.store_i64(step + STATUS, 1)
    return 0


@kernel_function
def count_pass(simd, operands, step, worker, workers):
    """Counts a pass, and after as many as the operand says the last."""
    if worker == 0:
        done = simd.load_i64(step + PASSES_DONE) + 1
        left = simd.load_i64(step + PASSES_LEFT) - 1
        if done >= simd.load_i64(operands):
            left = 0
        simd.store_i64(step + PASSES_DONE, done)
        simd.store_i64(step + PASSES_LEFT, left)
    return 0


@kernel_function
def halve(simd, operands, step, worker, workers):
    """values[worker] (float32) *= operand 1 (float32)"""
    address = simd.load_i64(operands) + 64 * worker
    simd.store_f32(address, simd.load_f32(address) * simd.load_f32(operands + 8))
    return 0


@kernel_function
def mode(simd, operands, step, worker, workers):
    """Sets the floating-point mode to the operand, unless that is -1; returns the one before. Called directly."""
    before = simd.floating_point_mode()
    if operands != -1:
        simd.set_floating_point_mode(operands)
    return before


@kernel_function
def busy(simd, operands, step, worker, workers):
    """Counts to the operand, as slowly as a spin: worker 0 once, the next three times as long, ..."""
    total = 0
    for _ in range(simd.load_i64(operands) * (1 + 2 * worker)):
        simd.pause()
        total += 1
    return total


@kernel_function
def note(simd, operands, step, worker, workers):
    """table[worker] = (how many calls there were before, workers). Operands: the table, the counter of calls."""
    place = simd.load_i64(operands) + 16 * worker
    simd.store_i64(place, simd.atomic_add(simd.load_i64(operands + 8), 1))
    simd.store_i64(place + 8, workers)
    return 0


KERNELS = (add_own, prefix, fault, count_pass, halve, mode, busy, note)


def name_of(function) -> KernelName:
    return KernelName("tests", function.name)

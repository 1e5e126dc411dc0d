"""Idioms of the run loop: atomics, calls by address, the floating-point mode. Part of the portable target; a CPU family overrides pause and mode.

Atomics are sequentially consistent: the run loop's sleep and wake pairs (store mine, then look at yours) need a total order, and on both families
the loads of a spin loop cost the same as with acquire order (mov; ldar). Addresses of atomics are multiples of 8.
"""

from __future__ import annotations

from llvmlite import ir

from kernels_numba.simd.vectors import ELEMENTS
from kernels_numba.simd.vocabulary import Emission, idiom

I64 = ELEMENTS["i64"]


@idiom("i64(i64, i64)")
def atomic_add(e: Emission, address: ir.Value, value: ir.Value) -> ir.Value:
    """Adds to the int64 at the address; returns what was there before."""
    return e.builder.atomic_rmw("add", e.pointer(address, I64), value, "seq_cst")


@idiom("i64(i64)")
def atomic_load(e: Emission, address: ir.Value) -> ir.Value:
    return e.builder.load_atomic(e.pointer(address, I64), "seq_cst", 8)


@idiom("void(i64, i64)")
def atomic_store(e: Emission, address: ir.Value, value: ir.Value) -> None:
    e.builder.store_atomic(value, e.pointer(address, I64), "seq_cst", 8)


@idiom("void()")
def pause(e: Emission) -> None:
    """A hint that the thread spins. May do nothing."""


@idiom("i64(i64, i64, i64, i64, i64)")
def call_kernel(e: Emission, kernel: ir.Value, operands: ir.Value, step: ir.Value, worker: ir.Value, workers: ir.Value) -> ir.Value:
    """Calls the kernel at the address `kernel`; its result."""
    return _call(e, kernel, operands, step, worker, workers)


@idiom("i64(i64, i64, i64, i64, i64, i64)")
def call_system(e: Emission, function: ir.Value, number: ir.Value, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value) -> ir.Value:
    """Linux system call `number` through the C library's `syscall`, whose address is `function`."""
    return _call(e, function, number, a, b, c, d)


@idiom("i64(i64, i64)")
def call_clock(e: Emission, function: ir.Value, scratch: ir.Value) -> ir.Value:
    """Nanoseconds of the monotonic clock, through the C library's `clock_gettime`, whose address is `function`; `scratch` is 16 bytes to write to."""
    _call(e, function, I64(1), scratch)
    seconds = e.builder.load(e.pointer(scratch, I64), align=8)
    nanoseconds = e.builder.load(e.pointer(scratch, I64, 8), align=8)
    return e.builder.add(e.builder.mul(seconds, I64(1_000_000_000)), nanoseconds)


@idiom("i64()")
def floating_point_mode(e: Emission) -> ir.Value:
    """The thread's floating-point control word. 0 where a family does not override it."""
    return I64(0)


@idiom("void(i64)")
def set_floating_point_mode(e: Emission, mode: ir.Value) -> None:
    """Sets the thread's floating-point control word. Nothing where a family does not override it."""


@idiom("i64()")
def plain_floating_point_mode(e: Emission) -> ir.Value:
    """The control word for IEEE arithmetic: round to nearest with ties to even, subnormals kept, no traps."""
    return I64(0)


def _call(e: Emission, function: ir.Value, *values: ir.Value) -> ir.Value:
    kind = ir.FunctionType(I64, [value.type for value in values])
    return e.builder.call(e.builder.inttoptr(function, kind.as_pointer()), values)

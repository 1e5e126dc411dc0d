"""The kernel compiler: errors that say where, objects that need nothing from outside, compile-time values and constants."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from kernels_numba.executor.compile import CompileTimeValue, KernelCompileError, assembly, front_end, undefined_symbols
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.simd.function import Constant, KernelFunction, kernel_function
from kernels_numba.simd.levels import LEVELS, Level, level_by_name
from tests.support.kernels import load_objects, lowest_level


def compiled(function: KernelFunction, *tags: CompileTimeValue, level: Level | None = None) -> bytes:
    return front_end(level or lowest_level()).compile(f"test_{function.name}", function, tags, 4)


def call(function: KernelFunction, *tags: CompileTimeValue, operands: tuple[int, int, int, int] = (0, 0, 0, 0)) -> int:
    [address] = load_objects({f"test_{function.name}": compiled(function, *tags)})
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(address)(*operands)
    return result


# -- errors


@kernel_function
def loads_with_two_addresses(simd, address):
    return simd.load_f32(address, address)


@kernel_function
def calls_a_wrong_function(simd, operands, step, worker, workers):
    loads_with_two_addresses(simd, operands)
    return 0


@kernel_function
def asks_for_an_unknown_idiom(simd, operands, step, worker, workers):
    return simd.no_such_idiom(operands)


@kernel_function
def calls_with_too_few(simd, operands, step, worker, workers):
    loads_with_two_addresses(simd)
    return 0


@kernel_function
def asks_for_an_unknown_member(simd, format, operands, step, worker, workers):
    return format.no_such_member


@kernel_function
def gives_a_float_for_an_address(simd, operands, step, worker, workers):
    return simd.load_i64(np.float32(1))


@pytest.mark.parametrize(
    ("function", "named", "reason"),
    [
        (calls_a_wrong_function, "loads_with_two_addresses", r"simd\.load_f32\(int64, int64\) does not fit \(i64\)"),
        (asks_for_an_unknown_idiom, "asks_for_an_unknown_idiom", "no_such_idiom"),
        (calls_with_too_few, "calls_with_too_few", "takes simd, address; it was given 1 arguments"),
        (gives_a_float_for_an_address, "gives_a_float_for_an_address", r"simd\.load_i64\(float32\) does not fit \(i64\)"),
    ],
    ids=lambda value: value.name if isinstance(value, KernelFunction) else None,
)
def test_a_wrong_kernel_is_named_with_file_and_line(function: KernelFunction, named: str, reason: str) -> None:
    with pytest.raises(KernelCompileError, match=reason) as caught:
        compiled(function)
    message = str(caught.value)
    source = {entry.name: entry for entry in (function, loads_with_two_addresses)}[named].python.__code__
    assert f"{__name__}.{named} ({__file__}, line " in message and lowest_level().name in message
    line = int(message.split("line ")[1].split(")")[0])
    assert source.co_firstlineno < line <= source.co_firstlineno + 3
    assert caught.value.__cause__ is not None
    assert "\x1b" not in message and "\n" not in message


def test_a_wrong_member_of_a_compile_time_value_is_named() -> None:
    with pytest.raises(KernelCompileError, match=r"no_such_member.*tag.*Q9_9"):
        compiled(asks_for_an_unknown_member, CompileTimeValue("Q9_9", {"one": 1}))


def test_the_compiler_works_after_a_failure() -> None:
    with pytest.raises(KernelCompileError):
        compiled(calls_a_wrong_function)
    assert call(returns_forty_two) == 42


def test_a_kernel_function_is_not_for_python() -> None:
    with pytest.raises(TypeError, match="cannot be called from Python"):
        returns_forty_two(None, 0, 0, 0, 1)


@kernel_function
def returns_forty_two(simd, operands, step, worker, workers):
    return 42


# -- no symbol from outside


@kernel_function
def calls_libm(simd, operands, step, worker, workers):
    simd.store_f32(operands, np.float32(math.erf(simd.f32_from_i64(worker))))
    return 0


@kernel_function
def calls_libm_by_way_of_llvm(simd, operands, step, worker, workers):
    """LLVM has an intrinsic for it that becomes a call of `sinf` only when code is emitted."""
    simd.store_f32(operands, np.float32(math.sin(simd.f32_from_i64(worker))))
    return 0


@pytest.mark.parametrize("level", ["x86_avx2", "arm_neon"])
@pytest.mark.parametrize(("function", "symbol"), [(calls_libm, "erff"), (calls_libm_by_way_of_llvm, "sinf")])
def test_a_kernel_that_calls_an_external_function_is_refused(level: str, function: KernelFunction, symbol: str) -> None:
    with pytest.raises(KernelCompileError, match=rf"test_{function.name} refers to {symbol}, which no object provides"):
        compiled(function, level=level_by_name(level))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_objects_of_every_level_define_their_symbol_and_need_none(level: Level) -> None:
    code = compiled(returns_forty_two, level=level)
    assert code[:4] == b"\x7fELF" and b"test_returns_forty_two\0" in code
    assert undefined_symbols(code) == []


# -- compile-time values and constants


@kernel_function
def twice(simd, value):
    return 2 * value


@kernel_function
def thrice(simd, value):
    return 3 * value


@kernel_function
def by_tag(simd, format, operands, step, worker, workers):
    if format.negative:
        return -format.factor(simd, operands + format.offset)
    return format.factor(simd, operands + format.offset)


def test_members_of_a_compile_time_value_select_code() -> None:
    one = CompileTimeValue("one", {"factor": twice, "offset": 5, "negative": False})
    two = CompileTimeValue("two", {"factor": thrice, "offset": 7, "negative": True})
    assert call(by_tag, one, operands=(10, 0, 0, 0)) == 30
    assert call(by_tag, two, operands=(10, 0, 0, 0)) == -51


@kernel_function
def tile_of(simd, width: Constant, address):
    return simd.tile_zero(width)


@kernel_function
def tile_of_a_number_known_at_run_time(simd, width, address):
    return simd.tile_zero(width)


@kernel_function
def with_constants(simd, operands, step, worker, workers):
    zero = simd.splat_f32(np.float32(0))
    simd.tile_store(tile_of(simd, 1, operands), 1, zero, operands, 64, 0, 0)
    simd.tile_store(tile_of(simd, 4, operands), workers, zero, operands, 64, 0, 0)
    return 7


@kernel_function
def without_constants(simd, operands, step, worker, workers):
    zero = simd.splat_f32(np.float32(0))
    simd.tile_store(tile_of_a_number_known_at_run_time(simd, 1, operands), 1, zero, operands, 64, 0, 0)
    return 7


def test_a_constant_parameter_keeps_its_number_and_others_do_not() -> None:
    memory = np.full(16 * 3, 9, np.float32)
    assert call(with_constants, operands=(memory.ctypes.data, 0, 0, 2)) == 7
    assert (memory[:32] == 0).all() and (memory[32:] == 9).all()
    with pytest.raises(KernelCompileError, match=r"tile_of_a_number_known_at_run_time .*simd\.tile_zero\(int64\) does not fit"):
        compiled(without_constants)


def test_assembly_is_of_the_level_asked_for() -> None:
    assert "ret" in assembly(level_by_name("arm_dotprod"), "test_returns", returns_forty_two)
    assert "retq" in assembly(level_by_name("x86_avx2"), "test_returns", returns_forty_two)


def test_a_kernel_that_does_not_exist_is_an_error_at_once() -> None:
    with pytest.raises(AttributeError, match="no_such_kernel"):
        KernelStore(lowest_level(), None).load([KernelName("ops.elementwise", "no_such_kernel")])


@kernel_function
def calls_what_numba_wrote_in_python(simd, operands, step, worker, workers):
    return max(operands, step)


def test_a_switch_for_debugging_ones_own_functions_does_not_reach_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """`max` of integers is a Python function of Numba's, compiled where it is called."""
    from numba.core import config

    monkeypatch.setattr(config, "DISABLE_JIT", 1)  # what NUMBA_DISABLE_JIT=1 sets
    assert call(calls_what_numba_wrote_in_python, operands=(3, 8, 0, 0)) == 8
    assert config.DISABLE_JIT == 1

"""What kernels compile to: the instructions that a level is there for, and no call of anything."""

from __future__ import annotations

import re

import pytest

from kernels_numba.executor.compile import assembly
from kernels_numba.ops.activation import activation, activation_quantize
from kernels_numba.ops.attention import attention
from kernels_numba.ops.elementwise import check_logits, softcap
from kernels_numba.ops.norm import rms_norm, rms_norm_quantize
from kernels_numba.ops.pages import store_keys_values
from kernels_numba.ops.quantize import quantize
from kernels_numba.ops.rope import rope, rope_table
from kernels_numba.ops.screen import bound_logits, refine_bounds
from kernels_numba.ops.tags import resolve_tag
from kernels_numba.simd.function import KernelFunction, kernel_function
from kernels_numba.simd.levels import LEVELS, level_by_name

CALLS = {"x86_64": r"\bcall[ql]?\b", "aarch64": r"\b(bl|blr)\b"}
KERNELS: list[tuple[KernelFunction, tuple[str, ...]]] = [
    (attention, ("f16",)), (attention, ("q8_0",)), (attention, ("q16_0",)),
    (store_keys_values, ("f16",)), (store_keys_values, ("q8_0",)), (store_keys_values, ("q16_0",)),
    (rms_norm, ()), (rms_norm_quantize, ()), (quantize, ()),
    (rope_table, ()), (rope, ("halves",)), (rope, ("neighbours",)), (activation, ("gelu_erf",)), (activation_quantize, ("silu",)),
    (softcap, ()), (check_logits, ()), (bound_logits, ("q8_0_upper",)), (refine_bounds, ("q8_0_planes",)),
]  # fmt: skip


def compiled(level: str, function: KernelFunction, tags: tuple[str, ...] = ()) -> str:
    return assembly(level_by_name(level), "kernel", function, tuple(resolve_tag(tag) for tag in tags))


@kernel_function
def dot(simd, operands, step, worker, workers):
    simd.store_i32x16(step, simd.dot_u8i8(simd.load_i32x16(step), simd.load_i8x64(operands), simd.load_i8x64(operands + 64)))


@kernel_function
def multiply_add(simd, operands, step, worker, workers):
    simd.store_f32x16(step, simd.fma(simd.load_f32x16(operands), simd.load_f32x16(operands + 64), simd.load_f32x16(step)))


@kernel_function
def multiply_then_add(simd, operands, step, worker, workers):
    simd.store_f32x16(step, simd.load_f32x16(operands) * simd.load_f32x16(operands + 64) + simd.load_f32x16(step))


@kernel_function
def widen(simd, operands, step, worker, workers):
    simd.store_f32x16(step, simd.load_f16x16(operands))


@pytest.mark.parametrize(
    ("level", "function", "instruction", "registers"),
    [
        ("x86_avx512vnni", dot, "vpdpbusd", "zmm"),
        ("x86_avx512vnni", multiply_add, r"vfmadd\w*ps", "zmm"),
        ("x86_avx512vnni", widen, "vcvtph2ps", "zmm"),
        ("x86_avx2", multiply_add, r"vfmadd\w*ps", "ymm"),
        ("x86_avx2", widen, "vcvtph2ps", "ymm"),
        ("arm_neon", multiply_add, "fmla", "v"),
        ("arm_neon", widen, "fcvtl", "v"),
        ("arm_dotprod", multiply_add, "fmla", "v"),
    ],
)
def test_idioms_become_instructions(level: str, function: KernelFunction, instruction: str, registers: str) -> None:
    assert re.search(rf"\b{instruction}\b.*{registers}", compiled(level, function))


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
def test_products_and_sums_are_never_fused_by_the_compiler(level: str) -> None:
    assert not re.search(r"vfmadd|vfmsub|fmla|fmls|fmadd", compiled(level, multiply_then_add))


@pytest.mark.parametrize("level", ["x86_amx", "x86_avx512vnni", "x86_portable", "arm_neon"])
@pytest.mark.parametrize(("function", "tags"), KERNELS, ids=lambda value: value.name if isinstance(value, KernelFunction) else "-".join(value))
def test_kernels_call_nothing(level: str, function: KernelFunction, tags: tuple[str, ...]) -> None:
    text = compiled(level, function, tags)
    assert not re.search(CALLS[level_by_name(level).architecture], text)


@pytest.mark.parametrize(("cache_type", "instruction"), [("f16", r"vfmadd\w+"), ("q16_0", "vpdpwssd")])
def test_attention_keeps_its_tiles_in_registers(cache_type: str, instruction: str) -> None:
    """The loops that multiply a tile move no vector to or from the stack."""
    blocks = re.split(r"\n\.LBB\w+:|\n\tj\w+", compiled("x86_avx512vnni", attention, (cache_type,)))
    loops = [block for block in blocks if len(re.findall(rf"{instruction}\s.*\{{1to16\}}", block)) >= 4]
    assert len(loops) >= 8  # scores and values, of 4, 8, 16 and 24 rows
    assert not any(re.search(r"zmm\d+, -?\d*\(%rsp\)|-?\d*\(%rsp\), %zmm", block) for block in loops)

"""The linker of kernels, against LLVM's own: the same bytes run, and what an image cannot have is refused."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kernels_numba.executor import link as link_module
from kernels_numba.executor.aligned import address_of
from kernels_numba.executor.compile import front_end
from kernels_numba.executor.executable import map_code
from kernels_numba.executor.link import LinkError, link
from kernels_numba.executor.store import KernelName
from kernels_numba.ops.tags import resolve_tag
from kernels_numba.simd.function import kernel_function
from kernels_numba.simd.levels import LEVELS, Level, level_by_name
from tests.support.kernels import load_objects, lowest_level

TABLE = KernelName("ops.rope", "rope_table")  # code that reads constants by distance


def object_of(level: Level, kernel: KernelName) -> bytes:
    import importlib

    function = getattr(importlib.import_module(f"kernels_numba.{kernel.module}"), kernel.function)
    return front_end(level).compile(kernel.symbol, function, tuple(map(resolve_tag, kernel.tags)), kernel.integers)


@kernel_function
def polynomial(simd, operands, step, worker, workers):
    """Stores a vector that needs a table of constants: float(i) * 0.1 + 3 for lanes i of the input."""
    simd.store_f32x16(operands + 64, simd.load_f32x16(operands) * simd.splat_f32(np.float32(0.1)) + simd.splat_f32(np.float32(3)))
    return 0


def test_an_image_computes_what_llvms_linker_makes_of_the_object() -> None:
    code = front_end(lowest_level()).compile("test_polynomial", polynomial, (), 4)
    image = link(code, "test_polynomial")
    [theirs] = load_objects({"test_polynomial": code})
    starts = map_code([b"\xcc" * 5000, image.code, image.code])
    assert all(address % 4096 == 0 for address in starts)
    results = []
    for address in (theirs, *(start + image.entry for start in starts[1:])):
        memory = np.zeros(64, np.float32)
        place = memory[(-address_of(memory) % 64) // 4 :][:32]
        place[:16] = np.arange(16)
        ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(address)(address_of(place), 0, 0, 1)
        results.append(place[16:].copy())
    assert results[0][1] == np.float32(0.1) + 3
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_an_image_has_the_code_of_the_object_with_every_distance_filled_in(level: Level) -> None:
    """GNU ld is the oracle for the machine that it links for; for others, that no relocation is left over is all that can be said here."""
    code = object_of(level, TABLE)
    image = link(code, TABLE.symbol)
    assert 0 <= image.entry < len(image.code)
    assert len(image.code) < len(code)


def test_images_agree_with_gnu_ld(tmp_path: Path) -> None:
    if shutil.which("ld") is None:
        pytest.skip("GNU ld is not installed")
    code = object_of(lowest_level(), TABLE)
    (tmp_path / "kernel.o").write_bytes(code)
    image = link(code, TABLE.symbol)
    # the order and distances of our image: code, then constants, each on a multiple of 64
    script = "SECTIONS { . = 0x10000; .all : { *(.text) " + "".join(
        f". = ALIGN(64); *({name}) " for name in (".rodata.cst4", ".rodata.cst8", ".rodata.cst16", ".rodata.cst32", ".rodata")
    )
    (tmp_path / "script").write_text(script + "} /DISCARD/ : { *(.eh_frame) *(.note*) } }")
    subprocess.run(["ld", "-T", "script", "-o", "linked", "kernel.o", "--entry", TABLE.symbol, "--no-relax"], cwd=tmp_path, check=True)
    linked = (tmp_path / "linked").read_bytes()
    program = struct.unpack_from("<Q", linked, 32)[0]
    offset, size = struct.unpack_from("<Q", linked, program + 8)[0], struct.unpack_from("<Q", linked, program + 32)[0]
    text = linked[offset : offset + size]
    code_bytes = image.code.find(b"\0" * 8) if image.code.find(b"\0" * 8) > 0 else len(image.code)
    assert code_bytes > 500 and text[:code_bytes] == image.code[:code_bytes]


def reached(word: int, place: int, kind: int) -> tuple[int, int]:
    """What an arm64 instruction at `place` refers to, decoded by the "Arm Architecture Reference Manual" (ADRP, ADD immediate, LDR immediate): the value and
    a mask of the address bits that it decides."""
    if word & 0x9F000000 == 0x90000000:  # ADRP: a page, 4 GB around
        pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        return (place & ~0xFFF) + ((pages ^ 1 << 20) - (1 << 20)) * 4096, ~0xFFF
    if word & 0xFFC00000 == 0x91000000:  # ADD, 64 bits, immediate not shifted
        return word >> 10 & 0xFFF, 0xFFF
    assert word & 0x3B000000 == 0x39000000, f"relocation {kind} of an instruction {word:#x}"  # load or store, unsigned offset
    scale = 4 if word >> 26 & 1 and word >> 23 & 1 and word >> 30 == 0 else word >> 30
    return (word >> 10 & 0xFFF) << scale, 0xFFF


@pytest.mark.parametrize("level", ["arm_neon", "arm_dotprod", "arm_i8mm"])
def test_every_reference_of_an_arm64_image_reaches_its_constant(level: str) -> None:
    kinds = set()
    for kernel in (TABLE, KernelName("ops.activation", "activation_quantize", ("silu",)), KernelName("ops.linear", "linear", ("Q4_0",))):
        code = object_of(level_by_name(level), kernel)
        image = link(code, kernel.symbol).code
        sections = link_module._sections(code)
        symbols = link_module._symbols(code, sections)
        places, _ = link_module._lay_out(code, sections, kernel.symbol)
        for section in sections:
            if section.kind != 4 or section.info not in places:
                continue
            for at in range(section.start, section.start + section.size, 24):
                offset, information, addend = struct.unpack_from("<QQq", code, at)
                target = symbols[information >> 32]
                wanted = places[target.section] + target.value + addend
                place = places[section.info] + offset
                kind = information & 0xFFFFFFFF
                if kind in (260, 261):  # a distance in data
                    continue
                kinds.add(kind)
                value, mask = reached(struct.unpack_from("<I", image, place)[0], place, kind)
                assert value == wanted & mask, f"{kernel.symbol}+{offset:#x}, relocation {kind}"
    assert 275 in kinds and len(kinds) > 1


def altered(code: bytes, kind: int) -> bytes:
    """The object with the type of its first relocation changed."""
    data = bytearray(code)
    start, entry_bytes, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    for index in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", data, start + entry_bytes * index)
        if fields[1] == 4 and fields[7] == 2:
            struct.pack_into("<I", data, fields[4] + 8, kind)
            return bytes(data)
    raise AssertionError("the object has no relocation")


def test_an_absolute_address_is_refused() -> None:
    level = level_by_name("x86_avx2")
    with pytest.raises(LinkError, match=f"{TABLE.symbol} has a relocation of type 1, which an image cannot have"):
        link(altered(object_of(level, TABLE), 1), TABLE.symbol)


def test_an_object_without_the_symbol_is_refused() -> None:
    with pytest.raises(LinkError, match="does not define another"):
        link(object_of(lowest_level(), TABLE), "another")


def test_a_variable_is_refused() -> None:
    import llvmlite.binding as llvm

    from kernels_numba.executor.machine import target_machine

    machine = target_machine(lowest_level())
    text = """
        @count = internal global i64 1
        define i64 @counts() { %old = load i64, ptr @count  %new = add i64 %old, 1  store i64 %new, ptr @count  ret i64 %new }
    """
    module = llvm.parse_assembly(f'target triple = "{machine.triple}"\n{text}')
    with pytest.raises(LinkError, match="counts has a section .data; a kernel has code and constants alone"):
        link(machine.emit_object(module), "counts")

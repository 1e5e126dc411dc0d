"""The vocabulary mechanism: idioms (named operations with an exact meaning) that a target implements by emitting LLVM IR. Imported only where kernels compile.

An idiom is an emitter function with a signature and a docstring that is its exact meaning. `targets/portable.py` has them all and is the oracle; the
module of an instruction set overrides those that LLVM does not find by itself. In a kernel an idiom is an attribute of `simd`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from kernels_numba.simd.vectors import SCALARS, VECTORS, VectorType, resize

Emitter = Callable[..., Any]
Typing = Callable[[tuple[types.Type, ...]], types.Type | None]


@dataclass(frozen=True)
class Idiom:
    """`typing` maps argument types to the result type, or None if they do not fit; `parameters` (of a fixed signature) say how arguments convert."""

    name: str
    emit: Emitter
    typing: Typing
    parameters: tuple[str, ...] | None


class Emission:
    """What an emitter works with: the builder, and the target's other idioms by name (`emission.call("fma", x, y, z)`)."""

    def __init__(self, builder: ir.IRBuilder, idioms: Mapping[str, Idiom]) -> None:
        self.builder = builder
        self.idioms = idioms

    def call(self, name: str, *values: Any) -> Any:
        return self.idioms[name].emit(self, *values)

    def llvm(self, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
        """A call of an LLVM intrinsic."""
        module = self.builder.module
        function = module.globals.get(name) or ir.Function(module, ir.FunctionType(result, [value.type for value in values]), name)
        return self.builder.call(function, values)

    def pointer(self, address: ir.Value, pointee: ir.Type, offset: int = 0) -> ir.Value:
        if offset:
            address = self.builder.add(address, address.type(offset))
        return self.builder.inttoptr(address, ir.PointerType(pointee))


def idiom(signature: str) -> Callable[[Emitter], Emitter]:
    """Declares an emitter with a signature such as "f32x16(f32x16, f32x16, f32x16)". Several signatures, joined by " | ", overload it."""

    def declare(emit: Emitter) -> Emitter:
        emit.idiom_signature = signature  # type: ignore[attr-defined]
        return emit

    return declare


def typed_idiom(typing: Typing) -> Callable[[Emitter], Emitter]:
    """Declares an emitter whose result type depends on its arguments; `emit(emission, types, *values)`."""

    def declare(emit: Emitter) -> Emitter:
        emit.idiom_typing = typing  # type: ignore[attr-defined]
        return emit

    return declare


def _fits(parameter: str, argument: types.Type) -> bool:
    if parameter in VECTORS:
        return argument == VECTORS[parameter]
    if parameter in ("i64", "i32"):
        return isinstance(types.unliteral(argument), types.Integer)
    return types.unliteral(argument) == SCALARS[parameter]


def _parse(name: str, emit: Emitter) -> Idiom:
    result, _, rest = emit.idiom_signature.partition("(")  # type: ignore[attr-defined]
    parameters = tuple(part.strip() for part in rest.rstrip(")").split(",") if part.strip())
    result_type: types.Type = VECTORS[result] if result in VECTORS else SCALARS[result]

    def typing(arguments: tuple[types.Type, ...]) -> types.Type | None:
        fits = len(arguments) == len(parameters) and all(_fits(*pair) for pair in zip(parameters, arguments, strict=True))
        return result_type if fits else None

    return Idiom(name, emit, typing, parameters)


def load_target(name: str) -> Mapping[str, Idiom]:
    """All idioms of `targets/NAME.py`, those of the target that it builds on (`BASE`) and of its own `PARTS` included."""
    module = importlib.import_module(f"kernels_numba.simd.targets.{name}")
    base = getattr(module, "BASE", None)
    idioms = dict(load_target(base)) if base else {}
    for part in getattr(module, "PARTS", ()):
        idioms.update(load_target(part))
    for key, emit in vars(module).items():
        if hasattr(emit, "idiom_signature"):
            idioms[key] = _parse(key, emit)
        elif hasattr(emit, "idiom_typing"):
            idioms[key] = Idiom(key, emit, emit.idiom_typing, None)
    return idioms


def target_constants(name: str) -> dict[str, int]:
    """What drivers choose their code by; each is defined in the target's module or in what it builds on. `tile_tokens`: how many tokens have their accumulators
    in registers beside a group's codes; `matrix_tiles`: 1 where the CPU multiplies matrices (`targets/matrices.py`), else 0."""
    return {"tile_tokens": _constant(name, "TILE_TOKENS"), "matrix_tiles": _constant(name, "MATRIX_TILES")}


def _constant(target: str, constant: str) -> int:
    module = importlib.import_module(f"kernels_numba.simd.targets.{target}")
    return int(getattr(module, constant)) if hasattr(module, constant) else _constant(module.BASE, constant)


def convert(builder: ir.IRBuilder, idiom: Idiom, values: tuple[ir.Value, ...]) -> list[ir.Value]:
    """Integer arguments cut or extended to what the signature says."""
    if idiom.parameters is None:
        return list(values)
    widths = {"i64": ir.IntType(64), "i32": ir.IntType(32)}
    return [resize(builder, value, widths[name]) if name in widths else value for name, value in zip(idiom.parameters, values, strict=True)]


__all__ = ["Emission", "Idiom", "VectorType", "convert", "idiom", "load_target", "target_constants", "typed_idiom"]

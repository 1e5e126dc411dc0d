"""Vector types as Numba values: a type over an LLVM vector, its operators, and the parser of idiom signatures. Imported only where kernels compile.

Integer vectors carry no sign; operations that depend on it say so in their name. Operators are elementwise: + - * on all, / on floats, & | ^ << >> on
integers (>> is a logical shift). They are registered as a typing template and a direct lowering, which compiles far faster than `@overload`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

ELEMENTS = {
    "i8": ir.IntType(8), "i16": ir.IntType(16), "i32": ir.IntType(32), "i64": ir.IntType(64),
    "f32": ir.FloatType(), "f64": ir.DoubleType(),
}  # fmt: skip


class VectorType(types.Type):
    """`lanes` values of `element` ("i8", "i16", "i32", "i64", "f32", "f64")."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(ELEMENTS[self.element], self.lanes)

    @property
    def is_float(self) -> bool:
        return self.element[0] == "f"

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        return self.name, ()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend_type: VectorType) -> None:
        super().__init__(manager, frontend_type, frontend_type.llvm)


VECTORS = {
    name: VectorType(name.split("x")[0], int(name.split("x")[1]))
    for name in ("i8x16", "i8x32", "i8x64", "i16x16", "i16x32", "i32x8", "i32x16", "i64x16", "f32x16", "f64x16")
}
SCALARS = {"i64": types.int64, "i32": types.int32, "f32": types.float32, "f64": types.float64, "void": types.void}


def splat(builder: ir.IRBuilder, scalar: ir.Value, vector: ir.VectorType) -> ir.Value:
    """The scalar in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count))


def _register_operator(python: Callable[..., Any], in_place: Callable[..., Any] | None, integer: str | None, floating: str | None) -> None:
    class Template(AbstractTemplate):
        def generic(self, args: tuple[types.Type, ...], kws: dict[str, Any]) -> Any:
            if len(args) == 2 and isinstance(args[0], VectorType) and args[0] == args[1] and (floating if args[0].is_float else integer):
                return signature(args[0], *args)
            return None

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        return getattr(builder, floating if sig.return_type.is_float else integer)(*args)  # type: ignore[arg-type]

    for key in (python, in_place):
        if key is not None:
            infer_global(key)(type(f"Vector_{key.__name__}", (Template,), {}))
            lower_builtin(key, VectorType, VectorType)(lower)


def _register_shift(python: Callable[..., Any], method: str) -> None:
    class Template(AbstractTemplate):
        def generic(self, args: tuple[types.Type, ...], kws: dict[str, Any]) -> Any:
            if len(args) == 2 and isinstance(args[0], VectorType) and isinstance(args[1], types.Integer):
                return signature(args[0], *args)
            return None

    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        element = ELEMENTS[sig.return_type.element]
        return getattr(builder, method)(args[0], splat(builder, resize(builder, args[1], element), sig.return_type.llvm))

    infer_global(python)(type(f"Vector_{python.__name__}", (Template,), {}))
    lower_builtin(python, VectorType, types.Integer)(lower)


def resize(builder: ir.IRBuilder, value: ir.Value, target: ir.IntType) -> ir.Value:
    """An integer cut or sign-extended to the target's width."""
    if value.type.width > target.width:
        return builder.trunc(value, target)
    return builder.sext(value, target) if value.type.width < target.width else value


_register_operator(operator.add, operator.iadd, "add", "fadd")
_register_operator(operator.sub, operator.isub, "sub", "fsub")
_register_operator(operator.mul, operator.imul, "mul", "fmul")
_register_operator(operator.truediv, operator.itruediv, None, "fdiv")
_register_operator(operator.and_, operator.iand, "and_", None)
_register_operator(operator.or_, operator.ior, "or_", None)
_register_operator(operator.xor, operator.ixor, "xor", None)
_register_shift(operator.lshift, "shl")
_register_shift(operator.rshift, "lshr")

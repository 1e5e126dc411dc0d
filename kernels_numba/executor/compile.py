"""The kernel compiler: a kernel function becomes an object file for an instruction-set level. Numba is the front end to LLVM IR; the target machine is ours.

Only the store imports this module, and only when an object is missing. Numba's own optimizer, JIT engine, wrappers and caches are not used: helper
functions are lowered, linked and inlined, then one O3 pipeline for the level's target machine runs over the whole, and the object must not refer to any
symbol outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import codegen, compiler, config, errors, typed_passes, untyped_passes
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import cpu_target
from numba.core.typing.templates import AttributeTemplate, infer_getattr, signature
from numba.extending import lower_getattr_generic, models, register_model, typeof_impl

from kernels_numba.executor.link import undefined_symbols
from kernels_numba.executor.machine import optimize, target_machine
from kernels_numba.simd.function import KernelFunction
from kernels_numba.simd.levels import Level
from kernels_numba.simd.vectors import resize
from kernels_numba.simd.vocabulary import Emission, Idiom, convert, load_target, target_constants


class KernelCompileError(RuntimeError):
    """A kernel function is wrong: a defect of ours, not of the user. Says which function, where, and what does not fit; the cause is chained."""


def _compile_error(function: KernelFunction, level: Level, error: Exception) -> KernelCompileError:
    """Numba's account of a typing error is long and coloured: what counts is its reason, and the last line of the source that it names."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    code = function.python.__code__
    lines = re.findall(r"line (\d+):", text)
    reason = [line for line in text.splitlines() if line.strip() and not line.startswith(("Failed in ", "File ", "During: "))]
    where = f"{code.co_filename}, line {lines[-1] if lines else code.co_firstlineno}"
    return KernelCompileError(
        f"the kernel function {function.python.__module__}.{function.name} ({where}) does not compile for {level.name}: {reason[0] if reason else error!r}"
    )


class CompileTimeValue:
    """A named bag of kernel functions, integers and booleans that a kernel takes as an argument and that select code: the vocabulary, a format, a layout."""

    def __init__(self, name: str, members: Mapping[str, Any]) -> None:
        self.name = name
        self.members = members


class _TagType(types.Opaque):
    def __init__(self, value: CompileTimeValue, front_end: FrontEnd) -> None:
        self.value = value
        self.front_end = front_end
        super().__init__(name=f"tag({front_end.level.name}:{value.name})")


class _CallableType(types.Callable, types.Opaque):
    """A kernel function or an idiom of one level, as a callable compile-time value."""

    def __init__(self, name: str, front_end: FrontEnd) -> None:
        self.front_end = front_end
        super().__init__(name=f"callable({front_end.level.name}:{name})")

    def get_impl_key(self, sig: Any) -> Any:
        return (self.name, sig.args)

    def get_call_signatures(self) -> tuple[tuple[Any, ...], bool]:
        return (), True


class _FunctionType(_CallableType):
    def __init__(self, function: KernelFunction, front_end: FrontEnd) -> None:
        self.function = function
        super().__init__(f"{function.python.__module__}.{function.python.__qualname__}@{id(function)}", front_end)

    def get_call_type(self, context: Any, args: tuple[types.Type, ...], kws: Mapping[str, types.Type]) -> Any:
        # a parameter annotated `Constant` keeps the number itself in its type; others would be compiled again for each number
        code = self.function.python.__code__
        parameters = code.co_varnames[: code.co_argcount]
        if len(args) != len(parameters) or kws:
            given = f"{len(args)} arguments" + "".join(f" and {name}=" for name in kws)
            raise errors.TypingError(f"{self.function.name} takes {', '.join(parameters)}; it was given {given}")
        constants = {name for name, annotation in self.function.python.__annotations__.items() if annotation == "Constant"}
        kept = (argument if name in constants else types.unliteral(argument) for name, argument in zip(parameters, args, strict=True))
        return self.front_end.function_signature(self, tuple(kept))


class _IdiomType(_CallableType):
    def __init__(self, idiom: Idiom, front_end: FrontEnd) -> None:
        self.idiom = idiom
        super().__init__(f"idiom.{idiom.name}", front_end)

    def get_call_type(self, context: Any, args: tuple[types.Type, ...], kws: Mapping[str, types.Type]) -> Any:
        return self.front_end.idiom_signature(self, args)


for _type in (_TagType, _FunctionType, _IdiomType):
    register_model(_type)(models.OpaqueModel)


@infer_getattr
class _TagAttributes(AttributeTemplate):
    key = _TagType

    def generic_resolve(self, tag: _TagType, name: str) -> types.Type | None:
        member = tag.value.members.get(name)
        if member is None:
            return None
        return tag.front_end.member_type(member)


@lower_getattr_generic(_TagType)
def _lower_tag_attribute(context: Any, builder: ir.IRBuilder, tag: _TagType, value: ir.Value, name: str) -> ir.Value:
    member = tag.value.members[name]
    if isinstance(member, bool):
        return context.get_constant(types.boolean, member)
    if isinstance(member, int):
        return context.get_constant(types.int64, member)
    return context.get_dummy_value()


_current: list[FrontEnd] = []


@typeof_impl.register(KernelFunction)
def _type_of_function(value: KernelFunction, context: Any) -> types.Type:
    return _current[-1].function_type(value)


@typeof_impl.register(CompileTimeValue)
def _type_of_tag(value: CompileTimeValue, context: Any) -> types.Type:
    return _current[-1].tag_type(value)


class _Library(codegen.AOTCodeLibrary):
    """Numba's library without its optimizer and its linker: everything is linked, inlined and optimized once, by us. Numba would link a function into each
    that calls it, and these, with it, into their callers."""

    def _optimize_functions(self, ll_module: Any) -> None:
        pass

    def finalize(self) -> None:
        self._finalized = True

    def linked(self) -> llvm.ModuleRef:
        """This library's module with those of all that it needs. Once only."""
        needed: dict[int, _Library] = {}

        def gather(library: _Library) -> None:
            for other in library._linking_libraries:
                if id(other) not in needed:
                    needed[id(other)] = other
                    gather(other)

        gather(self)
        for library in needed.values():
            self._final_module.link_in(library._final_module, preserve=True)
        return self._final_module


class _Codegen(codegen.AOTCPUCodegen):
    _library_class = _Library


class _Context:
    """A typing or target context of Numba's that is not read anew before every function, however small. Everything else is the context's own."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def refresh(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _TypingContext(_Context):
    """Numba finds the type of `a + b` by trying a dozen templates each time; here the answer is kept."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._answers: dict[tuple[Any, tuple[types.Type, ...]], Any] = {}

    def resolve_function_type(self, func: Any, args: tuple[types.Type, ...], kws: Mapping[str, types.Type]) -> Any:
        key = (func, tuple(args))
        if not kws and key in self._answers:
            return self._answers[key]
        found = self._context.resolve_function_type(func, args, kws)
        if found is not None and not kws and isinstance(func, types.Function):
            self._answers[key] = found
        return found


class _Pipeline(compiler.CompilerBase):
    """The passes of Numba that kernel functions need, of some 27: they have no closures, exceptions, `with` statements, array expressions or parallel loops.
    Each pass left out saves a walk over the function and its analysis."""

    def __init__(self, typing_context: Any, target_context: Any, *arguments: Any) -> None:
        super().__init__(typing_context, _Context(target_context), *arguments)

    def define_pipelines(self) -> list[Any]:
        passes = PassManager("kernel")
        for step in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.RewriteSemanticConstants,
            untyped_passes.DeadBranchPrune,  # branches on compile-time values
            untyped_passes.GenericRewrites,
            untyped_passes.ReconstructSSA,
            untyped_passes.DeadBranchPrune,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.IRLegalization,
            typed_passes.NativeLowering,
            typed_passes.NoPythonBackend,
        ):
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]


class FrontEnd:
    """Numba set up for one level. Holds the compiled helpers; one per level and process."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.idioms = load_target(level.target)
        self.simd = CompileTimeValue("simd", {**self.idioms, **target_constants(level.target)})
        self.target_context = cpu_target.target_context.subtarget(_internal_codegen=_Codegen("kernels"), aot_mode=True)
        self.target_context.refresh()  # reads the registries of both contexts
        self.typing_context = _TypingContext(cpu_target.typing_context)
        self._functions: dict[KernelFunction, _FunctionType] = {}
        self._tags: dict[int, _TagType] = {}
        self._idiom_types: dict[str, _IdiomType] = {}
        self._signatures: dict[tuple[Any, ...], Any] = {}

    # -- typing, called back by Numba

    def function_type(self, function: KernelFunction) -> _FunctionType:
        if function not in self._functions:
            self._functions[function] = _FunctionType(function, self)
        return self._functions[function]

    def tag_type(self, value: CompileTimeValue) -> _TagType:
        if id(value) not in self._tags:
            self._tags[id(value)] = _TagType(value, self)
        return self._tags[id(value)]

    def member_type(self, member: Any) -> types.Type:
        if isinstance(member, Idiom):
            if member.name not in self._idiom_types:
                self._idiom_types[member.name] = _IdiomType(member, self)
            return self._idiom_types[member.name]
        if isinstance(member, bool):
            return types.boolean
        if isinstance(member, int):
            return types.literal(member)
        if isinstance(member, KernelFunction):
            return self.function_type(member)
        if isinstance(member, CompileTimeValue):
            return self.tag_type(member)
        raise TypeError(f"a compile-time value holds {member!r}")

    def idiom_signature(self, kind: _IdiomType, arguments: tuple[types.Type, ...]) -> Any:
        key = (kind.idiom.name, arguments)
        if key not in self._signatures:
            result = kind.idiom.typing(arguments)
            if result is None:
                wanted = "its typing rule" if kind.idiom.parameters is None else f"({', '.join(kind.idiom.parameters)})"
                raise errors.TypingError(f"simd.{kind.idiom.name}({', '.join(map(str, arguments))}) does not fit {wanted}")
            sig = signature(result, *arguments)

            def lower(context: Any, builder: ir.IRBuilder, lowered: Any, values: tuple[ir.Value, ...]) -> ir.Value:
                emission = Emission(builder, self.idioms)
                if kind.idiom.parameters is None:
                    outcome = kind.idiom.emit(emission, arguments, *values)
                else:
                    outcome = kind.idiom.emit(emission, *convert(builder, kind.idiom, values))
                return context.get_dummy_value() if result is types.void else outcome

            self.target_context.insert_func_defn([(lower, kind.get_impl_key(sig), arguments)])
            self._signatures[key] = sig
        return self._signatures[key]

    def function_signature(self, kind: _FunctionType, arguments: tuple[types.Type, ...]) -> Any:
        key = (kind.name, arguments)
        if key not in self._signatures:
            compiled = self._front(kind.function, arguments)
            sig = signature(compiled.signature.return_type, *arguments)

            def lower(context: Any, builder: ir.IRBuilder, lowered: Any, values: tuple[ir.Value, ...]) -> ir.Value:
                context.active_code_library.add_linking_library(compiled.library)
                return context.call_internal(builder, compiled.fndesc, sig, values)

            self.target_context.insert_func_defn([(lower, kind.get_impl_key(sig), arguments)])
            self._signatures[key] = sig
        return self._signatures[key]

    def _front(self, function: KernelFunction, arguments: tuple[types.Type, ...]) -> Any:
        flags: Any = compiler.Flags()  # its options are made at run time
        flags.no_compile = True
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        flags.forceinline = True
        flags.error_model = "numpy"
        flags.nrt = False
        try:
            return compiler.compile_extra(self.typing_context, self.target_context, function.python, arguments, None, flags, {}, pipeline_class=_Pipeline)
        except (errors.NumbaError, TypeError) as error:
            raise _compile_error(function, self.level, error) from error

    # -- compiling

    @global_compiler_lock
    def compile(self, symbol: str, function: KernelFunction, tags: tuple[CompileTimeValue, ...], integers: int) -> bytes:
        """The object file of `symbol(int64 * integers) -> int64`, which calls `function(simd, *tags, *integers)`."""
        module = self.lower(symbol, function, tags, integers)
        machine = target_machine(self.level)
        optimize(module, machine)
        code: bytes = machine.emit_object(module)
        undefined = undefined_symbols(code)
        if undefined:
            raise KernelCompileError(f"the kernel {symbol} refers to {', '.join(undefined)}, which no object provides (a function outside of `simd`?)")
        return code

    @global_compiler_lock
    def lower(self, symbol: str, function: KernelFunction, tags: tuple[CompileTimeValue, ...], integers: int) -> llvm.ModuleRef:
        """The optimized module, for its object or its assembly."""
        _current.append(self)
        # NUMBA_DISABLE_JIT, by which people debug functions of their own, would leave those of Numba's library that kernels call as plain Python.
        without_jit, config.DISABLE_JIT = config.DISABLE_JIT, 0
        try:
            arguments = (self.tag_type(self.simd), *(self.tag_type(tag) for tag in tags), *([types.int64] * integers))
            compiled = self._front(function, arguments)
            library = self._entry(symbol, compiled, len(tags) + 1, integers)
        finally:
            config.DISABLE_JIT = without_jit
            _current.pop()
        module = library.linked()
        machine = target_machine(self.level)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        for defined in module.functions:
            if not defined.is_declaration and defined.name != symbol:
                defined.linkage = "internal"
        for variable in module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        module.verify()
        return module

    def _entry(self, symbol: str, compiled: Any, tags: int, integers: int) -> Any:
        """A library with the C function `symbol` that passes integers on to the compiled function."""
        library = self.target_context.codegen().create_library(symbol)
        module = library.create_ir_module(symbol)
        i64 = ir.IntType(64)
        entry = ir.Function(module, ir.FunctionType(i64, [i64] * integers), symbol)
        builder = ir.IRBuilder(entry.append_basic_block())
        callee = self.target_context.declare_function(module, compiled.fndesc)
        values = [self.target_context.get_dummy_value()] * tags + list(entry.args)
        result_type = types.unliteral(compiled.signature.return_type)
        _, result = self.target_context.call_conv.call_function(builder, callee, result_type, compiled.fndesc.argtypes, values)
        builder.ret(resize(builder, result, i64) if isinstance(result_type, types.Integer) else i64(0))
        library.add_ir_module(module)
        library.add_linking_library(compiled.library)
        library.finalize()
        return library


_front_ends: dict[str, FrontEnd] = {}


def front_end(level: Level) -> FrontEnd:
    """The process's front end for a level."""
    if level.name not in _front_ends:
        _front_ends[level.name] = FrontEnd(level)
    return _front_ends[level.name]


def assembly(level: Level, symbol: str, function: KernelFunction, tags: tuple[CompileTimeValue, ...] = (), integers: int = 4) -> str:
    """The assembly of a kernel, for tests of code generation."""
    module = front_end(level).lower(symbol, function, tags, integers)
    machine = target_machine(level)
    optimize(module, machine)
    return machine.emit_assembly(module)


__all__ = ["CompileTimeValue", "FrontEnd", "KernelCompileError", "assembly", "front_end", "undefined_symbols"]

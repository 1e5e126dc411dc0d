"""The Jinja environment in which chat templates run: as transformers sets it up, in a sandbox, and with bounds on steps, time and sizes.

A template comes from a stranger, inside a downloaded file. Jinja's immutable sandbox keeps it away from Python; this module keeps it from eating time
and memory: a syntax-tree pass counts loop turns and macro calls and measures every container and concatenation a template builds, and operators,
methods and filters that can make something large out of something small are checked before they run. Only `template` uses this module.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import SandboxedEnvironment

LARGEST_TEXT = 16 * 1024 * 1024
"""Characters in any string that a template makes, its output included."""
LARGEST_VALUE = 200_000
"""Elements in any container that a template makes, counted through all levels."""
MOST_CHARACTERS = 16 * LARGEST_TEXT
"""Characters in all strings that one rendering makes, together: what it may hold in memory at most."""
MOST_STEPS = 1_000_000
"""Loop turns, calls and operations in one rendering."""
MOST_SECONDS = 5.0
"""Time for one rendering; looked at whenever the template does something that is counted."""
LARGEST_SOURCE = 256 * 1024
"""Characters of a template's source."""
LARGEST_NUMBER_BITS = 4096
LARGEST_INDENT = 32


class LimitExceeded(Exception):
    """A template went beyond one of the bounds."""


class RaisedByTemplate(Exception):
    """The template called `raise_exception`: it rejects these messages."""


@dataclass
class _Budget:
    steps: int
    characters: int
    deadline: float


_budget: ContextVar[_Budget] = ContextVar("budget of the rendering")


def compile_template(source: str, now: Callable[[str], str]) -> Template:
    """The template, ready for `render_bounded`. now: what `strftime_now(format)` answers. Raises Jinja's own exceptions, and LimitExceeded."""
    from jinja2 import Template

    if len(source) > LARGEST_SOURCE:
        raise LimitExceeded(f"its source has {len(source)} characters; at most {LARGEST_SOURCE} are allowed")
    environment = _environment_class()()
    environment.globals["strftime_now"] = now
    tree = environment.parse(source)
    _count_and_measure(tree)
    template: Template = Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    return template


def render_bounded(template: Template, variables: Mapping[str, Any]) -> str:
    """The text of the template. Raises whatever goes wrong in it, and LimitExceeded."""
    token = _budget.set(_Budget(MOST_STEPS, MOST_CHARACTERS, time.monotonic() + MOST_SECONDS))
    try:
        parts: list[str] = []
        length = 0
        for part in template.generate(**variables):
            length += len(part)
            if length > LARGEST_TEXT:
                raise LimitExceeded(f"its output grew beyond {LARGEST_TEXT} characters")
            parts.append(part)
        return "".join(parts)
    finally:
        _budget.reset(token)


def _tick(steps: int = 1) -> None:
    budget = _budget.get(None)
    if budget is None:
        return  # constants are folded while the template is compiled
    budget.steps -= steps
    if budget.steps < 0:
        raise LimitExceeded(f"it took more than {MOST_STEPS} steps")
    if time.monotonic() > budget.deadline:
        raise LimitExceeded(f"it took longer than {MOST_SECONDS:.0f} seconds")


def _measured(value: Any) -> Any:
    """The value itself; LimitExceeded if it is too large when everything in it is counted as often as it would be printed."""
    if isinstance(value, str):
        _check_length(len(value))
        budget = _budget.get(None)
        if budget is not None:
            budget.characters -= len(value)
            if budget.characters < 0:
                raise LimitExceeded(f"it made texts of more than {MOST_CHARACTERS} characters altogether")
        return value
    if not isinstance(value, (list, tuple, dict, set, frozenset)):
        return value
    elements = characters = 0
    pending: list[Any] = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            characters += len(current)
            _check_length(characters)
        elif isinstance(current, (list, tuple, dict, set, frozenset)):
            elements += len(current)
            if elements > LARGEST_VALUE:
                raise LimitExceeded(f"it built a value with more than {LARGEST_VALUE} elements")
            pending.extend(current)
            if isinstance(current, dict):
                pending.extend(current.values())
    return value


def _check_length(length: int) -> None:
    if length > LARGEST_TEXT:
        raise LimitExceeded(f"it built a text of more than {LARGEST_TEXT} characters")


def _concatenated(*parts: Any) -> str:
    """What `~` does."""
    _tick()
    joined: str = _measured(_bounded_join([str(_measured(part)) for part in parts]))
    return joined


def _bounded_join(parts: Iterable[str]) -> str:
    parts = list(parts)
    _check_length(sum(map(len, parts)))
    return "".join(parts)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(value, (str, bytes)) and isinstance(count, int):
                _check_length(len(value) * count)
            elif isinstance(value, (list, tuple)) and isinstance(count, int) and len(value) * count > LARGEST_VALUE:
                raise LimitExceeded(f"it built a value with more than {LARGEST_VALUE} elements")
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        _check_length(len(left) + len(right))
    if operator == "%" and isinstance(left, str):
        _check_format(left)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > LARGEST_NUMBER_BITS:
            raise LimitExceeded(f"it computed a number with more than {LARGEST_NUMBER_BITS} bits")


def _check_format(text: str) -> None:
    """Refuse widths and precisions that turn a small value into a large text, and those that come from a value."""
    if re.search(r"[0-9]{6,}", text) or re.search(r"%[^%a-zA-Z]*\*", text) or re.search(r"\{[^{}]*:[^{}]*\{", text):
        raise LimitExceeded("it formats a value with a width beyond 99,999, or one that it computes")


def _check_text_method(text: str, method: str, arguments: tuple[Any, ...]) -> None:
    if method in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        for argument in arguments:
            if isinstance(argument, int):
                _check_length(argument * (text.count("\t") if method == "expandtabs" else 1))
    if method == "replace" and len(arguments) >= 2 and all(isinstance(argument, str) for argument in arguments[:2]):
        _check_replacement(text, arguments[0], arguments[1])
    if method in ("format", "format_map"):
        _check_format(text)
        for argument in arguments:
            _measured(argument)
    if method == "join" and arguments and isinstance(arguments[0], (list, tuple)):
        _check_length(sum(len(part) + len(text) for part in arguments[0] if isinstance(part, str)))


def _check_replacement(text: str, old: str, new: str) -> None:
    occurrences = text.count(old)
    _check_length(len(text) + occurrences * max(len(new) - len(old), 0))


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks what it is given and what it gives. Keeps the marks by which Jinja passes the context."""

    @wraps(function)
    def bounded(*arguments: Any, **keywords: Any) -> Any:
        _tick()
        for argument in (*arguments, *keywords.values()):
            if isinstance(argument, int) and abs(argument) > LARGEST_VALUE and name not in ("abs", "int", "float", "string", "round", "filesizeformat"):
                raise LimitExceeded(f"it calls the filter '{name}' with {argument}")
            _measured(argument)
        texts = [argument for argument in arguments if isinstance(argument, str)]
        if name == "replace" and len(texts) >= 3:
            _check_replacement(*texts[:3])
        if name == "format" and texts:
            _check_format(texts[0])
        if name == "indent" and texts:
            widths = [argument for argument in (*arguments, *keywords.values()) if isinstance(argument, int)]
            _check_length(max(widths, default=0) * (texts[0].count("\n") + 1))
        return _measured(function(*arguments, **keywords))

    return bounded


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """As transformers has it: without escapes for HTML."""
    if indent is not None and (not isinstance(indent, int) or abs(indent) > LARGEST_INDENT):
        raise LimitExceeded(f"it writes JSON with an indent of {indent!r}; at most {LARGEST_INDENT} are allowed")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message))


def _count_and_measure(tree: Any) -> None:
    """Make every loop turn and macro call count, and every container and concatenation be measured."""
    from jinja2 import nodes

    def call(attribute: str, *arguments: nodes.Expr) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(attribute), list(arguments), [], None, None)

    def changed(node: nodes.Node) -> nodes.Node:
        for field, value in list(node.iter_fields()):
            if isinstance(value, nodes.Node):
                setattr(node, field, changed(value))
            elif isinstance(value, list):
                setattr(node, field, [changed(item) if isinstance(item, nodes.Node) else item for item in value])
        if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
            node.body.insert(0, nodes.ExprStmt(call("count_step")))
        elif isinstance(node, nodes.Concat):
            return call("concatenated", *node.nodes)
        elif isinstance(node, nodes.Dict) or (isinstance(node, nodes.List | nodes.Tuple) and getattr(node, "ctx", "load") == "load"):
            return node if all(isinstance(part, nodes.Const) for part in node.iter_child_nodes()) else call("measured", node)
        return node

    changed(tree)
    for node in tree.find_all(nodes.Node):
        if getattr(node, "lineno", None) is None:
            node.set_lineno(1)
        node.set_environment(tree.environment)


@cache
def _environment_class() -> type[SandboxedEnvironment]:
    """Built on first use: importing Jinja takes longer than the command line may take to say --help."""
    from jinja2 import nodes
    from jinja2.defaults import DEFAULT_FILTERS
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}` marks what an assistant wrote, for training; here it only has a scope of its own, as in transformers."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's interface

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class BoundedEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

        def __init__(self) -> None:
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], cache_size=0, finalize=_measured)
            self.filters = {name: _bounded_filter(name, function) for name, function in DEFAULT_FILTERS.items()}
            self.filters["tojson"] = _bounded_filter("tojson", _tojson)
            self.globals.pop("lipsum")  # text without end, and of no use to a chat
            self.globals["raise_exception"] = _raise_exception
            self.concat = _bounded_join  # type: ignore[method-assign]
            self.count_step = _tick
            self.concatenated = _concatenated
            self.measured = _measured

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            _tick()
            _check_operands(operator, left, right)
            return _measured(super().call_binop(context, operator, left, right))

        def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            _tick()
            owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # Jinja wraps str.format
            if isinstance(owner, str):
                _check_text_method(owner, getattr(__obj, "__name__", ""), (*args, *kwargs.values()))
            return _measured(super().call(__context, __obj, *args, **kwargs))

    return BoundedEnvironment

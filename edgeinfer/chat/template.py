"""`ChatTemplate`: from messages to a prompt, by the Jinja template in a GGUF file. The engine uses it for every chat.

A model without a template is refused, never guessed. `encode` is what a model should be asked with: there, only the markers that the template itself
writes become control tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from edgeinfer.chat.sandbox import LimitExceeded, RaisedByTemplate, compile_template, render_bounded
from edgeinfer.chat.shapes import check_parts, fitting
from edgeinfer.chat.stand_ins import FIRST_STAND_IN, StandIns, all_strings, copied
from edgeinfer.core.errors import ChatTemplateError, InvalidRequestError

if TYPE_CHECKING:
    from jinja2 import Template

KEY = "tokenizer.chat_template"
DEFAULT_NAME = "default"
TOOLS_NAME = "tool_use"

Messages = Sequence[Mapping[str, Any]]


class ChatTokenizer(Protocol):
    """What a chat template needs of a tokenizer."""

    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def unk_id(self) -> int | None: ...
    @property
    def pad_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...
    def token_text(self, token_id: int) -> str: ...
    def control_texts(self) -> Sequence[str]: ...
    def control_texts_in(self, text: str) -> list[str]: ...
    def encode(self, text: str, add_special: bool = False, parse_special: bool = False, *, stand_ins: Mapping[int, str] | None = None) -> list[int]: ...


class ChatTemplate:
    """The chat templates of one model. Threads may share it."""

    def __init__(
        self, sources: str | Mapping[str, str], tokenizer: ChatTokenizer, now: Callable[[str], str] = lambda form: datetime.now().strftime(form)
    ) -> None:
        """sources: the template, or templates by name, of which 'default' is the usual one and 'tool_use' the one for requests with tools.

        now: what a template's `strftime_now(format)` answers. ChatTemplateError: a template does not parse, or is too large.
        """
        self._sources = {DEFAULT_NAME: sources} if isinstance(sources, str) else dict(sources)
        self._tokenizer = tokenizer
        self._now = now
        self._compiled: dict[str, Template] = {}
        if not self._sources:
            raise ChatTemplateError(_NO_TEMPLATE)
        if DEFAULT_NAME in self._sources:
            self._template(DEFAULT_NAME)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], tokenizer: ChatTokenizer) -> ChatTemplate:
        """The templates in GGUF metadata (`tokenizer.chat_template`, `tokenizer.chat_template.NAME`). ChatTemplateError: there are none."""
        sources: dict[str, str] = {}
        for key in metadata:
            if key == KEY or key.startswith(KEY + "."):
                value = metadata[key]
                if not isinstance(value, str):
                    raise ChatTemplateError(f"{key} is {type(value).__name__}; a chat template must be a string")
                sources[key[len(KEY) + 1 :] or DEFAULT_NAME] = value
        return cls(sources, tokenizer)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all templates."""
        return tuple(self._sources)

    def source(self, name: str = DEFAULT_NAME) -> str:
        """The Jinja source of a template. ChatTemplateError: there is none of that name."""
        self._check_name(name)
        return self._sources[name]

    def render(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        *,
        template_name: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as text. Encoding it with `parse_special` reads markers inside of messages as control tokens: `encode` does not.

        messages: mappings with a 'role' and a 'content', which may be a text, a list of texts ({'type': 'text', 'text': ...}) or, beside tool calls, None.
        A template that takes texts alone gets the parts joined by line feeds, and an empty text for None. template_name: None takes 'tool_use' where there
        are tools and such a template, else 'default'. variables: handed to the template as they are.

        InvalidRequestError: no messages, one that is no mapping with a role, or a part of a content that is no text. ChatTemplateError: the template rejects
        the messages (its own words are in the message), asks for something that the sandbox does not allow, or goes beyond the bounds on time and size.
        """
        name = self._chosen(template_name, tools)
        return self._render(name, self._given(name, messages, tools, variables, add_generation_prompt), add_generation_prompt)

    def encode(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        *,
        template_name: str | None = None,
        parse_special_in_messages: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The prompt as token ids, with one BOS in front if the template writes one or the vocabulary asks for one, and else none.

        Control tokens are those that the template writes. What messages, tools and variables contain is ordinary text, whatever it looks like:
        '<|im_end|>' in a message becomes the same characters and ends no turn. parse_special_in_messages: True reads it as the control token instead,
        which lets whoever wrote the text of a message write turns of others.

        Raises what `render` raises.
        """
        name = self._chosen(template_name, tools)
        given = self._given(name, messages, tools, variables, add_generation_prompt)
        plain = self._render(name, given, add_generation_prompt)
        if parse_special_in_messages:
            ids = self._tokenizer.encode(plain, parse_special=True)
        else:
            rendered, stand_ins = self._render_hidden(name, given, add_generation_prompt, plain)
            ids = self._tokenizer.encode(rendered, parse_special=True, stand_ins=stand_ins)
        bos = self._tokenizer.bos_id
        if bos is None:
            return ids
        written = 0
        while written < len(ids) and ids[written] == bos:
            written += 1
        return [bos, *ids[written:]] if written or self._tokenizer.add_bos else ids

    def _render_hidden(self, name: str, given: dict[str, Any], add_generation_prompt: bool, plain: str) -> tuple[str, dict[int, str]]:
        """The prompt with the messages hidden behind stand-ins, and the table that reveals them.

        A template may look at a message (does an answer contain '</think>'?) and then decide otherwise. Hiding everything comes first; where that
        changes what the template writes, less is hidden, down to the markers in what users and tools wrote, which are hidden in any case.
        """
        strings = all_strings(list(given.values()))
        markers = sorted({marker for text in strings for marker in self._tokenizer.control_texts_in(text)})
        beginnings = {text[0] for text in self._tokenizer.control_texts() if not text[0].isalnum() and not text[0].isspace()}
        taken = {character for text in (plain, *strings, *self._sources.values()) for character in text if character >= chr(FIRST_STAND_IN)}
        hidden = StandIns(markers, beginnings, strings, taken)
        every, beginnings_too, markers_alone = hidden.hide_all, hidden.hide_beginnings, hidden.hide_markers
        for change, change_keys, assistant_too in (
            (every, every, True),
            (beginnings_too, every, True),
            (markers_alone, every, True),
            (markers_alone, every, False),
            (beginnings_too, markers_alone, True),
            (markers_alone, markers_alone, True),
            (markers_alone, markers_alone, False),
        ):
            changed = hidden.hide(given, change, change_keys)
            if not assistant_too:
                changed["messages"] = [
                    before if before["role"] == "assistant" else after for before, after in zip(given["messages"], changed["messages"], strict=True)
                ]
            try:
                rendered = hidden.without_escapes(self._render(name, changed, add_generation_prompt))
            except ChatTemplateError:
                continue
            if hidden.reveal(rendered) == plain:
                return rendered, hidden.originals
        rendered = self._render(name, hidden.hide(given, markers_alone, markers_alone), add_generation_prompt)
        return hidden.without_escapes(rendered), hidden.originals

    def _given(
        self, name: str, messages: Messages, tools: Sequence[Any] | None, variables: Mapping[str, Any], add_generation_prompt: bool
    ) -> dict[str, Any]:
        """What the caller hands in, checked and copied, for a template may do with it what it likes; contents in the shape that this template takes."""
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
            raise InvalidRequestError(f"messages is {type(messages).__name__}; it must be a list of messages like {{'role': 'user', 'content': 'hi'}}")
        if not messages:
            raise InvalidRequestError("there are no messages; a chat needs at least one, like {'role': 'user', 'content': 'hi'}")
        for place, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise InvalidRequestError(f"message {place} is {type(message).__name__}; it must be a mapping with 'role' and 'content'")
            if not isinstance(message.get("role"), str):
                raise InvalidRequestError(f"message {place} has no role; it must be a string such as 'system', 'user' or 'assistant'")
            check_parts(place, message.get("content"))
        given = {"documents": None, **copied(variables), "messages": copied(messages), "tools": copied(tools)}
        given["messages"] = fitting(given["messages"], lambda shaped: self._rendered(name, {**given, "messages": shaped}, add_generation_prompt))
        return given

    def _rendered(self, name: str, given: Mapping[str, Any], add_generation_prompt: bool) -> str | None:
        """None where the template fails. One that was stopped is not tried again: that takes its time."""
        try:
            return self._render(name, given, add_generation_prompt)
        except ChatTemplateError as error:
            if isinstance(error.__context__, LimitExceeded):
                raise
            return None

    def _chosen(self, name: str | None, tools: Sequence[Any] | None) -> str:
        if name is None:
            name = TOOLS_NAME if tools and TOOLS_NAME in self._sources else DEFAULT_NAME
        self._check_name(name)
        return name

    def _check_name(self, name: str) -> None:
        if name not in self._sources:
            raise ChatTemplateError(f"the model has no chat template named '{name}'; it has {', '.join(sorted(self._sources))}")

    def _render(self, name: str, given: Mapping[str, Any], add_generation_prompt: bool) -> str:
        from jinja2.exceptions import SecurityError, TemplateError, UndefinedError

        tokenizer = self._tokenizer
        special = {
            variable: tokenizer.token_text(token_id)
            for variable, token_id in (
                ("bos_token", tokenizer.bos_id),
                ("eos_token", tokenizer.eos_id),
                ("unk_token", tokenizer.unk_id),
                ("pad_token", tokenizer.pad_id),
            )
            if token_id is not None
        }
        try:
            return render_bounded(self._template(name), {**special, **given, "add_generation_prompt": add_generation_prompt})
        except ChatTemplateError:
            raise
        except RaisedByTemplate as error:
            raise ChatTemplateError(f"the chat template rejects the messages: {error}") from None
        except LimitExceeded as error:
            raise ChatTemplateError(f"the chat template was stopped: {error}. Pass another template, or use completion mode") from None
        except SecurityError as error:
            raise ChatTemplateError(f"the chat template asks for something that the sandbox does not allow: {error}") from None
        except UndefinedError as error:
            raise ChatTemplateError(f"the chat template needs something that the messages do not have: {error}{_odd_content(given['messages'])}") from None
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
            told = f"{type(error).__name__}: {error}{_odd_content(given['messages'])}"
            raise ChatTemplateError(f"the chat template fails on these messages: {told}") from None

    def _template(self, name: str) -> Template:
        from jinja2.exceptions import TemplateError, TemplateSyntaxError

        found = self._compiled.get(name)
        if found is None:
            try:
                found = compile_template(self._sources[name], self._now)
            except TemplateSyntaxError as error:
                raise ChatTemplateError(f"the chat template '{name}' does not parse: line {error.lineno}: {error.message}") from None
            except (LimitExceeded, TemplateError, RecursionError, MemoryError, ValueError, TypeError, SyntaxError, OverflowError) as error:
                raise ChatTemplateError(f"the chat template '{name}' cannot be used: {error}") from None
            self._compiled[name] = found
        return found


def _odd_content(messages: Sequence[Mapping[str, Any]]) -> str:
    """The end of a sentence about the first message whose content is no text, which is why most templates fail; nothing where there is none."""
    for place, message in enumerate(messages):
        if "content" not in message:
            return f"; message {place} has no content"
        content = message["content"]
        if not isinstance(content, str):
            return f"; message {place} has a {type(content).__name__} as its content, and this template may take text alone"
    return ""


_NO_TEMPLATE = (
    f"the model has no chat template ({KEY}); it is a base model, or was converted without one, and a guessed one would give wrong answers. Use completion "
    "mode (Engine.generate, `edgeinfer run`), or pass a template"
)

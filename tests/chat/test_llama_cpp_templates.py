"""All chat templates that llama.cpp collects: each parses, and renders what plain Jinja, set up as transformers does it, renders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeinfer.chat import ChatTemplate
from edgeinfer.core.errors import ChatTemplateError
from edgeinfer.tokenizer import Tokenizer, tokenizer_from_metadata
from tests.conftest import llamacpp_models
from tests.tokenizer.vocabularies import byte_pair_metadata

pytestmark = pytest.mark.llamacpp

SYSTEM = {"role": "system", "content": "You are é."}
TURNS = [
    {"role": "user", "content": "hi <there>"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello & welcome!"},
    {"role": "user", "content": " bye \n"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The "weather" <b>',
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where"}}, "required": ["city"]},
        },
    }
]
TOKENIZER: Tokenizer = tokenizer_from_metadata(byte_pair_metadata())


def _template_names() -> list[str]:
    try:
        return sorted(path.name for path in (llamacpp_models() / "templates").glob("*.jinja"))
    except pytest.skip.Exception:
        return []


def _plain_jinja(source: str, **variables: Any) -> str:
    """Rendering as in transformers' chat_template_utils: same environment, same helpers, none of our bounds."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

        def _render(self, caller: Any) -> Any:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: f"now({form})"
    return environment.from_string(source).render(**variables)


def _special() -> dict[str, str]:
    assert TOKENIZER.bos_id is not None
    assert TOKENIZER.eos_id is not None
    assert TOKENIZER.pad_id is not None
    texts = {"bos_token": TOKENIZER.bos_id, "eos_token": TOKENIZER.eos_id, "pad_token": TOKENIZER.pad_id}
    return {name: TOKENIZER.token_text(token_id) for name, token_id in texts.items()}


def test_there_are_templates_to_test() -> None:
    assert len(list((llamacpp_models() / "templates").glob("*.jinja"))) > 50


@pytest.mark.parametrize("name", _template_names())
@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_a_conversation_is_rendered_as_by_plain_jinja(name: str, system: bool, tools: Any) -> None:
    source = (llamacpp_models() / "templates" / name).read_text(encoding="utf-8")
    messages = [SYSTEM, *TURNS] if system else TURNS
    template = ChatTemplate(source, TOKENIZER, now=lambda form: f"now({form})")
    try:
        expected = _plain_jinja(source, messages=messages, tools=tools, documents=None, add_generation_prompt=True, **_special())
    except Exception as error:
        with pytest.raises(ChatTemplateError) as caught:
            template.render(messages, tools)
        if type(error).__name__ == "TemplateError":
            assert str(error) in str(caught.value)
        return
    assert template.render(messages, tools) == expected
    assert TOKENIZER.decode(template.encode(messages, tools)).removeprefix("<|begin_of_text|>") == expected.removeprefix("<|begin_of_text|>")


def test_most_templates_accept_the_conversation() -> None:
    accepted = 0
    for path in (llamacpp_models() / "templates").glob("*.jinja"):
        try:
            ChatTemplate(path.read_text(encoding="utf-8"), TOKENIZER).render([SYSTEM, *TURNS], TOOLS)
        except ChatTemplateError:
            continue
        accepted += 1
    assert accepted > 55

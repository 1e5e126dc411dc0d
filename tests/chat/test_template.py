"""What a chat template may do, what is refused, and which helpers it finds."""

from __future__ import annotations

import copy
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.chat import ChatTemplate
from edgeinfer.core.errors import ChatTemplateError, InvalidRequestError
from edgeinfer.tokenizer import tokenizer_from_metadata
from tests.tokenizer.vocabularies import byte_pair_metadata

TOKENIZER = tokenizer_from_metadata(byte_pair_metadata())
USER = [{"role": "user", "content": "hi"}]


def _render(source: str, messages: Any = None, tools: Any = None, **variables: Any) -> str:
    template = ChatTemplate(source, TOKENIZER, now=datetime(2024, 3, 5, 14, 7, 9).strftime)
    return template.render(USER if messages is None else messages, tools, **variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ strftime_now('%d %b %Y %H:%M:%S %A') }}", "05 Mar 2024 14:07:09 Tuesday"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "0134"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}", "hi!"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ tools is defined }} {{ tools is none }} {{ documents is defined }}", "True True True"),
        ("{% for m in messages %}\n    {% if m.role == 'user' %}\nU:{{ m['content'] }}\n    {% endif %}\n{% endfor %}", "U:hi\n"),
        ("{{ {'a': '<é>', 'b': [1, none, true]} | tojson }}", '{"a": "<é>", "b": [1, null, true]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": 2\n}'),
        ("{{ bos_token }}{{ eos_token }}{{ unk_token }}", "<|begin_of_text|><|end_of_text|>"),
        ("{{ add_generation_prompt }}", "True"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{% for m in messages %}{{ f(m.role) }}{{ loop.last }}{% endfor %}", "[user]True"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}{% set x, y = 1, 2 %}{{ x }}{{ y }}", "a112"),
        ("{{ messages | map(attribute='role') | join(', ') | upper }}{{ messages[0].content[1:] }}{{ 'a' in ['a', 'b'] }}", "USERiTrue"),
        ("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "False"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{:>4}'.format('x') }}{{ 'ab'.replace('b', 'c') }}{{ 2 ** 3 }}{{ 'x' * 3 }}", "a-3   xac8xxx"),
    ],
)
def test_helpers_of_common_templates(source: str, expected: str) -> None:
    assert _render(source) == expected


def test_variables_reach_the_template() -> None:
    assert _render("{{ enable_thinking }} {{ add_generation_prompt }}", enable_thinking=False, add_generation_prompt=False) == "False False"


ESCAPES = [
    "{{ lipsum.__globals__['os'].system('touch PWNED') }}",
    "{{ cycler.__init__.__globals__.os.system('touch PWNED') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ (''|attr('__class__')).mro() }}",
    "{{ messages.append(1) }}",
    "{{ messages.pop() }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].clear() }}",
    "{% set _ = messages[0].setdefault('x', 1) %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_leave_the_sandbox_or_change_the_messages(source: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    messages = copy.deepcopy(USER)
    template = ChatTemplate(source.replace("PWNED", str(mark)), TOKENIZER)
    for ask in (template.render, template.encode):
        with pytest.raises(ChatTemplateError):
            ask(messages)
    assert not mark.exists()
    assert messages == USER


BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ range(10**9) | list }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ 'x' * 10**9 }}",
    "{{ 10**9 * 'x' }}",
    "{{ [0] * 10**9 }}",
    "{{ (10**1000)**1000 }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ ('\\t' * 1000).expandtabs(10**6) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ ('x\\n' * 100000) | indent(99999) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**9) }}",
    "{{ [1, 2] | tojson(indent=10**6) }}",
    "{% set s = 'a' * 1000000 %}{{ s.replace('a', s) }}",
    "{% set s = 'a' * 1000000 %}{{ s | replace('a', s) }}",
    "{% set s = 'a' * 9000000 %}{{ [s, s, s] | join }}",
    "{% set s = 'a' * 9000000 %}{{ ''.join([s, s, s]) }}",
    "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s }}{% endfor %}",
    "{% set x %}{% for i in range(100000) %}{{ 'a' * 1000000 }}{% endfor %}{% endset %}",
    "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x | tojson }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "x" * 300_000,
]


@pytest.mark.parametrize("source", BOMBS, ids=[source[:60] for source in BOMBS])
def test_time_and_size_are_bounded(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChatTemplateError):
        _render(source)
    assert time.monotonic() - start < 30


def test_the_next_request_works_after_a_stopped_one() -> None:
    template = ChatTemplate("{% for i in range(messages[0].n) %}{% for j in range(messages[0].n) %}{% endfor %}{% endfor %}ok", TOKENIZER)
    with pytest.raises(ChatTemplateError, match="stopped"):
        template.render([{"role": "user", "n": 100_000}])
    assert template.render([{"role": "user", "n": 10}]) == "ok"


REJECTING = """{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{%- for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{{- m.content }}{% endfor %}"""


@pytest.mark.parametrize(
    ("roles", "message"),
    [(("system", "user"), "System role not supported"), (("user", "user"), "Roles must alternate"), (("assistant",), "Roles must alternate")],
)
def test_a_templates_own_words_reach_the_caller(roles: tuple[str, ...], message: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"rejects the messages: {message}"):
        _render(REJECTING, [{"role": role, "content": "x"} for role in roles])
    assert _render(REJECTING, [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]) == "xxx"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if 1 %}", "does not parse: line 1"),
        ("a\n{{ x y }}", "does not parse: line 2"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[7].content.x }}", "do not have: list object has no element 7"),
        ("{{ nothing.x }}", "'nothing' is undefined"),
        ("{{ messages | no_such_filter }}", "no_such_filter"),
    ],
)
def test_defects_of_a_template_are_named(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        _render(source)


@pytest.mark.parametrize("messages", [[], (), "hi", {"role": "user"}, None, ["hi"], [{"content": "hi"}], [{"role": 5}], [None]])
def test_messages_must_be_messages(messages: Any) -> None:
    template = ChatTemplate("{{ messages }}", TOKENIZER)
    for ask in (template.render, template.encode):
        with pytest.raises(InvalidRequestError):
            ask(messages)


@pytest.mark.parametrize("content", ["", " "])
def test_empty_content_is_the_templates_affair(content: str) -> None:
    assert _render("[{{ messages[0].content }}]", [{"role": "user", "content": content}]) == f"[{content}]"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user", "content": {"text": "A"}}, "message 1 has a dict as its content, and this template may take text alone"),
        ({"role": "user", "content": 5}, "message 1 has a int as its content, and this template may take text alone"),
        ({"role": "user"}, "message 1 has no content"),
    ],
)
def test_content_that_a_template_cannot_take_is_named(message: dict[str, Any], told: str) -> None:
    with pytest.raises(ChatTemplateError, match=told):
        _render("{% for message in messages %}{{ '<' + message.content + '>' }}{% endfor %}", [{"role": "system", "content": "s"}, message])


def test_a_model_without_a_template_is_refused_with_the_remedy() -> None:
    with pytest.raises(ChatTemplateError, match="no chat template.*completion mode.*pass a template"):
        ChatTemplate.from_metadata({"general.name": "base", "tokenizer.chat_templates": ["x"]}, TOKENIZER)
    with pytest.raises(ChatTemplateError, match="must be a string"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 5}, TOKENIZER)


def test_a_template_is_chosen_by_name_and_by_tools() -> None:
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools", "tokenizer.chat_template.rag": "rag"}
    template = ChatTemplate.from_metadata(metadata, TOKENIZER)
    assert set(template.names) == {"default", "tool_use", "rag"}
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[]) == "plain"
    assert template.render(USER, tools=[{"type": "function"}]) == "tools"
    assert template.render(USER, tools=[{"type": "function"}], template_name="default") == "plain"
    assert template.render(USER, template_name="rag") == "rag"
    with pytest.raises(ChatTemplateError, match="named 'other'.*default, rag, tool_use"):
        template.render(USER, template_name="other")

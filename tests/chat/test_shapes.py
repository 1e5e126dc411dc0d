"""Messages in the shapes that clients send: every template gets the one that it can take, and nothing that was said is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeinfer.chat import ChatTemplate
from edgeinfer.core.errors import ChatTemplateError, InvalidRequestError
from edgeinfer.tokenizer import Tokenizer, tokenizer_from_metadata
from tests.conftest import llamacpp_models
from tests.tokenizer.vocabularies import byte_pair_metadata

TOKENIZER: Tokenizer = tokenizer_from_metadata(byte_pair_metadata(add_bos_token=False))

JOINS = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
PRINTS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PRINTS_JSON = "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}"
SKIPS = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}"
TAKES_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}[{{ part.text }}]{% endfor %}"
    "{% endif %}{% endfor %}"
)
TAKES_NONE = "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}calls{% else %}{{ m.content }}{% endif %}{% endfor %}"


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _render(source: str, messages: Any) -> str:
    """The prompt as text, which the prompt as token ids has to spell too."""
    template = ChatTemplate(source, TOKENIZER)
    rendered = template.render(messages)
    assert TOKENIZER.decode(template.encode(messages)) == rendered
    return rendered


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    ("source", "expected"),
    [(JOINS, "A \nB"), (PRINTS, "A \nB"), (PRINTS_JSON, '"A \\nB"'), (SKIPS, "A \nB"), (TAKES_PARTS, "[A ][B]"), (TAKES_NONE, "A \nB")],
)
def test_parts_are_kept_in_order_for_every_role(role: str, source: str, expected: str) -> None:
    first = '"x"' if source == PRINTS_JSON else "x"
    assert _render(source, [{"role": "user", "content": "x"}, {"role": role, "content": _parts("A ", "B")}]) == f"<user>{first}<{role}>{expected}"


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


@pytest.mark.parametrize("answer", [{"content": None}, {}, {"content": []}])
@pytest.mark.parametrize(("source", "expected"), [(JOINS, ""), (PRINTS, ""), (PRINTS_JSON, '""'), (TAKES_PARTS, "")])
def test_nothing_beside_tool_calls_is_an_empty_text(answer: dict[str, Any], source: str, expected: str) -> None:
    messages = [{"role": "assistant", **answer, "tool_calls": [CALL]}, {"role": "tool", "content": None}]
    assert _render(source, messages) == f"<assistant>{expected}<tool>{expected}"


def test_shapes_of_several_kinds_in_one_conversation() -> None:
    messages = [
        {"role": "user", "content": _parts("A", "B")},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a":1}'}}]},
        {"role": "tool", "content": _parts("C")},
    ]
    calls = "{% for call in m.tool_calls %}{{ call.function.arguments['a'] }}{% endfor %}"
    assert _render(JOINS.replace("{% endfor %}", calls + "{% endfor %}"), messages) == "<user>A\nB<assistant>1<tool>C"
    assert _render(TAKES_NONE.replace("{% endfor %}", calls + "{% endfor %}"), messages) == "<user>A\nB<assistant>calls1<tool>C"
    assert _render(TAKES_PARTS.replace("{% endfor %}{% endif", "|{% endfor %}{% endif"), messages) == "<user>[A]|[B]|<assistant><tool>[C]|"


def test_a_template_that_takes_too_long_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.chat import template as module

    tried = []
    monkeypatch.setattr(module, "render_bounded", lambda *given, real=module.render_bounded: tried.append(1) or real(*given))
    with pytest.raises(ChatTemplateError, match="was stopped"):
        ChatTemplate("{{ 'x' * 10**9 }}", TOKENIZER).render([{"role": "assistant", "content": None, "tool_calls": [CALL]}])
    assert len(tried) == 1


def test_a_template_that_knows_none_is_told_none() -> None:
    assert _render(TAKES_NONE, [{"role": "assistant", "content": None, "tool_calls": [CALL]}]) == "<assistant>calls"


def test_words_that_a_user_says_are_no_traces_of_a_shape() -> None:
    messages = [{"role": "user", "content": "None, null, 'type': 'text'"}, {"role": "user", "content": _parts("None")}]
    assert _render(TAKES_PARTS, messages) == "<user>None, null, 'type': 'text'<user>[None]"


def test_a_template_that_fails_on_both_shapes_says_why() -> None:
    with pytest.raises(ChatTemplateError, match="rejects the messages: no systems here"):
        _render("{{ raise_exception('no systems here') }}", [{"role": "system", "content": _parts("A")}])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([{"type": "text", "text": "A"}, {"type": "image_url", "image_url": {"url": "x"}}], "message 1 has a part of type 'image_url'"),
        ([{"text": "A"}], "message 1 has a part of type None"),
        (["A"], "message 1 has a part that is a str"),
        ([{"type": "text"}], "message 1 has a part without a text"),
        ([{"type": "text", "text": None}], "message 1 has a part without a text"),
    ],
)
def test_parts_that_are_no_texts_are_refused(content: Any, told: str) -> None:
    template = ChatTemplate(TAKES_PARTS, TOKENIZER)
    for ask in (template.render, template.encode):
        with pytest.raises(InvalidRequestError, match=told):
            ask([{"role": "user", "content": "x"}, {"role": "user", "content": content}])


ARGUMENTS = {"city": 'the "big" one', "n": 1}
WRITTEN = json.dumps(ARGUMENTS)
CALLS = "{% for m in messages %}{% for call in m.tool_calls %}%s{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        ("{{ call.function.arguments | tojson }}", WRITTEN),
        ("{{ call.function.arguments }}", WRITTEN),
        ("{{ '!' + call.function.arguments }}", "!" + WRITTEN),
        ("{% if call.function.arguments is string %}text{% else %}object{% endif %}", "object"),
        ("{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}", 'city=the "big" one;n=1;'),
    ],
)
@pytest.mark.parametrize("arguments", [ARGUMENTS, WRITTEN], ids=["object", "JSON"])
def test_arguments_reach_a_template_in_the_form_that_it_writes_right(arguments: Any, write: str, expected: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    rendered = _render(CALLS.replace("%s", write), [{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert rendered == expected


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "5", "", '{"a":1,  "b":2}'])
def test_arguments_that_are_no_object_or_may_stay_a_text_stay_what_they_are(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    assert _render(CALLS.replace("%s", "{{ call.function.arguments }}"), [{"role": "assistant", "content": "", "tool_calls": [call]}]) == arguments


@pytest.mark.llamacpp
def test_templates_of_real_models_take_parts() -> None:
    """Every template that llama.cpp collects and that takes texts, takes them as parts too, whole and in order."""
    tried = 0
    for path in sorted((llamacpp_models() / "templates").glob("*.jinja")):
        template = ChatTemplate(path.read_text(encoding="utf-8"), TOKENIZER)
        for before, role, after in (([], "user", []), ([{"role": "user", "content": "x"}], "assistant", [{"role": "user", "content": "y"}])):
            try:
                as_text = template.render([*before, {"role": role, "content": "First\nSecond"}, *after])
            except ChatTemplateError:
                continue
            if "First" not in as_text:
                continue
            rendered = template.render([*before, {"role": role, "content": _parts("First", "Second")}, *after])
            assert 0 < rendered.find("First") < rendered.find("Second"), path.name
            assert rendered.count("'type'") == as_text.count("'type'"), path.name
            tried += 1
    assert tried > 100

"""What a chat template shows of a request: system messages and tools."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from miniatures.toy.tokenizer import CHAT_TEMPLATE
from openrlhf_tir.data.chat_template import ChatTemplate
from openrlhf_tir.data.jinja_template import of_text
from openrlhf_tir.data.template_shows import Shows, shown_by, shown_by_tokenizer
from openrlhf_tir.protocol import PYTHON_TOOL

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
WITHOUT_SYSTEM = "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
DEFAULT_SYSTEM = "{% if messages[0].role != 'system' %}<|system|>You are helpful.{% endif %}"
NO_TOOLS = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
TEMPLATES = {
    "messages alone": (PLAIN, Shows(system=True, tools=False)),
    "messages and tools": (TOOLS + PLAIN, Shows(system=True, tools=True)),
    "a system message is refused": (NO_SYSTEM + TOOLS + PLAIN, Shows(system=False, tools=True)),
    "a system message is left out": (WITHOUT_SYSTEM, Shows(system=False, tools=False)),
    "a system message takes the place of a default one": (DEFAULT_SYSTEM + PLAIN, Shows(system=True, tools=False)),
    "a system message takes away a default one": (DEFAULT_SYSTEM + WITHOUT_SYSTEM, Shows(system=False, tools=False)),
    "tools are refused": (NO_TOOLS + PLAIN, Shows(system=True, tools=False)),
    "everything is refused": ("{{ raise_exception('no') }}", Shows()),
}


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_is_asked_with_and_without_system_message_and_tools(template, expected):
    assert shown_by(ChatTemplate(of_text(template, {}), ())) == expected
    assert shown_by_tokenizer(SimpleNamespace(chat_template=template, special_tokens_map={})) == expected


@pytest.mark.parametrize("template", [None, {"other": PLAIN}, "{% for %}"], ids=["none", "not by default", "no Jinja"])
def test_a_template_that_cannot_be_read_is_left_to_those_who_use_it(template):
    assert shown_by_tokenizer(SimpleNamespace(chat_template=template, special_tokens_map={})) == Shows()


def test_the_toy_model_s_template_shows_the_tools_of_a_script_and_leaves_its_own_prompts_as_they_were():
    template = ChatTemplate(of_text(CHAT_TEMPLATE, {}), ())
    question = [{"role": "user", "content": "1+1?"}]
    assert shown_by(template).tools
    assert template.render(question, [PYTHON_TOOL]) == template.render(question) == "User: 1+1?\nAssistant:"

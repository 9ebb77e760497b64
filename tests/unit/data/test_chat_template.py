"""Chat templates without transformers: a model's directory says what its tokenizer says."""

from __future__ import annotations

import pytest

from openrlhf_tir.data.chat_template import ChatTemplate, TemplateRefuses
from openrlhf_tir.data.jinja_template import of_directory, of_text
from openrlhf_tir.data.template_check import check_template
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.protocol import PYTHON_TOOL
from tests.unit.rollout.protocols.chat_models import SPECIALS, tokenizer

CHAT = [
    {"role": "user", "content": "How much?"},
    {"role": "assistant", "content": " <think>\nhm\n</think>\n\nIt is 7. "},
    {"role": "user", "content": 'Sure? "é☃"'},
]


@pytest.mark.parametrize("tools", [[], [PYTHON_TOOL]], ids=["no tools", "tools"])
@pytest.mark.parametrize("model", SPECIALS)
def test_a_directory_renders_as_its_tokenizer_does(model, tools, tmp_path):
    tokenizer(model).save_pretrained(tmp_path)
    here, there = of_directory(tmp_path, {}), ChatTemplate.of(tokenizer(model), {})
    assert here.render(CHAT, tools) == there.render(CHAT, tools)
    assert here.render(CHAT[:2], tools, go_on=False) == there.render(CHAT[:2], tools, go_on=False)
    assert here.pieces(there.render(CHAT, tools)) == there.pieces(there.render(CHAT, tools))


def test_options_reach_the_template_on_both_ways(tmp_path):
    tokenizer("qwen3").save_pretrained(tmp_path)
    options = {"enable_thinking": False}
    for template in (of_directory(tmp_path, options), ChatTemplate.of(tokenizer("qwen3"), options)):
        assert template.render(CHAT[:1]).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


GOES_ON = """{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}<|reply>response:{{ m.name or 'x' }}{value:\
<|"|>{{ m.content }}<|"|>}<reply|>{% else %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<|call>call:{{ c.function.name }}{{ '{' }}\
{% for k, v in c.function.arguments.items() %}{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}{{ '}' }}<call|>{% endfor %}\
{% if not (m.tool_calls and not loop.last) %}<turn|>
{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model
{% endif %}"""
"""As Gemma 4's: a tool's reply stands in the model's own turn, and names the function."""
CALLS_END = """{% for m in messages %}{% if m.role == 'tool' %}<|start|>functions.{{ messages[loop.index0 - 1]\
.tool_calls[0].function.name }} to=assistant<|message|>{{ m.content | tojson }}<|end|>{% elif m.tool_calls %}<|start|>\
assistant to=functions.{{ m.tool_calls[0].function.name }}<|message|>{{ m.tool_calls[0].function.arguments | tojson }}\
<|call|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""As gpt-oss's: a call ends by a token of its own, and the reply names the function again."""


@pytest.mark.parametrize(
    ("template", "specials", "tail"),
    [
        (
            GOES_ON,
            '<|turn> <turn|> <|call> <call|> <|reply> <reply|> <|"|>',
            '<|reply>response:python{value:<|"|>4<|"|>}<reply|>',
        ),
        (
            CALLS_END,
            "<|start|> <|end|> <|call|> <|message|>",
            '<|call|><|start|>functions.python to=assistant<|message|>"4"<|end|><|start|>assistant',
        ),
    ],
    ids=["the turn goes on", "a call has an end of its own"],
)
def test_what_stands_behind_a_call_begins_where_the_call_ends(template, specials, tail):
    made = ChatTemplate(of_text(template, {"bos_token": "<bos>"}), specials.split())
    replies = [{"role": "tool", "name": "python", "content": "4", "tool_call_id": "call00001"}]
    assert made.tail(CHAT[:1], replies, [PYTHON_TOOL], call=True) == tail
    if template is CALLS_END:
        assert check_template(made, replies, [PYTHON_TOOL]).call is True


def test_a_template_that_repeats_the_call_behind_it_is_refused():
    """What would be inserted depends on the arguments, which nobody knows before they are sampled."""
    repeats = CALLS_END.replace(
        "to=assistant<|message|>", "{{ messages[loop.index0 - 1].tool_calls[0].function.arguments }}"
    )
    made = ChatTemplate(of_text(repeats, {}), ["<|start|>", "<|end|>", "<|call|>", "<|message|>"])
    replies = [{"role": "tool", "name": "python", "content": "4", "tool_call_id": "call00001"}]
    with pytest.raises(TemplateRefuses):
        made.tail(CHAT[:1], replies, [PYTHON_TOOL], call=True)


def test_a_template_with_marks_for_trainers_renders_as_without_them():
    marked = "{% for m in messages %}{%- generation -%}{{ m.content }}{%- endgeneration %}|{% endfor %}"
    assert of_text(marked, {})([{"role": "user", "content": "a"}]) == "a|"


def test_what_a_template_raises_is_told_with_the_roles(tmp_path):
    tokenizer("mistral_v1").save_pretrained(tmp_path)
    with pytest.raises(TemplateRefuses, match="user: TemplateError: Conversation roles must alternate"):
        of_directory(tmp_path, {}).render([CHAT[0], CHAT[2]])


def test_a_template_that_is_no_jinja_is_refused_with_its_line(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    with pytest.raises(ConfigError, match=r" 2: unexpected '}'"):
        of_directory(tmp_path, {})


def test_a_directory_without_a_template_has_none(tmp_path):
    assert of_directory(tmp_path, {}) is None

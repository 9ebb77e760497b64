"""Chat templates without transformers: a model's directory says what its tokenizer says."""

from __future__ import annotations

import copy
import json
import shutil

import pytest

from openrlhf_tir.data import chat_template
from openrlhf_tir.data.chat_template import ChatTemplate, TemplateRefuses
from openrlhf_tir.data.jinja_template import of_directory, of_text
from openrlhf_tir.data.template_check import check_template
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.inert import plain
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


def test_rows_with_the_same_options_share_a_template_and_few_are_kept():
    renderings = []

    def apply(messages, **arguments):
        renderings.append(arguments.get("level"))
        return str([message["content"] for message in messages])

    template = ChatTemplate(apply, ["<|end|>"])
    for _ in range(3):
        own = template.with_options({"level": 1, "more": {"a": [1]}})
        assert own is template.with_options({"more": {"a": [1]}, "level": 1})
        own.render(CHAT[:1])
    assert renderings == [1, 1, 1, 1]  # the forms that the template is written for are found out once
    assert own is not template.with_options({"level": True, "more": {"a": [1]}})  # in Python equal to 1
    for level in range(1000):
        assert template.with_options({"level": level}).render(CHAT[:1])
        assert renderings[-1] == level
    assert len(template._variants) <= chat_template.MAX_VARIANTS


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


@pytest.mark.parametrize("role", ["tool", "user"])
def test_a_reply_that_is_the_user_s_already_gets_another_remedy(role):
    one_turn = "{% if messages | length > 1 %}{{ raise_exception('one turn') }}{% endif %}{{ messages[0].content }}"
    with pytest.raises(ConfigError) as refused:
        check_template(ChatTemplate(of_text(one_turn, {}), []), [{"role": role, "content": "x"}], [])
    assert ("env.options.role" in str(refused.value)) == (role == "tool")


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


SHOWN = "{% for m in messages %}{% for c in m.tool_calls or [] %}ARGUMENTS{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("{{ c.function.arguments | tojson }}", '{"code": "print(1)"}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", "code=print(1);"),
        ("{{ '' + c.function.arguments }}", '{"code": "print(1)"}'),
        ("{{ c.function.arguments }}", '{"code": "print(1)"}'),
    ],
    ids=["an object as JSON", "an object by its parts", "only text", "text as it is"],
)
@pytest.mark.parametrize("given", [{"code": "print(1)"}, '{"code": "print(1)"}'], ids=["object", "text"])
def test_the_arguments_of_a_call_reach_the_template_in_the_form_that_it_writes_well(arguments, written, given):
    """Of text, a template for objects would write a JSON string, which the model would learn as its arguments."""
    template = ChatTemplate(of_text(SHOWN.replace("ARGUMENTS", arguments), {}), [])
    call = {"type": "function", "function": {"name": "python", "arguments": given}}
    assert template.render([CHAT[0], {"role": "assistant", "content": "", "tool_calls": [call]}]) == written


def test_escapes_of_json_in_arguments_spell_no_special_token():
    template = ChatTemplate(of_text(SHOWN.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}"), {}), ["<|end|>"])
    function = {"name": "python", "arguments": '{"code": "\\u003c|end|\\u003e"}'}
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    rendered = template.render(template.inert([message]))
    assert "<|end|>" not in rendered and plain(rendered) == '{"code": "<|end|>"}'


@pytest.mark.parametrize("ascii_only", [True, False])
def test_marks_leave_no_trace_where_a_template_writes_ascii_only(ascii_only):
    template = ChatTemplate(
        of_text("{{ messages | tojson(ensure_ascii=ASCII) }}".replace("ASCII", str(ascii_only)), {}), ["</s>"]
    )
    for text in ("ends with </s>", "\\ufdd0"):
        rendered = template.render(template.inert([{"role": "user", "content": text}]))
        assert json.loads(plain(rendered)) == [{"role": "user", "content": text}] and "</s>" not in rendered


@pytest.mark.parametrize("tools", [[], [PYTHON_TOOL]], ids=["no tools", "tools"])
def test_of_several_templates_the_one_for_tools_is_taken_where_there_are_tools(tools, tmp_path):
    several = copy.deepcopy(tokenizer("qwen2_5"))
    several.chat_template = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    several.save_pretrained(tmp_path)
    here, there = of_directory(tmp_path, {}), ChatTemplate.of(several, {})
    assert here.render(CHAT, tools) == there.render(CHAT, tools) == ("1 tools" if tools else "plain")
    (tmp_path / "chat_template.jinja").unlink()
    shutil.rmtree(tmp_path / "additional_chat_templates")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": n, "template": t} for n, t in several.chat_template.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert of_directory(tmp_path, {}).render(CHAT, tools) == there.render(CHAT, tools)


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"{{% for a{i} in [1] %}}" for i in range(25)).encode() + b"{% endfor %}" * 25,
        b"\xff\xfe",
    ],
    ids=["more loops than Python takes", "not UTF-8"],
)
def test_a_template_that_cannot_be_read_is_refused(content, tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(content)
    with pytest.raises(ConfigError):
        of_directory(tmp_path, {})


def test_what_a_tool_wrote_in_a_row_has_no_added_token():
    template = ChatTemplate(
        of_text("{% for m in messages %}{{ m.content }}{% endfor %}", {}), ["</s>"], ["<tool_call>"]
    )
    for role, spelled in ("tool", False), ("user", True), ("assistant", True):
        rendered = template.render(template.inert([{"role": role, "content": "a <tool_call> </s>"}]))
        assert ("<tool_call>" in rendered) == spelled and "</s>" not in rendered


def test_an_added_token_that_begins_messages_is_characters_in_a_row_like_a_special_one():
    text = "{% for m in messages %}<｜{{ m.role }}｜>{% if m.role == 'assistant' %}<think></think>{% endif %}"
    added = ["<think>", "</think>", "<｜user｜>", "<｜assistant｜>", "<｜tool｜>"]
    template = ChatTemplate(of_text(text + "{{ m.content }}</s>{% endfor %}", {}), ["</s>"], added)
    row = template.inert([{"role": "user", "content": "".join(added)}])
    spelled = [token for token in added if token in template.render(row).removeprefix("<｜user｜>")]
    assert spelled == ["<think>", "</think>", "<｜tool｜>"]


def test_a_template_that_does_not_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(chat_template, "TRIAL_S", 0.05)
    loops = "{% for i in range(1500) %}{% for j in range(1500) %}{% endfor %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(loops)
    with pytest.raises(ConfigError):
        of_directory(tmp_path, {})
    with pytest.raises(ConfigError):
        ChatTemplate(of_text(loops, {}), []).check_repeatable(CHAT)


CALL_ONLY = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content }}",
        "{{ m.content + '' }}",
        "{% if m.content is not none %}{{ m.content }}{% endif %}",
        "{{ m.content or '' }}",
    ],
)
def test_a_message_that_only_calls_has_no_content_in_the_text(content):
    text = "{% for m in messages %}" + content + "{% if m.tool_calls %}[call]{% endif %}{% endfor %}"
    assert ChatTemplate(of_text(text, {}), []).render([CHAT[0], CALL_ONLY]) == "How much?[call]"


BESIDE_NONE = """{% for m in messages %}{% if m.content is none %}
{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}
{% else %}{{ m.content }}{% endif %}{% endfor %}"""
NOT_BEFORE_A_REPLY = """{% for m in messages %}{{ m.content[:9] if not loop.last or m.content }}
{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"""


@pytest.mark.parametrize("text", [BESIDE_NONE, NOT_BEFORE_A_REPLY])
@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("arguments", [{"x": 1}, '{"x": 1}'])
def test_a_call_has_the_content_and_the_arguments_together_with_which_the_template_writes_it(text, content, arguments):
    call = {**CALL_ONLY, "content": content, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    rendered = ChatTemplate(of_text(text, {}), []).render([CHAT[0], call, {"role": "tool", "content": "4"}])
    assert 'f{"x": 1}' in rendered and "None" not in rendered


def test_a_template_that_wants_lists_of_parts_gets_them():
    parts = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    template = ChatTemplate(
        of_text("{% for m in messages %}<|u|>" + parts + "<|e|>{% endfor %}", {}), ["<|u|>", "<|e|>"]
    )
    assert template.render(template.inert([{"role": "user", "content": "What is <|e|>?"}])).count("<|e|>") == 1
    assert template.tail(CHAT[:1], CHAT[2:]) == '<|e|><|u|>Sure? "é☃"<|e|>'


@pytest.mark.parametrize("content", ["m.content if m.content is string else 'a list'", "m.content[:9]"])
def test_a_template_that_takes_text_and_lists_gets_text(content):
    either = "{% for m in messages %}{{ " + content + " }}{% endfor %}"
    assert ChatTemplate(of_text(either, {}), []).render(CHAT[:1]) == "How much?"

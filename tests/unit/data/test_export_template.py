"""Chat templates that ask as a run asked: rendered by transformers' own renderer."""

from __future__ import annotations

import pytest
from jinja2.exceptions import TemplateError

from openrlhf_tir.config import Data
from openrlhf_tir.data import templates
from openrlhf_tir.data.export_template import Block, chat_template, raw_template, without_question
from openrlhf_tir.data.prompts import load_prompts

OWN = (
    "{%- for m in messages %}<{{m.role}}>{{m.content}}</>\n{% endfor %}{% if"
    " add_generation_prompt %}<assistant>{% endif %}"
)
QUESTION = "  What is 1+1?\n"
INPUT_TEMPLATES = (
    None,
    "user_assistant",
    "zerotir",
    "torl",
    "a {} b {{x}}",
    "{input}",
    "twice {input} and {input}!",
    "é😀\"'\\ {input} %}} {# \r\n\n",
)
ZEROTIR = Block("\n```output\n", "\n```\n\n\n", strips=False)


def shown(template: str, *messages: tuple[str, str], **more: object) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = [{"role": role, "content": content} for role, content in messages]
    return render_jinja_template([chat], chat_template=template, **more)[0][0]


def asked(template: str | None, question: str = QUESTION) -> str:
    """The prompt of a rollout."""
    return templates.render(templates.resolve(template), question)


@pytest.mark.parametrize("template", INPUT_TEMPLATES)
def test_a_raw_template_gives_the_prompt_of_the_rollouts_to_the_letter(template):
    raw = raw_template(Data(input_template=template), ZEROTIR)
    assert (
        shown(raw, ("user", QUESTION)) == shown(raw, ("user", QUESTION), add_generation_prompt=True) == asked(template)
    )


@pytest.mark.parametrize("template", [t for t in INPUT_TEMPLATES if t and not t.startswith("twice")])
def test_a_question_that_is_inside_already_stays_as_it_is(template):
    data = Data(input_template=template)
    assert shown(raw_template(data, ZEROTIR), ("user", asked(template))) == asked(template)
    assert shown(chat_template(OWN, data), ("user", asked(template))) == shown(OWN, ("user", asked(template)))


def test_a_template_with_columns_of_a_row_is_left_to_the_caller_who_has_them():
    data = Data(input_template="{level}: {}")
    assert shown(raw_template(data, ZEROTIR), ("user", "easy: 1+1?")) == "easy: 1+1?"
    assert chat_template(OWN, data) == OWN


def test_a_tools_output_stands_in_the_protocols_block_untouched():
    raw = raw_template(Data(input_template="user_assistant"), ZEROTIR)
    text = shown(
        raw, ("user", "1+1?"), ("assistant", "```python\nprint(2)\n```"), ("tool", "2\n"), ("assistant", " so 2")
    )
    assert text == "User: 1+1?\nAssistant:```python\nprint(2)\n```\n```output\n2\n\n```\n\n\n so 2"
    stripping = raw_template(Data(), Block("<o>", "</o>", strips=True))
    assert shown(stripping, ("tool", " 2\n")) == "<o>2</o>"


def test_what_the_model_has_never_seen_is_refused():
    raw = raw_template(Data(), None)
    for role, said in (("system", "without a system message"), ("tool", "run_elsewhere")):
        with pytest.raises(TemplateError, match=said):
            shown(raw, (role, "x"))


@pytest.mark.parametrize("template", INPUT_TEMPLATES)
def test_a_models_own_template_gets_the_first_question_inside_the_input_template(template):
    both = chat_template(OWN, Data(input_template=template))
    chat = [("system", "s"), ("user", QUESTION), ("assistant", "a"), ("user", "again")]
    wanted = [(role, asked(template) if content == QUESTION else content) for role, content in chat]
    assert shown(both, *chat, add_generation_prompt=True) == shown(OWN, *wanted, add_generation_prompt=True)


def test_a_second_run_with_another_input_template_starts_from_the_models_own():
    first = chat_template(OWN, Data(input_template="zerotir"))
    assert without_question(first) == OWN == chat_template(first, Data())
    assert chat_template(first, Data(input_template="torl")) == chat_template(OWN, Data(input_template="torl"))


def test_training_an_exported_model_further_asks_this_runs_question_alone(tmp_path):
    class Tokenizer:
        chat_template = globals()["chat_template"](OWN, Data(input_template="zerotir"))

        def __call__(self, texts, add_special_tokens):
            return {"input_ids": [list(t) for t in texts]}

        def apply_chat_template(self, chat, tokenize, add_generation_prompt, chat_template=None, tools=None):
            return shown(
                chat_template or self.chat_template,
                *((m["role"], m["content"]) for m in chat),
                add_generation_prompt=add_generation_prompt,
            )

    (tmp_path / "d.jsonl").write_text('{"prompt": "1+1?", "label": "2"}\n')
    data = Data(prompt_dataset=str(tmp_path / "d.jsonl"), input_template="Q: {}", apply_chat_template=True)
    assert load_prompts(data, Tokenizer())[0].prompt == shown(OWN, ("user", "Q: 1+1?"), add_generation_prompt=True)

"""Chat templates without transformers: a model's directory says what its tokenizer says."""

from __future__ import annotations

import pytest

from openrlhf_tir.data.chat_template import ChatTemplate, TemplateRefuses
from openrlhf_tir.data.jinja_template import of_directory
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.protocol import PYTHON_TOOL
from tests.unit.episodes.chat_models import SPECIALS, tokenizer

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


def test_what_a_template_raises_is_told_with_the_roles(tmp_path):
    tokenizer("mistral_v1").save_pretrained(tmp_path)
    with pytest.raises(
        TemplateRefuses, match=r"a conversation of user, user: TemplateError: Conversation roles must alternate"
    ):
        of_directory(tmp_path, {}).render([CHAT[0], CHAT[2]])


def test_a_template_that_is_no_jinja_is_refused_with_its_line(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    with pytest.raises(ConfigError, match="is no Jinja: line 2"):
        of_directory(tmp_path, {})


def test_a_directory_without_a_template_has_none(tmp_path):
    assert of_directory(tmp_path, {}) is None

"""Write a Jinja template that asks questions as the run asked them, for the model that the run exports.

    data.apply_chat_template off    messages are joined as raw text: a question inside data.input_template, an
                                    assistant's text as it is, a tool's output in the block of the turn protocol
    data.apply_chat_template on     the model's own template, with the first user message inside data.input_template

A question that is already inside the input template stays as it is: a caller who renders the prompt, or a run that
trains the exported model further with the same recipe, gets the same prompt. The part that is put before a model's own
template is marked, so that it can be removed again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..config import Data
from . import templates

BEGIN = "{#- openrlhf-tir: the run's question -#}"
END = "{#- openrlhf-tir: end of the question -#}"
_MARK = "\x00question\x00"
_PUT_IN_FRONT = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)

RAW = """\
{#- openrlhf-tir: raw text, as the run was trained; see docs/run_elsewhere.md -#}
{%- for message in messages -%}
  {%- set text = message['content'] -%}
  {%- if text is not string -%}{{- raise_exception('This model knows messages whose content is text.') -}}{%- endif -%}
  {%- if message['role'] == 'user' -%}
    QUESTION
  {%- elif message['role'] == 'assistant' -%}
    {{- text -}}
  {%- elif message['role'] == 'tool' -%}
    TOOL
  {%- else -%}
    {{- raise_exception('This model was trained without a ' ~ message['role'] ~ ' message. Leave it out.') -}}
  {%- endif -%}
{%- endfor -%}"""

CHAT = """\
{%- set question = namespace(messages=[], asked=false) -%}
{%- for message in messages -%}
  {%- set text = message['content'] -%}
  {%- if message['role'] == 'user' and text is string and not question.asked -%}
    {%- set asked -%}QUESTION{%- endset -%}
    {%- set question.asked = true -%}
    {%- set question.messages = question.messages + [dict(message, content=asked)] -%}
  {%- else -%}
    {%- set question.messages = question.messages + [message] -%}
  {%- endif -%}
{%- endfor -%}
{%- set messages = question.messages -%}"""

NO_BLOCK = (
    "{{- raise_exception('How this model was shown the output of a tool is no plain block of text."
    " See docs/run_elsewhere.md.') -}}"
)


class Block(NamedTuple):
    """What a turn protocol writes around a tool's output.

    Attributes:
        before: Text before the output.
        after: Text after it.
        strips: Whether white space around the output is removed.
    """

    before: str
    after: str
    strips: bool


def raw_template(data: Data, block: Block | None) -> str:
    """Return the template of a run without data.apply_chat_template.

    Args:
        data: The [data] section.
        block: What is written around outputs; None if they are not shown as a block of text.
    """
    if block is None:
        tool = NO_BLOCK
    else:
        text = "text.strip()" if block.strips else "text"
        tool = f"{{{{- {_literal(block.before)} ~ {text} ~ {_literal(block.after)} -}}}}"
    return RAW.replace("QUESTION", _question(data)).replace("TOOL", tool)


def chat_template(own: str, data: Data) -> str:
    """Return a model's own template with data.input_template, if there is one, around the first user message."""
    own = without_question(own)
    if _input_template(data) is None:
        return own
    return BEGIN + CHAT.replace("QUESTION", _question(data)) + END + own


def without_question(template: str) -> str:
    """Return a template without the part that an earlier run's export put before it."""
    return _PUT_IN_FRONT.sub("", template)


def template_of(tokenizer: Any) -> str | None:
    """Return a tokenizer's default chat template; None if it has none. Some have several, by name."""
    template = getattr(tokenizer, "chat_template", None)
    return template.get("default") if isinstance(template, Mapping) else template


def _input_template(data: Data) -> str | None:
    """Return data.input_template; None if it needs columns of a row, which users of an exported model do not have."""
    template = templates.resolve(data.input_template)
    return None if templates.columns_of(template) else template


def _question(data: Data) -> str:
    """Return Jinja that writes `text` inside data.input_template."""
    pieces = templates.render(_input_template(data), _MARK).split(_MARK)
    expression = " ~ text ~ ".join(map(_literal, pieces))
    if not (pieces[0] or pieces[-1]):
        return f"{{{{- {expression} -}}}}"
    return (
        f"{{{{- text if text.startswith({_literal(pieces[0])}) and"
        f" text.endswith({_literal(pieces[-1])}) else {expression} -}}}}"
    )


def _literal(text: str) -> str:
    """Return a Jinja string. Its escapes are those of JSON, as long as no non-ASCII character is escaped."""
    return json.dumps(text, ensure_ascii=False)

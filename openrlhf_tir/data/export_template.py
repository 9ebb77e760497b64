"""Export template: how a run asked its questions -> a Jinja template that asks them so, for the model that the run
exports.

    data.apply_chat_template off    messages are joined as raw text: a question inside data.input_template, an
                                    assistant's text as it is, a tool's output in the block of the turn protocol
    data.apply_chat_template on     the model's own template, with the first user message inside data.input_template

A question that is inside the input template already stays as it is: who renders the prompt himself, or trains the
exported model further with the same recipe, gets the same prompt. What is put in front of a model's own template can be
told apart, and is taken off where it is in the way."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..config import Data
from . import templates

BEGIN, END = "{#- openrlhf-tir: the run's question -#}", "{#- openrlhf-tir: end of the question -#}"
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
    """What a turn protocol writes before and after a tool's output. `strips`: white space around it is left out."""

    before: str
    after: str
    strips: bool


def raw_template(data: Data, block: Block | None) -> str:
    """The whole template of a run without data.apply_chat_template. `block` None: outputs are shown otherwise."""
    tool = (
        NO_BLOCK
        if block is None
        else (
            f"{{{{- {_literal(block.before)} ~ text{'.strip()' if block.strips else ''} ~ {_literal(block.after)} -}}}}"
        )
    )
    return RAW.replace("QUESTION", _question(data)).replace("TOOL", tool)


def chat_template(own: str, data: Data) -> str:
    """A model's own template with data.input_template around the first user message; without one, as it was."""
    own = without_question(own)
    template = templates.resolve(data.input_template)
    if template is None or templates.columns_of(template):  # an exported model is asked without a row's columns
        return own
    return BEGIN + CHAT.replace("QUESTION", _question(data)) + END + own


def without_question(template: str) -> str:
    """A template without what an earlier run's export has put in front of it."""
    return _PUT_IN_FRONT.sub("", template)


def template_of(tokenizer: Any) -> str | None:
    """A tokenizer's default chat template; None where it has none. Some have several, by name."""
    found = getattr(tokenizer, "chat_template", None)
    return found.get("default") if isinstance(found, Mapping) else found


def _question(data: Data) -> str:
    """Jinja that writes `text` inside data.input_template."""
    pieces = templates.render(templates.resolve(data.input_template), _MARK).split(_MARK)
    asked = " ~ text ~ ".join(map(_literal, pieces))
    if not (pieces[0] or pieces[-1]):
        return f"{{{{- {asked} -}}}}"
    return (
        f"{{{{- text if text.startswith({_literal(pieces[0])}) and"
        f" text.endswith({_literal(pieces[-1])}) else {asked} -}}}}"
    )


def _literal(text: str) -> str:
    """A Jinja string: its escapes are those of JSON, as long as no character outside of ASCII is escaped."""
    return json.dumps(text, ensure_ascii=False)

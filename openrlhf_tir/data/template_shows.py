"""What a chat template shows the model of a request: system messages, and the tools that it may call.

Some templates refuse a system message, and some leave one out. A template that knows no tools leaves them out in
silence: a client that sends tools would wait for calls that the model does not know it can make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateSyntaxError

from .chat_template import ChatTemplate, Message, TemplateRefuses
from .export_template import template_of
from .jinja_template import of_text

USER = {"role": "user", "content": "question"}
SYSTEM = {"role": "system", "content": "whatthesystemsaid"}  # a word that no template has of its own
TOOL: Message = {
    "type": "function",
    "function": {
        "name": "offered",
        "description": "A function.",
        "parameters": {"type": "object", "properties": {"given": {"type": "string"}}, "required": ["given"]},
    },
}


class Shows(NamedTuple):
    """What a chat template shows.

    Attributes:
        system: True if it shows a system message.
        tools: True if it shows tools.
    """

    system: bool = True
    tools: bool = True


def shown_by(template: ChatTemplate) -> Shows:
    """Return what a chat template shows. A template that refuses a plain question is reported where it is used."""
    plain = _rendered(template, [USER])
    if plain is None:
        return Shows()
    with_system = _rendered(template, [SYSTEM, USER])
    with_tools = _rendered(template, [USER], [TOOL])
    return Shows(
        system=with_system is not None and SYSTEM["content"] in with_system,
        tools=with_tools is not None and with_tools != plain,
    )


def shown_by_tokenizer(tokenizer: Any) -> Shows:
    """Return what a tokenizer's own template shows."""
    template = template_of(tokenizer)
    if not template:
        return Shows()
    names = {name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
    try:
        return shown_by(ChatTemplate(of_text(template, names), ()))
    except TemplateSyntaxError:  # reported where the template is used
        return Shows()


def _rendered(template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str | None:
    """Return a conversation as text; None if the template refuses it."""
    try:
        return template.render(messages, tools)
    except TemplateRefuses:
        return None

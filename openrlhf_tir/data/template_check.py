"""Try a chat template on made-up conversations before a run: how it is used, and what it does to earlier turns.

What was sampled stays as it was sampled. A template that would show an earlier turn in another way (Qwen3 leaves the
thinking of earlier turns out) is not followed, so users who run the exported model with that template see other
contexts than those that were trained. That is why it is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError
from .chat_template import ChatTemplate, Message, TemplateRefuses, call_id, stand_in

USER = {"role": "user", "content": "Question?"}
SEEN = "whatthetoolsaid"
"""A tool's output that is looked for in the rendered text."""
LONGER = "anothertextthathasmoreletters"
"""Stands for a sampled message, as another one does: what follows it must not depend on it."""
TURNS = {
    "plain text": "An answer.",
    "thinking": "<think>\nA thought.\n</think>\n\nAn answer.",
    "white space around it": "\n An answer. \n",
}
"""What a turn may look like: name -> text."""


class Checked(NamedTuple):
    """The result of the check.

    Attributes:
        call: Whether a message that a tool's reply follows must be shown to the template as a call.
        rewritten: The TURNS that the template shows in another way later.
        ends: Whether the template ends every message of the model by a special token.
    """

    call: bool
    rewritten: tuple[str, ...] = ()
    ends: bool = True

    def facts(self) -> list[str]:
        """Return lines to print."""
        if not self.rewritten:
            return []
        return [
            f"the chat template shows earlier turns otherwise than they were sampled ({', '.join(self.rewritten)})."
            " What was sampled stays in the context; the template's rewriting is not followed"
        ]


def check_template(template: ChatTemplate, replies: Sequence[Message], tools: Sequence[Message]) -> Checked:
    """Check a chat template.

    Args:
        template: The template.
        replies: What a protocol answers to a turn.
        tools: Schemas of the tools.

    Raises:
        ConfigError: The template cannot show the replies, or writes something random.
    """
    template.check_repeatable([USER, stand_in([USER]), USER])
    call = _form(template, replies, tools)
    try:
        rewritten = [name for name, turn in TURNS.items() if not call and _rewrites(template, turn, replies, tools)]
    except TemplateRefuses as error:
        raise ConfigError(
            f"The model's chat template shows one reply and refuses the second: {error}. {_remedy(replies)}"
        ) from None
    return Checked(call, tuple(rewritten), bool(template.end_of_message([USER], tools, call=False)))


def _form(template: ChatTemplate, replies: Sequence[Message], tools: Sequence[Message]) -> bool:
    """Return True if the template shows a reply only after a call."""
    reason = ""
    seen = [{**message, "content": SEEN} for message in replies]
    tool = next((str(message["name"]) for message in replies if message.get("name")), "tool")
    for call in (False, True) if any(message["role"] == "tool" for message in replies) else (False,):
        after = _with_ids([USER], seen)
        try:
            tail = template.tail([USER], after, tools, call=call)
            turn = stand_in([USER], call=True, word=tool) if call else stand_in([USER])
            # A second turn must work too.
            longer = [USER, turn, *after]
            template.tail(longer, _with_ids(longer, seen), tools, call=call)
            # The environment may end the episode, and a message of the model may be the last one.
            template.tail([USER], after, tools, call=call, go_on=False)
            template.end_of_message([USER], tools, call=False)
            if call:
                template.end_of_message([USER], tools, call=True)
        except TemplateRefuses as error:
            reason = reason or str(error)
            continue
        if SEEN in tail:
            if not call and tail != template.tail([USER], after, tools, word=LONGER):
                reason = "what it writes behind a message depends on the message"
                break
            return call
        reason = reason or "the chat template leaves the reply out"
    roles = ", ".join(sorted({str(message["role"]) for message in replies}))
    raise ConfigError(
        f"The model's chat template cannot show a reply as a message of {roles}: {reason}. {_remedy(replies)}"
    )


def _remedy(replies: Sequence[Message]) -> str:
    if all(message["role"] == "user" for message in replies):
        return "Use a model whose template shows several turns of user and assistant, or a protocol of text."
    return "Show it as the user's (env.options.role = 'user'), or use a model whose template knows tools."


def _with_ids(before: Sequence[Message], replies: Sequence[Message]) -> list[Message]:
    """Return the replies that follow these messages; a tool's names the call that it answers."""
    return [
        {**message, "tool_call_id": call_id(before)} if message["role"] == "tool" else message for message in replies
    ]


def _rewrites(template: ChatTemplate, turn: str, replies: Sequence[Message], tools: Sequence[Message]) -> bool:
    """Return True if two turns with their replies are rendered otherwise than they grow in an episode: turn, tail,
    turn, tail."""
    messages: list[Mapping[str, Any]] = [USER]
    grown = template.render(messages, tools)
    for _ in range(2):
        after = _with_ids(messages, replies)
        grown += turn + template.tail(messages, after, tools)
        messages += [{"role": "assistant", "content": turn}, *after]
    return grown != template.render(messages, tools)

"""Template check: a chat template, tried on made-up conversations -> how it is used, and what it does to earlier turns.
Before a run.

What was sampled stays as it was sampled. A template that would show an earlier turn otherwise (Qwen3 leaves the
thinking of earlier turns out) is then not followed, and whoever runs the exported model with that template sees other
contexts than were trained: so it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError
from .chat_template import ChatTemplate, Message, TemplateRefuses, call_id, stand_in

USER = {"role": "user", "content": "Question?"}
SEEN = "whatthetoolsaid"
TURNS = {
    "plain text": "An answer.",
    "thinking": "<think>\nA thought.\n</think>\n\nAn answer.",
    "white space around it": "\n An answer. \n",
}
"""What a turn may look like: name -> text."""


class Checked(NamedTuple):
    """`call`: a message that a tool's reply follows must be told to the template as a call; `rewritten`: the TURNS that
    it shows otherwise later."""

    call: bool
    rewritten: tuple[str, ...] = ()

    def facts(self) -> list[str]:
        if not self.rewritten:
            return []
        return [
            f"the chat template shows earlier turns otherwise than they were sampled ({', '.join(self.rewritten)})."
            " What was sampled stays in the context; the template's rewriting is not followed."
            " env.template_rewrites = 'refuse' ends such a run"
        ]


def check_template(
    template: ChatTemplate, replies: Sequence[Message], tools: Sequence[Message], *, rewrites: str = "keep"
) -> Checked:
    """replies: what a protocol answers to a turn. Raises ConfigError for a template that cannot show them, or rewrites
    where that is refused."""
    call = _form(template, replies, tools)
    try:
        rewritten = [name for name, turn in TURNS.items() if not call and _rewrites(template, turn, replies, tools)]
    except TemplateRefuses as error:
        raise ConfigError(
            f"The model's chat template shows one reply and refuses the second: {error}. Show replies as the user's"
            " (env.options.role = 'user'), or use a model whose template knows tools."
        ) from None
    checked = Checked(call, tuple(rewritten))
    if checked.rewritten and rewrites == "refuse":
        raise ConfigError(
            f"The chat template shows earlier turns otherwise than they were sampled ({', '.join(checked.rewritten)}),"
            " and env.template_rewrites = 'refuse'. Use a template that keeps them, or set env.template_rewrites ="
            " 'keep': what was sampled then stays in the context."
        )
    return checked


def _form(template: ChatTemplate, replies: Sequence[Message], tools: Sequence[Message]) -> bool:
    """Whether a reply is shown only behind a call."""
    told = ""
    for call in (False, True):
        after = [
            {**m, "content": SEEN, **({"tool_call_id": call_id([USER])} if m["role"] == "tool" else {})}
            for m in replies
        ]
        called = next((str(m["name"]) for m in replies if m.get("name")), "tool")
        try:
            tail = template.tail([USER], after, tools, call=call)
            said = stand_in([USER], call=True, word=called) if call else stand_in([USER])
            again = [USER, said, *after]
            template.tail(
                again,
                [{**m, "tool_call_id": call_id(again)} if m["role"] == "tool" else m for m in after],
                tools,
                call=call,
            )
        except TemplateRefuses as error:
            told = told or str(error)
            continue
        if SEEN in tail:
            return call
        told = told or "the chat template leaves the reply out"
    roles = ", ".join(sorted({str(m["role"]) for m in replies}))
    raise ConfigError(
        f"The model's chat template cannot show a reply as a message of {roles}: {told}. "
        "Show it as the user's (env.options.role = 'user'), or use a model whose template knows tools."
    )


def _rewrites(template: ChatTemplate, turn: str, replies: Sequence[Message], tools: Sequence[Message]) -> bool:
    """Are two turns and their replies rendered otherwise than they grow here: prompt, turn, tail, turn, tail?"""
    messages: list[Mapping[str, Any]] = [USER]
    grown = template.render(messages, tools)
    for _ in range(2):
        after = [{"tool_call_id": call_id(messages), **m} if m["role"] == "tool" else m for m in replies]
        grown += turn + template.tail(messages, after, tools)
        messages += [{"role": "assistant", "content": turn}, *after]
    return grown != template.render(messages, tools)

"""Turn messages into chains of pieces, as the model's chat template renders them. What is learned is what the model
would sample.

    <|im_start|>user ... <|im_start|>assistant\\n      template: the text before the assistant speaks, with the
                                                      generation prompt
    Let me see.<|im_end|>                             model: up to the special token that ends the message
    \\n<|im_start|>user ... <|im_start|>assistant\\n   template: everything until it speaks again, with replies of tools

A template may render an earlier message in another way once others follow (Qwen3 leaves its thinking out). Then the
model reads another text than it wrote, and the conversation becomes several chains, each of which ends with the message
that is learned: no chain shows what no model would see.

What a template leaves out of a row is not learned silently: a row whose calls, thoughts or contents are missing in the
rendered text is refused (lost_parts.py). One exception: thoughts in a separate field are written as <think> if the
template keeps that. A template that writes no end after a message (GLM-4.6) would teach a model never to stop: the
tokenizer's end of text is learned there, and each message ends its chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...config.paths import shorten, shown
from ...errors import DataError
from .. import checks
from ..chat_template import ChatTemplate, TemplateRefuses
from ..lost_parts import REASONING, hidden_in_context, lost_in_context, lost_in_response, lost_tools, reasoning_of
from . import blocks
from .tokens import END, Piece

Chain = list[Piece]
NO_END = "the chat template writes no end after this many messages: the tokenizer's end of text is learned there"
THOUGHTS = "the chat template leaves the thoughts of this many messages out: they are learned as <think> in the content"
"""NO_END and THOUGHTS are counted in `notes`."""
_NO_THOUGHT = dict.fromkeys(REASONING)


class _Seen(NamedTuple):
    """The messages in which nothing was missing, as they were rendered, and their number."""

    rendered: str = ""
    how_many: int = 0


def chains_of(
    where: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
    *,
    every: bool,
    masked: Sequence[str],
    notes: Counter[str],
) -> list[Chain]:
    """Return the chains of one conversation.

    Args:
        where: The row, for messages.
        messages: The conversation.
        tools: Schemas of the tools.
        template: The chat template.
        every: Whether all of the assistant's messages are learned; otherwise only the last one.
        masked: sft.mask_blocks.
        notes: Counts what was added to messages, by NO_END and THOUGHTS.

    Raises:
        DataError: The conversation has nothing to learn, or the template cannot show it.
    """
    assistant_turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not assistant_turns:
        raise DataError(
            f"{where}: none of its {len(messages)} messages is the assistant's, so there is nothing to learn."
            " Correct or remove the row."
        )
    # Special tokens in a row's text and in the descriptions of tools are characters, not tokens.
    messages = template.inert(messages)
    tools = template.inert(tools)
    chains: list[Chain] = []
    chain: Chain = []
    rendered_so_far = ""
    seen = _Seen()
    for i in assistant_turns if every else assistant_turns[-1:]:
        checks.learnable(messages[i], where, f"messages[{i}]")
        before, response = _complete_turn(where, messages, i, tools, template, notes, seen)
        if not before.startswith(rendered_so_far):
            chains.append(chain)
            chain = []
            rendered_so_far = ""
        written = _up_to_end(messages[i], before, response, template)
        chain.append(Piece(before[len(rendered_so_far) :], "template"))
        chain += [
            Piece(text, "env" if tool else "model", rendered=not tool)
            for text, tool in blocks.cut(written, masked, f"{where}: messages[{i}]")
        ]
        rendered_so_far = before + written
        seen = _Seen(rendered_so_far, i + 1)
        if not _ends(written, template):
            notes[NO_END] += 1
            chain[-1] = chain[-1]._replace(text=chain[-1].text.rstrip())
            chain.append(Piece("", "model", END))
            chains.append(chain)
            chain = []
            rendered_so_far = ""
    return [*chains, *([chain] if chain else [])]


def _complete_turn(
    where: str,
    messages: Sequence[Mapping[str, Any]],
    i: int,
    tools: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
    notes: Counter[str],
    seen: _Seen,
) -> tuple[str, str]:
    """Return what `_turn` does, after checking that the template leaves nothing out.

    Messages of the context that an earlier turn has checked are not checked again if they are rendered as they were
    then.

    Raises:
        DataError: The template drops a part of a message, and no other way to write the message keeps it.
    """
    before, response = _turn(where, messages, i, tools, template)
    begin = seen.how_many if before.startswith(seen.rendered) else 0
    hidden = [] if begin else lost_tools(tools, before)
    if hidden:
        raise DataError(f"{where}: {_dropped(f'its tools {shorten(str(hidden))} are left out')}")
    context = messages[:i]
    lost = lost_in_context(context[begin:], before, first=begin)
    # One rendering for each message that is tried, so each is tried once, behind the turn that it was added for.
    if lost := lost or hidden_in_context(template, context, tools, first=seen.how_many):
        raise DataError(f"{where}: {_dropped(lost)}")
    lost = lost_in_response(messages[i], response, before)
    if lost is None:
        return before, response
    thought = reasoning_of(messages[i])
    without = {**messages[i], **_NO_THOUGHT}
    # The thoughts are tried under the other names, of which a template reads one (gpt-oss: thinking), then as <think>.
    others = [{**without, name: thought} for name in REASONING if thought and not messages[i].get(name)]
    if thought and lost_in_response(without, response) is None:
        others.append({**without, "content": f"<think>\n{thought}\n</think>\n\n{without.get('content') or ''}"})
    for other in others:
        before, response = _turn(where, [*messages[:i], other], i, tools, template)
        if lost_in_response(other, response, before) is None:
            if not reasoning_of(other):
                notes[THOUGHTS] += 1
            return before, response
    raise DataError(f"{where}: {_dropped(f'messages[{i}] (assistant): {lost}')}")


def _dropped(lost: str) -> str:
    return (
        f"the chat template drops a part of the conversation: {lost}. It would be learned without. Set"
        " data.chat_template_options so that it is kept, use a template that keeps it, or write it into the message's"
        " content, or rows of prompt and response."
    )


def _ends(written: str, template: ChatTemplate) -> bool:
    """Return True if the last thing that the template writes of a message is a special token."""
    pieces = template.pieces(written)
    return bool(pieces) and pieces[-1][1]


def _turn(
    where: str,
    messages: Sequence[Mapping[str, Any]],
    i: int,
    tools: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
) -> tuple[str, str]:
    """Return what the model reads before its message i, and that message as it is rendered after it."""
    try:
        before = template.render(messages[:i], tools)
        whole = template.render(messages[: i + 1], tools, go_on=False)
    except TemplateRefuses as error:
        raise DataError(f"{where}: {error}. Correct or remove the row, or use another chat template.") from None
    if not whole.startswith(before):
        raise DataError(
            f"{where}: the chat template does not render messages[{i}] after its own generation prompt, which ends in"
            f" {shown(before[-60:], 80)}. Set data.chat_template_options so that it does,"
            " or write rows of prompt and response."
        )
    return before, whole[len(before) :]


def _up_to_end(message: Mapping[str, Any], before: str, response: str, template: ChatTemplate) -> str:
    """Return a message without what the template writes after the special token that ends it.

    Without such a token the whole message is returned.
    """
    pieces = template.pieces(response)
    if len(pieces) < 2 or pieces[-1][1]:
        return response
    behind = pieces[-1][0]
    up_to_token = response.removesuffix(behind)
    # White space, or words that separate messages: the message is whole without them.
    is_whole = not behind.strip() or lost_in_response({**message, **_NO_THOUGHT}, up_to_token, before) is None
    return up_to_token if is_whole else response

"""Chat: messages -> chains of pieces, as the model's chat template renders them. What is learned is what the model
would sample.

    <|im_start|>user ... <|im_start|>assistant\\n      template: what stands before the assistant speaks, generation
                                                      prompt included
    Let me see.<|im_end|>                             model: up to the special token that ends the message
    \\n<|im_start|>user ... <|im_start|>assistant\\n   template: everything up to where it speaks again, replies of
                                                      tools included

A template may render an earlier message in another way once others follow (Qwen3 leaves its thinking out). Then what
the model reads is not what it wrote, and the conversation becomes several chains, each with the message that is learned
at its end: no chain shows what no model would see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...config.paths import shown
from ...errors import DataError
from .. import checks
from ..chat_template import ChatTemplate, TemplateRefuses
from . import blocks
from .tokens import Piece

Chain = list[Piece]


def chains_of(
    where: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
    *,
    every: bool,
    masked: Sequence[str],
) -> list[Chain]:
    """every: the assistant's messages are all learned, else the last; `masked`: sft.mask_blocks. Raises DataError."""
    said = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    if not said:
        raise DataError(
            f"{where}: none of its {len(messages)} messages is the assistant's, so there is nothing to learn."
            " Correct or remove the row."
        )
    for i, m in enumerate(messages):
        if m["role"] != "assistant" and isinstance(m.get("content"), str) and template.inert(m["content"])[1]:
            raise DataError(
                f"{where}: messages[{i}] has a special token's text in it: {shown(m['content'], 120)}."
                " It would be one. Correct or remove the row."
            )
    chains: list[Chain] = []
    chain: Chain = []
    so_far = ""
    for i in said if every else said[-1:]:
        checks.learnable(messages[i], where, f"messages[{i}]")
        before, response = _turn(where, messages, i, tools, template)
        if not before.startswith(so_far):
            chains.append(chain)
            chain, so_far = [], ""
        written, _ = _end_of(response, template)
        chain.append(Piece(before[len(so_far) :], "template"))
        chain += [
            Piece(text, "env" if tool else "model", rendered=not tool)
            for text, tool in blocks.cut(written, masked, f"{where}: messages[{i}]")
        ]
        so_far = before + written
    return [*chains, chain]


def _turn(
    where: str,
    messages: Sequence[Mapping[str, Any]],
    i: int,
    tools: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
) -> tuple[str, str]:
    """What the model reads before its message i, and the message as it is rendered behind that."""
    try:
        before, whole = template.render(messages[:i], tools), template.render(messages[: i + 1], tools, go_on=False)
    except TemplateRefuses as e:
        raise DataError(f"{where}: {e}. Correct or remove the row.") from None
    if not whole.startswith(before):
        raise DataError(
            f"{where}: the chat template does not render messages[{i}] behind its own generation prompt, which ends in"
            f" {shown(before[-60:], 80)}. Set data.chat_template_options so that it does,"
            " or write rows of prompt and response."
        )
    return before, whole[len(before) :]


def _end_of(response: str, template: ChatTemplate) -> tuple[str, str]:
    """The message up to the special token that ends it, and the white space that the template writes behind; all of it
    where there is no such token."""
    pieces = template.pieces(response)
    closing = ""
    if len(pieces) > 1 and not pieces[-1][1] and not pieces[-1][0].strip():
        closing = pieces[-1][0]
    return response.removesuffix(closing), closing

"""Chat template: messages -> the text that the model reads, and what a template adds behind a message that was sampled.

    prompt    <|im_start|>user ... <|im_start|>assistant\\n                what is sampled first goes on from here
    sampled   Let me see. <tool_call> ... </tool_call><|im_end|>           stays as it was sampled
    tail      <|im_end|>\\n<|im_start|>user ... <|im_start|>assistant\\n   what the template adds for messages behind it

A tail is read off the template: the conversation is rendered with a stand-in for the sampled message, and what comes
behind the stand-in is the tail. So nothing that was sampled is ever rendered, and a template that renders it otherwise
(thinking left out, white space trimmed) changes nothing.

Text from outside is inert: where a tool prints "<|im_end|>", that is rendered with a mark inside, so that the special
tokens of the result are those that the template wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.paths import shorten
from ..errors import DataError
from ..inert import marked_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Apply = Callable[..., str]
"""(messages, tools=..., add_generation_prompt=...) -> text, as `tokenizer.apply_chat_template(tokenize=False)`. Raises
what it likes."""

STAND_IN = "sampledassistanttext"
"""Stands for a sampled message; no template treats letters specially."""
CALLS: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {"sampledargument": "sampledvalue"})
"""Arguments of two calls that stand for a sampled one: what follows it must not depend on them."""


class TemplateRefuses(DataError):
    """The template raises on a conversation."""


class ChatTemplate:
    """Renders with `apply`. `specials`: the texts of all special tokens."""

    def __init__(self, apply: Apply, specials: Sequence[str]) -> None:
        self._apply = apply
        self.specials = tuple(specials)
        self._specials = (
            re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True)))) if specials else None
        )

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> ChatTemplate:
        """A tokenizer's own. `options`: data.chat_template_options."""

        def apply(messages: Sequence[Message], **how: Any) -> str:
            return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **how, **options))

        return cls(apply, special_texts(tokenizer))

    def render(self, messages: Sequence[Message], tools: Sequence[Message] = (), *, go_on: bool = True) -> str:
        """`go_on`: the assistant speaks next, so the generation prompt is added. Raises TemplateRefuses."""
        try:
            return self._apply(list(messages), tools=list(tools) or None, add_generation_prompt=go_on)
        except Exception as error:  # the template is a program of the model's
            roles = ", ".join(str(m.get("role")) for m in messages)
            raise TemplateRefuses(
                f"the chat template refuses a conversation of {roles}: {type(error).__name__}: {shorten(str(error))}"
            ) from None

    def tail(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        call: bool = False,
        go_on: bool = True,
    ) -> str:
        """Return what the template adds behind a sampled message: its end, and the messages `after` it.

        Args:
            call: The sampled message is told to the template as a call of a tool, which some (Mistral's) want before a
                tool's reply. They render calls themselves, so the tail begins where the conversation goes on otherwise
                than it would end: at the token that ends the message, or behind the call where the turn goes on.

        Raises:
            TemplateRefuses: The template refuses the conversation or leaves the message out, or a part of the call
                itself would be in the tail.
        """
        if call:
            name = next((str(m["name"]) for m in after if m.get("name")), "tool")
            tails = [self._behind_call(before, after, tools, (name, given), go_on) for given in CALLS]
            if tails[0] != tails[1]:
                raise TemplateRefuses("the chat template repeats a call behind it, so the call's end cannot be told")
            return tails[0]
        word = STAND_IN
        while any(word in str(m) for m in after):  # what a tool prints is its own business
            word += "x"
        text = self.render([*before, stand_in(before, word=word), *after], tools, go_on=go_on)
        at = text.rfind(word)
        if at < 0:
            raise TemplateRefuses("the chat template leaves an assistant message out when others follow it")
        return text[at + len(word) :]

    def end_of_message(self, before: Sequence[Message], tools: Sequence[Message] = (), *, call: bool = False) -> str:
        """Return the special token that the template writes at the end of a sampled message; "" where it writes none.

        Behind a call some (Gemma 4's) write none when the tool's reply follows: the turn goes on.
        """
        return self.first_special(self.tail(before, (), tools, call=call, go_on=False))

    def _behind_call(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        tools: Sequence[Message],
        call: tuple[str, Mapping[str, Any]],
        go_on: bool,
    ) -> str:
        message = stand_in(before, call=True, word=call[0], arguments=call[1])
        whole = self.render([*before, message, *after], tools, go_on=go_on)
        alone = self.render([*before, message], tools, go_on=False)
        ended = alone.rstrip()
        pieces = self.pieces(ended)
        if not after or whole.startswith(ended):
            start = len(ended) - len(pieces[-1][0]) if pieces and pieces[-1][1] else len(ended)
        else:
            # The turn goes on: both are equal up to the end of the call. Never cut inside of a token.
            equal = next((i for i, (a, b) in enumerate(zip(whole, alone, strict=False)) if a != b), len(alone))
            start = 0
            for piece, _ in self.pieces(whole):
                if start + len(piece) > equal:
                    break
                start += len(piece)
        if call[0] not in whole[:start]:
            raise TemplateRefuses("the chat template does not show a call before the tool's reply")
        return whole[start:]

    def inert(self, value: Any) -> Any:
        """Return messages, tools or a text from outside with a mark inside of every special token's text.

        The special tokens of what is then rendered are those that the template wrote (inert.py).
        """
        return marked_in(value, self.specials)

    def pieces(self, rendered: str) -> list[tuple[str, bool]]:
        """Rendered text, cut at its special tokens: (piece, whether it is one)."""
        cuts = (
            [0, *(at for m in self._specials.finditer(rendered) for at in m.span()), len(rendered)]
            if self._specials
            else [0, len(rendered)]
        )
        return [(rendered[a:b], i % 2 == 1) for i, (a, b) in enumerate(pairwise(cuts)) if b > a]

    def first_special(self, rendered: str) -> str:
        """The special token that comes first; "" when there is none."""
        found = self._specials.search(rendered) if self._specials else None
        return found[0] if found else ""


def stand_in(
    before: Sequence[Message], *, call: bool = False, word: str = STAND_IN, arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a message in the place of a sampled one; a call is one of the tool named `word`."""
    if not call:
        return {"role": "assistant", "content": word}
    function = {"name": word, "arguments": dict(arguments or {})}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id(before), "type": "function", "function": function}],
    }


def call_id(before: Sequence[Message]) -> str:
    """The id of the call behind these messages: nine letters and digits, as Mistral's template wants them."""
    return f"call{len(before):05d}"


@lru_cache(maxsize=4)
def specials_of(tokenizer: Any) -> tuple[str, ...]:
    """Return `special_texts` of a tokenizer, kept: collecting them takes longer than rendering a prompt."""
    return tuple(special_texts(tokenizer)) if hasattr(tokenizer, "all_special_tokens") else ()


@lru_cache(maxsize=4)
def bos_of(tokenizer: Any) -> str:
    """Return the text of the token that the tokenizer itself puts before every text; "" where it puts none.

    Base models of Llama, Gemma, Mistral and DeepSeek were trained with it. A chat template writes it itself.
    """
    bos = getattr(tokenizer, "bos_token", None)
    if not bos:
        return ""
    ids = tokenizer("x")["input_ids"]
    return str(bos) if len(ids) > 1 and ids[0] == tokenizer.bos_token_id else ""


def added_texts(tokenizer: Any) -> list[str]:
    """Return the texts of a tokenizer's added tokens that are not special: <tool_call>, <think> of some models."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    # An added token that is white space (runs of blanks and newlines in some vocabularies) marks nothing.
    return sorted({t.content for t in added if not t.special and len(t.content) > 1 and t.content.strip()})


@lru_cache(maxsize=4)
def special_texts_of(model: str) -> tuple[str, ...]:
    """Return the texts of the special tokens that a model directory's tokenizer.json has; none where it cannot be
    read. No tokenizer is loaded."""
    try:
        added = json.loads((Path(model) / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        return tuple(sorted(token["content"] for token in added if token["special"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def special_texts(tokenizer: Any) -> list[str]:
    """The texts of a tokenizer's special tokens, those of added tokens included that no name (eos, pad, ...) points at.

    Without the unknown token: it stands for characters that the vocabulary lacks, and is special by name only.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return sorted({*tokenizer.all_special_tokens, *(t.content for t in added if t.special)} - {tokenizer.unk_token})

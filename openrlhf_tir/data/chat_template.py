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

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
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
        except Exception as e:  # the template is a program of the model's
            roles = ", ".join(str(m.get("role")) for m in messages)
            raise TemplateRefuses(
                f"the chat template refuses a conversation of {roles}: {type(e).__name__}: {shorten(str(e))}"
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
        """What the template adds behind a sampled message: its end, and the messages `after` it.

        call: the sampled message is told to the template as a call of a tool, which some (Mistral's) want before a
        tool's reply. They render calls themselves, so the message's end is the first special token behind it. Raises
        TemplateRefuses, also when the message is left out."""
        word = STAND_IN
        while any(word in str(m) for m in after):  # what a tool prints is its own business
            word += "x"
        text = self.render([*before, stand_in(before, call=call, word=word), *after], tools, go_on=go_on)
        at = text.rfind(word)
        if at < 0:
            raise TemplateRefuses("the chat template leaves an assistant message out when others follow it")
        rest = text[at + len(word) :]
        if not call:
            return rest
        end = self._specials.search(rest) if self._specials else None
        if end is None:
            raise TemplateRefuses("the chat template writes no special token behind a call, so its end cannot be told")
        return rest[end.start() :]

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


def stand_in(before: Sequence[Message], *, call: bool, word: str = STAND_IN) -> dict[str, Any]:
    """A message in the place of a sampled one."""
    if not call:
        return {"role": "assistant", "content": word}
    function = {"name": word, "arguments": {}}
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


def special_texts(tokenizer: Any) -> list[str]:
    """The texts of a tokenizer's special tokens, those of added tokens included that no name (eos, pad, ...) points at.

    Without the unknown token: it stands for characters that the vocabulary lacks, and is special by name only.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return sorted({*tokenizer.all_special_tokens, *(t.content for t in added if t.special)} - {tokenizer.unk_token})

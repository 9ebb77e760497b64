"""Chat show: the environment's words -> messages -> what the model's chat template adds behind the message that was
sampled.

    context    <|im_start|>user ... <|im_start|>assistant\\n Let me see. <tool_call> ... <|im_end|>
               the last four sampled, and kept
    next       \\n<|im_start|>user\\n<tool_response> ... <|im_end|>\\n<|im_start|>assistant\\n
               the template's, never trained

A message's end is written once: by the model when it sampled it, by the template when it did not (a stop string, an end
of its own choice)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ..data.chat_template import ChatTemplate, TemplateRefuses, call_id, stand_in
from ..errors import TurnError
from ..inert import plain
from ..ports import Codec
from ..types import Chat, Completion
from .rendering import MAX_CHARS_PER_TOKEN, Shown, cut
from .turns import MessagesProtocol


class ChatCodec(Codec, Protocol):
    special_ids: frozenset[int]

    def spell(self, token_ids: Any) -> str:
        """Decoded with special tokens as they are written."""

    def encode_rendered(self, text: str) -> list[int]:
        """The tokens of what a chat template wrote behind other text."""

    def inert(self, text: str) -> str:
        """A tool's text with marks where it would become added tokens."""


class ChatShow:
    """Raises TurnError when the template refuses what the episode has come to."""

    def __init__(
        self,
        protocol: MessagesProtocol,
        codec: ChatCodec,
        template: ChatTemplate,
        chat: Chat,
        *,
        call: bool,
        max_tokens: int,
    ) -> None:
        """call: a message that tools answer is told to the template as a call (`template_check.Checked`). `max_tokens`
        of one observation."""
        self.protocol, self.codec, self.template, self.call = protocol, codec, template, call
        self.max_tokens = max_tokens
        self.messages: list[Mapping[str, Any]] = list(chat.messages)
        self.tools = chat.tools
        self._sampled: Completion | None = None

    def first(self, prompt_ids: list[int], observation: str) -> tuple[list[int], Shown]:
        """An environment's first words stand in the user's message, behind a blank line: the prompt is rendered anew.

        What it has in common with the old one stays the prompt, the rest is shown as the environment's.
        """
        text = self._shortened(observation)
        if not text:
            return prompt_ids, Shown("", [])
        *before, last = self.messages
        if last.get("role") == "user" and isinstance(last.get("content"), str):
            self.messages = [*before, {**last, "content": f"{last['content']}\n\n{text}"}]
        else:
            self.messages.append({"role": "user", "content": text})
        ids = self.codec.encode_prompt(self._rendered(text))
        common = next(
            (k for k, (a, b) in enumerate(zip(prompt_ids, ids, strict=False)) if a != b), min(len(prompt_ids), len(ids))
        )
        return (ids[:common], Shown(self.codec.spell(ids[common:]), ids[common:])) if common else (ids, Shown("", []))

    def _rendered(self, outside: str) -> str:
        """The prompt, with what came from outside in its last message inert."""
        *before, last = self.messages
        content = str(last["content"]).removesuffix(outside)
        messages = self.template.inert([*before, {**last, "content": content}])
        messages[-1]["content"] += self.codec.inert(outside)
        try:
            return self.template.render(messages, self.template.inert(self.tools))
        except TemplateRefuses as e:
            raise TurnError(f"{e}. The environment's first observation was put into the user's message.") from e

    def read(self, completion: Completion) -> Completion:
        """With special tokens in its text, as some mark calls by them, but for the one that ends the message."""
        self._sampled = completion
        ids = [int(i) for i in completion.token_ids]
        text = self.codec.spell(ids[:-1] if _ended(completion, self.codec) else ids)
        if isinstance(completion.stop_reason, str):
            at = text.rfind(completion.stop_reason)
            text = text[: at + len(completion.stop_reason)] if at >= 0 else completion.text
        return replace(completion, text=text)

    def next(self, observation: str) -> Shown:
        return self._tail(observation, go_on=True)

    def last(self, observation: str) -> Shown:
        return self._tail(observation, go_on=False)

    def go_on(self, text: str) -> Shown:
        return Shown(text, self.codec.encode(text) if text else [])

    def _tail(self, observation: str, *, go_on: bool) -> Shown:
        sampled = self._sampled
        assert sampled is not None, "an observation follows something sampled"
        text = self.codec.inert(self._shortened(observation))
        replies: list[Mapping[str, Any]] = list(self.protocol.replies(text))
        call = self.call and any(m["role"] == "tool" for m in replies)
        replies = [{"tool_call_id": call_id(self.messages), **m} if m["role"] == "tool" else m for m in replies]
        try:
            rendered = self.template.tail(self.messages, replies, self.tools, call=call, go_on=go_on)
            closes = bool(self.template.end_of_message(self.messages, self.tools, call=False))
        except TemplateRefuses as e:
            raise TurnError(f"{e}. Use another chat template, or other messages in the protocol's replies.") from e
        called = next((str(m["name"]) for m in replies if m.get("name")), "tool")
        said = (
            stand_in(self.messages, call=True, word=called)
            if call
            else {"role": "assistant", "content": self.read(sampled).text}
        )
        self.messages += [said, *({**m, "content": plain(m["content"])} for m in replies)]
        ids, written = self.codec.encode_rendered(rendered), plain(rendered)
        if _ended(sampled, self.codec):
            end = next((k for k, i in enumerate(ids) if i in self.codec.special_ids), None)
            # A reply that stands before any special token belongs to the same turn: there is no end to leave out.
            special = self.template.first_special(rendered)
            before_end = rendered.partition(special)[0] if special else rendered
            closes = closes and not self._turn_goes_on(rendered, call)
            if end is not None and not before_end.strip() and (closes or ids[end] == int(sampled.token_ids[-1])):
                ids = ids[end + 1 :]
                written = plain(rendered[rendered.index(special) + len(special) :])
        return Shown(written, ids)

    def _turn_goes_on(self, rendered: str, call: bool) -> bool:
        """Return True if the template ends no message between a call and its reply."""
        if not call:
            return False
        alone = self.template.end_of_message(self.messages, self.tools, call=True)
        return self.template.first_special(rendered) != alone

    def _shortened(self, observation: str) -> str:
        room = self.max_tokens
        if len(observation) <= MAX_CHARS_PER_TOKEN * room and len(self.codec.encode(observation)) <= room:
            return observation
        return cut(observation, room, room, self.codec)


def _ended(completion: Completion, codec: ChatCodec) -> bool:
    """Whether the model ended its message by a token that it sampled."""
    by_itself = completion.finish_reason == "stop" and not isinstance(completion.stop_reason, str)
    return by_itself and len(completion.token_ids) > 0 and int(completion.token_ids[-1]) in codec.special_ids

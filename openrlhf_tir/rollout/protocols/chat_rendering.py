"""Render observations as chat messages: what the model's chat template writes behind the message that was sampled.

    context        <|im_start|>user ... <|im_start|>assistant\\n Let me see. <tool_call> ... <|im_end|>
                   the model's message was sampled and stays as it is
    continue_with  \\n<|im_start|>user\\n<tool_response> ... <|im_end|>\\n<|im_start|>assistant\\n
                   written by the template, and not the model's

The end of a message is written once: by the model if it sampled the end token, by the template if it did not (a stop
string, or an end of its own choice).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ...data.chat_template import ChatTemplate, TemplateRefuses, call_id, stand_in
from ...errors import TurnError
from ...inert import plain
from ...ports import Codec
from ...types import Chat, Completion
from . import MessagesProtocol
from .rendering import MAX_CHARS_PER_TOKEN, RenderedText, cut


class ChatCodec(Codec, Protocol):
    """A tokenizer of a chat model.

    Attributes:
        special_ids: Ids of the special tokens.
    """

    special_ids: frozenset[int]

    def spell(self, token_ids: Any) -> str:
        """Decode with special tokens written out."""

    def encode_rendered(self, text: str) -> list[int]:
        """Encode what a chat template wrote behind other text."""

    def inert(self, text: str) -> str:
        """Return a tool's text with marks where it would become special tokens."""


class ChatRenderer:
    """Renders the observations of one episode with the model's chat template. An `ObservationRenderer`.

    Every method may raise TurnError: the template refuses the messages that the episode has come to.

    Attributes:
        messages: The conversation so far.
    """

    def __init__(
        self,
        protocol: MessagesProtocol,
        codec: ChatCodec,
        template: ChatTemplate,
        chat: Chat,
        *,
        shows_calls: bool,
        ends_messages: bool,
        max_tokens: int,
    ) -> None:
        """Begin a conversation.

        Args:
            protocol: The episode's protocol.
            codec: The tokenizer.
            template: The model's chat template.
            chat: The messages of the task.
            shows_calls: True if the template is given a message that tools answer as a call (`template_check.Checked`).
            ends_messages: True if the template ends every message of the model by a special token.
            max_tokens: Largest number of tokens of one observation.
        """
        self.protocol = protocol
        self.codec = codec
        self.template = template
        self.shows_calls = shows_calls
        self.ends_messages = ends_messages
        self.max_tokens = max_tokens
        # A template may write them again behind a message, as some show the tools beside the last question.
        self.messages: list[Mapping[str, Any]] = template.inert(chat.messages)
        self.tools: list[Mapping[str, Any]] = template.inert(chat.tools)
        self._sampled: Completion | None = None

    def start(self, prompt_ids: list[int], observation: str) -> tuple[list[int], RenderedText]:
        """Put the environment's first observation into the user's message and render the prompt anew.

        What the new prompt has in common with the old one stays the prompt; the rest is shown as the environment's.

        Raises:
            TurnError: The chat template refuses the new prompt.
        """
        text = self.codec.inert(self._shortened(observation))
        if not text:
            return prompt_ids, RenderedText("", [])
        *before, last = self.messages
        if last.get("role") == "user" and isinstance(last.get("content"), str):
            self.messages = [*before, {**last, "content": f"{last['content']}\n\n{text}"}]
        else:
            self.messages.append({"role": "user", "content": text})
        try:
            rendered = self.template.render(self.messages, self.tools)
        except TemplateRefuses as e:
            raise TurnError(f"{e}. The environment's first observation was put into the user's message.") from e
        ids = self.codec.encode_prompt(rendered)
        common = _common_prefix(prompt_ids, ids)
        if not common:
            return ids, RenderedText("", [])
        return ids[:common], RenderedText(self.codec.spell(ids[common:]), ids[common:])

    def read_completion(self, completion: Completion) -> Completion:
        """Return the completion with special tokens in its text, except for the one that ends the message.

        Some models mark calls by special tokens, so a protocol must see them.
        """
        self._sampled = completion
        ids = [int(token) for token in completion.token_ids]
        text = self.codec.spell(ids[:-1] if _ended_by_token(completion, self.codec) else ids)
        stop = completion.stop_reason
        if isinstance(stop, str):
            position = text.rfind(stop)
            text = text[: position + len(stop)] if position >= 0 else completion.text
        return replace(completion, text=text)

    def continue_with(self, observation: str) -> RenderedText:
        """See ObservationRenderer."""
        return self._rendered_replies(observation, add_generation_prompt=True)

    def end_with(self, observation: str) -> RenderedText:
        """See ObservationRenderer."""
        return self._rendered_replies(observation, add_generation_prompt=False)

    def insert(self, text: str) -> RenderedText:
        """See ObservationRenderer."""
        return RenderedText(text, self.codec.encode(text) if text else [])

    def _rendered_replies(self, observation: str, *, add_generation_prompt: bool) -> RenderedText:
        sampled = self._sampled
        assert sampled is not None, "an observation follows a completion"
        replies: list[Mapping[str, Any]] = []
        for reply in self.protocol.replies(self.codec.inert(self._shortened(observation))):
            if isinstance(name := reply.get("name"), str):  # the model's word, which may spell a special token too
                reply = {**reply, "name": self.codec.inert(name)}
            replies.append({"tool_call_id": call_id(self.messages), **reply} if reply["role"] == "tool" else reply)
        as_call = self.shows_calls and any(reply["role"] == "tool" for reply in replies)
        try:
            rendered = self.template.tail(self.messages, replies, self.tools, call=as_call, go_on=add_generation_prompt)
        except TemplateRefuses as e:
            raise TurnError(f"{e}. Use another chat template, or other messages in the protocol's replies.") from e
        self.messages += [self._sampled_message(sampled, replies, as_call), *replies]
        ids = self.codec.encode_rendered(rendered)
        if _ended_by_token(sampled, self.codec):
            ends_messages = self.ends_messages and not self._call_and_reply_share_a_turn(rendered, as_call)
            return self._without_message_end(rendered, ids, sampled, ends_messages)
        return RenderedText(plain(rendered), ids)

    def _sampled_message(
        self, sampled: Completion, replies: list[Mapping[str, Any]], as_call: bool
    ) -> Mapping[str, Any]:
        """Return the message that stands for the sampled one when the template renders what comes behind it."""
        if not as_call:
            content: str = self.template.inert(self.read_completion(sampled).text)
            return {"role": "assistant", "content": content}
        function = next((str(reply["name"]) for reply in replies if reply.get("name")), "tool")
        return stand_in(self.messages, call=True, word=function)

    def _without_message_end(
        self, rendered: str, ids: list[int], sampled: Completion, ends_messages: bool
    ) -> RenderedText:
        """Leave out the end of the model's message at the start of `rendered`: the model has sampled it.

        Args:
            rendered: What the template wrote behind the model's message.
            ids: Its tokens.
            sampled: The model's message.
            ends_messages: True if the template ends every message of the model by a special token.
        """
        end = next((position for position, token in enumerate(ids) if token in self.codec.special_ids), None)
        special = self.template.first_special(rendered)
        # A reply that stands before any special token belongs to the same turn: there is no end to leave out.
        before_end = rendered.partition(special)[0] if special else rendered
        if end is None or before_end.strip():
            return RenderedText(plain(rendered), ids)
        if not ends_messages and ids[end] != int(sampled.token_ids[-1]):
            return RenderedText(plain(rendered), ids)
        return RenderedText(plain(rendered[rendered.index(special) + len(special) :]), ids[end + 1 :])

    def _call_and_reply_share_a_turn(self, rendered: str, as_call: bool) -> bool:
        """Return True if the template ends no message between a call and its reply."""
        if not as_call:
            return False
        end_of_call = self.template.end_of_message(self.messages, self.tools, call=True)
        return self.template.first_special(rendered) != end_of_call

    def _shortened(self, observation: str) -> str:
        room = self.max_tokens
        if (
            len(observation) <= MAX_CHARS_PER_TOKEN * room
            and len(self.codec.encode(self.codec.inert(observation))) <= room
        ):
            return observation
        return cut(observation, room, self.codec)


def _common_prefix(first: list[int], second: list[int]) -> int:
    """Return the number of tokens with which both lists begin."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def _ended_by_token(completion: Completion, codec: ChatCodec) -> bool:
    """Return True if the model ended its message with a special token that it sampled."""
    stopped_itself = completion.finish_reason == "stop" and not isinstance(completion.stop_reason, str)
    return stopped_itself and len(completion.token_ids) > 0 and int(completion.token_ids[-1]) in codec.special_ids

"""Chats: what the episodes of a messages protocol share: the model's chat template, and how it is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ..config import Config, Env
from ..data.chat_template import ChatTemplate
from ..data.template_check import check_template
from ..errors import ConfigError
from ..ports import Codec
from ..types import Chat, Task
from . import turns
from .chat_rendering import ChatCodec, ChatShow


class Chats:
    """The conversations of one environment, owned by a rollout actor. Raises ConfigError for a template that cannot
    show the protocol's replies."""

    def __init__(self, env: Env, codec: Codec, template: ChatTemplate) -> None:
        self.env, self.codec, self.template = env, cast(ChatCodec, codec), template
        self.checked = check_template(template, turns.replies_of(env), env.tools, rewrites=env.template_rewrites)

    @classmethod
    def of(cls, cfg: Config, env: Env, codec: Codec, tokenizer: Any) -> Chats | None:
        """None where the environment's protocol is a turn protocol."""
        if not turns.of_messages(turns.load(env.protocol)):
            return None
        if not tokenizer.chat_template:
            raise ConfigError(
                f"env.protocol = {env.protocol!r} is a messages protocol, and the tokenizer of"
                f" {cfg.actor.model_name_or_path} has no chat template. Use a chat model, or a turn protocol."
            )
        return cls(env, codec, ChatTemplate.of(tokenizer, cfg.data.chat_template_options))

    def task(self, task: Task) -> Task:
        """The task with its messages. Text without any (a group by HTTP, a question by command line) is the user's."""
        if task.chat is not None:
            return task
        chat = Chat(({"role": "user", "content": task.prompt},), tuple(self.env.tools))
        prompt = self.template.render(self.template.inert(chat.messages), self.template.inert(chat.tools))
        return replace(task, prompt=prompt, chat=chat)

    def show(self, protocol: turns.MessagesProtocol, task: Task) -> ChatShow:
        assert task.chat is not None, "task() has been asked"
        return ChatShow(
            protocol,
            self.codec,
            self.template,
            task.chat,
            call=self.checked.call,
            max_tokens=self.env.output_max_tokens,
        )


def chats_of(cfg: Config, codec: Codec, tokenizer: Any) -> dict[str, Chats | None]:
    """Per environment of the run; see Chats.of."""
    return {name: Chats.of(cfg, e.env, codec, tokenizer) for name, e in cfg.environments.items()}

"""The model's chat template, and how the conversations of one environment use it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ...config import Config, Env
from ...data.chat_template import ChatTemplate
from ...data.prompts import options_of
from ...data.template_check import check_template
from ...errors import ConfigError
from ...ports import Codec
from ...types import Chat, Task
from .. import protocols
from .chat_rendering import ChatCodec, ChatRenderer


class ChatFormat:
    """How one environment's conversations are rendered. Owned by a rollout actor.

    Attributes:
        env: The environment's settings.
        codec: The tokenizer.
        template: The model's chat template.
        checked: What the check of the template against the protocol found.
    """

    def __init__(self, env: Env, codec: Codec, template: ChatTemplate) -> None:
        """Check that the template can show the protocol's replies.

        Raises:
            ConfigError: It cannot.
        """
        self.env = env
        self.codec = cast(ChatCodec, codec)
        self.template = template
        self.checked = check_template(template, protocols.replies_of(env), env.tools)

    @classmethod
    def of(cls, cfg: Config, env: Env, codec: Codec, tokenizer: Any) -> ChatFormat | None:
        """Return the chat format of an environment; None if its protocol is not a messages protocol.

        Raises:
            ConfigError: The model has no chat template, or one that cannot show the protocol's replies.
        """
        if not protocols.of_messages(protocols.load(env.protocol)):
            return None
        if not tokenizer.chat_template:
            raise ConfigError(
                f"env.protocol = {env.protocol!r} is a messages protocol, and the tokenizer of"
                f" {cfg.actor.model_name_or_path} has no chat template. Use a chat model, or a turn protocol."
            )
        return cls(env, codec, ChatTemplate.of(tokenizer, cfg.data.chat_template_options))

    def task(self, task: Task) -> Task:
        """Return the task with its messages.

        A task without messages (a group over HTTP, a question on the command line) is one message of the user.
        """
        if task.chat is not None:
            return task
        chat = Chat(({"role": "user", "content": task.prompt},), tuple(self.env.tools))
        template = self.template.with_options(options_of(task.extra))
        prompt = template.render(template.inert(chat.messages), template.inert(chat.tools))
        return replace(task, prompt=prompt, chat=chat)

    def renderer(self, protocol: protocols.MessagesProtocol, task: Task) -> ChatRenderer:
        """Return the renderer of one episode. The task must have gone through `task`."""
        assert task.chat is not None, "call task() first"
        return ChatRenderer(
            protocol,
            self.codec,
            self.template.with_options(options_of(task.extra)),
            task.chat,
            shows_calls=self.checked.call,
            ends_messages=self.checked.ends,
            max_tokens=self.env.output_max_tokens,
        )


def chat_formats(cfg: Config, codec: Codec, tokenizer: Any) -> dict[str, ChatFormat | None]:
    """Return the chat format of every environment of the run, by name; see `ChatFormat.of`."""
    return {
        name: ChatFormat.of(cfg, environment.env, codec, tokenizer) for name, environment in cfg.environments.items()
    }

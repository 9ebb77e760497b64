"""Chat checks: a messages protocol and the model's chat template go together. Part of preflight.py."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...config import Config
from ...config.environments import Environment
from ...data import jinja_template
from ...data.template_check import check_template
from ...episodes import turns
from ...errors import ConfigError


def check_chat(cfg: Config, e: Environment) -> None:
    """A messages protocol has prompts that a chat template rendered; what only it reads is not set for another."""
    if turns.of_messages(turns.load(e.env.protocol)):
        if not cfg.data.apply_chat_template:
            raise ConfigError(
                f"{e.section}.protocol = {e.env.protocol!r} goes on with the model's chat template, and"
                " data.apply_chat_template is not set: prompts would be raw text. Set --data.apply_chat_template;"
                " data.input_template then stands in the user's message."
            )
        return
    if e.env.tools or e.env.template_rewrites != "keep":
        raise ConfigError(
            f"{e.section}.tools and {e.section}.template_rewrites are a messages protocol's, and {e.section}.protocol ="
            f" {e.env.protocol!r} is none. Leave them out, or set {e.section}.protocol = 'messages'."
        )


def _speaks(e: Environment) -> bool:
    """Whether its protocol is one of messages. One that cannot be loaded is not: its own check says why."""
    with suppress(ConfigError):
        return turns.of_messages(turns.load(e.env.protocol))
    return False


def check_template_of(cfg: Config, model: Path) -> list[str]:
    """How messages protocols go together with the chat template in a model's directory, without its tokenizer."""
    speaking = [e for e in cfg.environments.values() if _speaks(e)]
    if cfg.rollout.agent == "external" or not speaking:
        return []
    template = jinja_template.of_directory(model, cfg.data.chat_template_options)
    if template is None:
        return [
            f"{model} has no single chat template in chat_template.jinja or tokenizer_config.json:"
            " it is checked when the tokenizer is loaded"
        ]
    checked = [
        check_template(template, turns.replies_of(e.env), e.env.tools, rewrites=e.env.template_rewrites)
        for e in speaking
    ]
    return list(dict.fromkeys(fact for c in checked for fact in c.facts()))

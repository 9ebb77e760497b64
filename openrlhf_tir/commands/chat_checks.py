"""Chat checks: a messages protocol and the model's chat template go together. Part of preflight.py."""

from __future__ import annotations

from pathlib import Path

from ..config import Config
from ..data import jinja_template
from ..data.template_check import check_template
from ..episodes import turns
from ..errors import ConfigError


def check_chat(cfg: Config) -> None:
    """A messages protocol has prompts that a chat template rendered; what only such a one reads is not set for another."""
    if turns.of_messages(turns.load(cfg.env.protocol)):
        if not cfg.data.apply_chat_template:
            raise ConfigError(
                f"env.protocol = {cfg.env.protocol!r} goes on with the model's chat template, and data.apply_chat_template is not set: prompts would be "
                "raw text. Set --data.apply_chat_template; data.input_template then stands in the user's message."
            )
        return
    if cfg.env.tools or cfg.env.template_rewrites != "keep":
        raise ConfigError(
            f"env.tools and env.template_rewrites are a messages protocol's, and env.protocol = {cfg.env.protocol!r} is none. "
            "Leave them out, or set env.protocol = 'messages'."
        )


def check_template_of(cfg: Config, model: Path) -> list[str]:
    """How a messages protocol goes together with the chat template in a model's directory, without its tokenizer."""
    if cfg.rollout.agent == "external" or not turns.of_messages(turns.load(cfg.env.protocol)):
        return []
    template = jinja_template.of_directory(model, cfg.data.chat_template_options)
    if template is None:
        return [f"{model} has no single chat template in chat_template.jinja or tokenizer_config.json: it is checked when the tokenizer is loaded"]
    return check_template(template, turns.replies_of(cfg.env), cfg.env.tools, rewrites=cfg.env.template_rewrites).facts()

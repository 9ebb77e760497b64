"""Checks that a messages protocol and the model's chat template work together. Part of preflight.py."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...config import Config
from ...config.environments import Environment
from ...data import jinja_template
from ...data.template_check import check_template
from ...data.template_shows import shown_by
from ...errors import ConfigError
from ...rollout import protocols


def check_chat(cfg: Config, e: Environment) -> None:
    """Check that a messages protocol has prompts that a chat template rendered, and that no other protocol has its
    settings.

    Raises:
        ConfigError: It is not so.
    """
    if protocols.of_messages(protocols.load(e.env.protocol)):
        if not cfg.data.apply_chat_template:
            raise ConfigError(
                f"{e.section}.protocol = {e.env.protocol!r} continues a chat of the model's template, but"
                " data.apply_chat_template is not set, so prompts would be raw text. Set --data.apply_chat_template;"
                " data.input_template is then part of the user's message."
            )
        return
    if e.env.tools:
        raise ConfigError(
            f"{e.section}.tools only apply to a messages protocol, and {e.section}.protocol = {e.env.protocol!r} is not"
            f" one. Leave them out, or set {e.section}.protocol = 'messages'."
        )


def _has_messages_protocol(e: Environment) -> bool:
    """Return True for a messages protocol. False for one that cannot be loaded: its own check reports that."""
    with suppress(ConfigError):
        return protocols.of_messages(protocols.load(e.env.protocol))
    return False


def check_template_of(cfg: Config, model: Path) -> list[str]:
    """Check how the messages protocols work with the chat template in a model's directory, without its tokenizer.

    Returns:
        Facts to print.
    """
    environments = [e for e in cfg.environments.values() if _has_messages_protocol(e)]
    if cfg.rollout.agent == "external" or not environments:
        return []
    template = jinja_template.of_directory(model, cfg.data.chat_template_options)
    if template is None:
        return [
            f"{model} has no single chat template in chat_template.jinja or tokenizer_config.json:"
            " it is checked when the tokenizer is loaded"
        ]
    checked = [check_template(template, protocols.replies_of(e.env), e.env.tools) for e in environments]
    return list(dict.fromkeys(fact for check in checked for fact in check.facts()))


def check_tools_of_endpoint(cfg: Config, model: Path) -> list[str]:
    """Return a fact if the OpenAI endpoint would parse calls of tools that the model's chat template does not show."""
    parser = cfg.vllm.tool_call_parser
    template = None if parser is None else jinja_template.of_directory(model, cfg.data.chat_template_options)
    if template is None or shown_by(template).tools:
        return []
    return [
        f"vllm.tool_call_parser = {parser!r}, but the chat template of {model} shows no tools: what a client sends as"
        " tools does not reach the model. Describe them in a message, or give the model a template that shows them"
    ]

"""Checks that a messages protocol and the model's chat template work together. Part of preflight.py."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...cluster.jobs.chat_tools import tools_of
from ...config import Config, Data
from ...config.environments import Environment, entry_of
from ...config.paths import local_path
from ...data import jinja_template, templates
from ...data.chat_template import ChatTemplate
from ...data.prompts import Problem, options_of, own_tools, render_chat
from ...data.template_check import check_template
from ...data.template_shows import shown_by
from ...errors import ConfigError, TirError
from ...rollout import protocols
from ...rollout.protocols.shown_tools import calls_tools_of_env, check_tools_shown, relies_on_template


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
    if cfg.rollout.agent == "external" or not cfg.data.apply_chat_template:
        return []
    template = jinja_template.of_directory(model, cfg.data.chat_template_options)
    environments = [e for e in cfg.environments.values() if _has_messages_protocol(e)]
    if not environments:
        return []
    if template is None:
        return [
            f"{model} has no single chat template in chat_template.jinja or tokenizer_config.json:"
            " it is checked when the tokenizer is loaded"
        ]
    checked = [check_template(template, protocols.replies_of(e.env), e.env.tools) for e in environments]
    return list(dict.fromkeys(fact for check in checked for fact in check.facts()))


class ChatPrompts:
    """Renders rows by the model's chat template, without its tokenizer, and finds those that it cannot show.

    Templates refuse orders of roles, or leave out a role, whatever the words are. So of rows of one shape that are
    rendered well only the first is rendered.
    """

    def __init__(self, cfg: Config, data: Data) -> None:
        """Read the template of a model that is on this machine, and ask the environments for their tools."""
        self.cfg = cfg
        self.data = data
        self._template: ChatTemplate | None = None
        self._needed: dict[str, Sequence[Mapping[str, Any]]] = {}
        """Environment -> its tools, of those whose calls name functions."""
        self._well_rendered: set[Hashable] = set()
        """Shapes of rows."""
        model = local_path(cfg.actor.model_name_or_path, "actor.model_name_or_path")
        with suppress(ConfigError):  # A template that is no Jinja is reported by check_template_of.
            self._template = None if cfg.by_agent else jinja_template.of_directory(model, data.chat_template_options)
        if self._template is None:
            return
        self._shows_tools = shown_by(self._template).tools
        for e in filter(relies_on_template, cfg.environments.values()):
            self._needed[e.name] = self._tools_of(e) if calls_tools_of_env(e) else ()

    def _tools_of(self, e: Environment) -> Sequence[Mapping[str, Any]]:
        with suppress(TirError):  # A server that does not answer is reported by check_envs.
            return e.env.tools or tools_of(self.cfg, e)
        return ()

    def check(self, problem: Problem, env: str, input_template: str | None) -> None:
        """Check a row.

        Args:
            problem: The row.
            env: Its environment.
            input_template: The template of the environment's prompts that are texts.

        Raises:
            DataError: The chat template refuses the row, or leaves a part of it out.
            ConfigError: The model would not see the row's tools.
        """
        if isinstance(problem.input, str):
            templates.texts_of(input_template, problem.extra, problem.where)
        if self._template is None:
            return
        e = entry_of(self.cfg.environments, env)
        own = own_tools(problem)
        needed = (own or self._needed[env]) if env in self._needed else ()
        shape = (_shape(problem.input), env, bool(own), repr(options_of(problem.extra)))
        # A prompt may describe the tools that the template does not show.
        if shape in self._well_rendered and (self._shows_tools or not needed):
            return
        offered = tuple(needed or own or e.env.tools)
        text, _ = render_chat(problem, self.data.input_key, input_template, self._template, offered)
        if needed:
            model = self.cfg.actor.model_name_or_path
            check_tools_shown(e, model, needed, [problem.input, text], problem.where, by_template=self._shows_tools)
        self._well_rendered.add(shape)


def _shape(prompt: str | Sequence[Mapping[str, Any]]) -> Hashable:
    """Return what a template usually decides by: the roles, and which parts each message has."""
    if isinstance(prompt, str):
        return None
    return tuple((m["role"], *sorted(name for name, part in m.items() if part)) for m in prompt)


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

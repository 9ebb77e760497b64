"""Tools that a chat template shows to the model, and those that it leaves out in silence.

A template that has no `tools` renders a conversation as if there were none: the model would be trained to call what it
has never seen. Prompts may describe the tools themselves, in a system message or in data.input_template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...config.environments import Environment
from ...data.lost_parts import lost_tools
from ...errors import ConfigError, TurnError
from .. import protocols


def relies_on_template(e: Environment) -> bool:
    """Return True if the model learns from its chat template alone which tools there are.

    A call that has one fixed form, such as a python block, names no tool. A protocol of the user's has an attribute
    `relies_on_template = False` if its tools are known otherwise.
    """
    with suppress(ConfigError, TurnError):  # reported by the check of the protocol
        return bool(getattr(protocols.make(e.env), "relies_on_template", True))
    return False


def calls_tools_of_env(e: Environment) -> bool:
    """Return True if a chat template is given the environment's own tools, and the model may call them."""
    with suppress(ConfigError):
        return protocols.of_messages(protocols.load(e.env.protocol)) and e.env.max_calls > 0
    return False


def check_tools_shown(
    e: Environment, model: str, tools: Sequence[Mapping[str, Any]], prompt: Any, where: str, *, by_template: bool
) -> None:
    """Check that a prompt shows tools, by its chat template or in its own words.

    Args:
        e: The environment of the prompt.
        model: The model whose template it is, for the message.
        tools: Schemas of the tools.
        prompt: The texts that the model reads, nested in any way.
        where: Row of the prompt, for the message.
        by_template: Whether the template shows tools to a plain question. It may leave them out of other conversations,
            such as those with a system message.

    Raises:
        ConfigError: The name of a tool is not in the prompt or, if the template shows none, that of a parameter that
            it requires.
    """
    if by_template:
        missing = lost_tools(tools, " ".join(_texts(prompt)))
    else:
        words = {word for text in _texts(prompt) for word in re.findall(r"\w+", text)}
        missing = [name for name, needed in map(_described_by, tools) if not words.issuperset(needed)]
    if missing:
        fence = (
            " One tool that runs code can do without, by calls that name no function"
            f" ({e.section}.options.calls = 'fence')."
            if e.env.protocol == "messages"
            else ""
        )
        raise ConfigError(
            f"{where}: the chat template of {model} shows no tools{' here' if by_template else ''}, and the prompt does"
            f" not describe {', '.join(missing)}: the model would never see what it may call with"
            f" {e.section}.protocol ="
            f" {e.env.protocol!r}. Give the model a template that has `tools`, or describe each tool with its name and"
            " required parameters in the system message of the rows or, for rows of text, in"
            f" data.input_template.{fence}",
            code="hidden_tools",
            setting=f"{e.section}.protocol",
        )


def _described_by(tool: Mapping[str, Any]) -> tuple[str, set[str]]:
    """Return the name of a tool, and the words that a description of it has: those of its name and parameters."""
    function = tool.get("function")
    function = function if isinstance(function, Mapping) else tool
    parameters = function.get("parameters")
    required = parameters.get("required") if isinstance(parameters, Mapping) else None
    name = str(function.get("name", ""))
    return name, set(re.findall(r"\w+", " ".join([name, *map(str, required or ())])))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)

"""The prompt of a multi-turn task: a system message, in our words, with the functions and the form of a call, then the
user's first messages.

tool, hermes, ...   the functions as JSON in the system message, and the tags of that turn protocol
messages            the functions in meta.chat_tools: the model's own chat template shows them, and says how they are
                    called
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError

TASK = (
    "You help a user by calling functions. Call those that the user's request needs, read their results, and go on"
    " until it is done as far as you can do it. Then say so in words, without a call: the user speaks next. Where no"
    " function fits, or a value that is needed was not told, call nothing and say what is missing."
)
NOTATION = {
    "tool": (
        "Think inside <reasoning></reasoning>, then call functions inside <tool></tool> as a JSON list: "
        '<tool>[{"name": "f", "arguments": {}}]</tool>. Results come inside <tool_result></tool_result>.'
    ),
    "hermes": (
        'Call a function with <tool_call>{"name": "f", "arguments": {}}</tool_call>; its result comes inside'
        " <tool_response></tool_response>."
    ),
}
"""Turn protocol -> how the prompt says that calls are written."""
MESSAGES = "messages"
PROTOCOLS = (*NOTATION, MESSAGES)
CHAT_TOOLS = "chat_tools"
"""Key of meta with the schemas that a row's chat template is given."""

Message = Mapping[str, Any]


def prompt_and_meta(
    messages: Sequence[Message], functions: Sequence[Mapping[str, Any]], protocol: str
) -> tuple[list[Message], dict[str, Any]]:
    """Return the prompt, and what meta says about it.

    Args:
        messages: The user's first messages.
        functions: Schemas of the functions.
        protocol: The turn protocol.

    Raises:
        ConfigError: There is no prompt for this protocol.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"BFCL's multi-turn prompts are written for the protocols {', '.join(PROTOCOLS)}, not {protocol!r}."
            " Set env.protocol to one of them."
        )
    meta: dict[str, Any] = {"functions_told": True}
    parts = [TASK]
    if protocol == MESSAGES:
        meta[CHAT_TOOLS] = [{"type": "function", "function": function} for function in functions]
    else:
        parts += [
            "# Functions",
            *(json.dumps(function, ensure_ascii=False) for function in functions),
            NOTATION[protocol],
        ]
    return [{"role": "system", "content": "\n".join(parts)}, *messages], meta

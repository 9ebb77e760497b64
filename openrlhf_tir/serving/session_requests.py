"""Session requests: what an agent framework asks for by default -> the nearest request whose tokens the policy samples
freely.

    tools[].function.strict      dropped: a grammar would bend the distribution, and the log-probs recorded are the
                                 policy's own
    tool_choice "required", {..} "auto", for the same reason
    system messages              in front of the user's words, where the model's chat template has none
    stop                         the stop text stays in the answer: it was sampled, so the next prompt must hold it to
                                 go on from it

Whatever is changed is said: in the session's notes, which its end returns and the actor logs once. Constraints that are
the point of a request (response_format, guided decoding) are not dropped but refused, by engines/openai_app.py.
"""

from __future__ import annotations

from typing import Any

SYSTEM_ROLES = ("system", "developer")
SYSTEM = "system message: the model's chat template has no place for it, so it stands before the user's first words"
STRICT = (
    "strict tools: the schema is shown to the model and not enforced,"
    " since the tokens that are trained must be the policy's own"
)
REQUIRED = "tool_choice was taken as 'auto', since the tokens that are trained must be the policy's own"
STOP = "stop: the stop text stays in the answer, so that the next request goes on from what was sampled"


def policy_request(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The request as it is served, and what was changed. `body` is left as it is."""
    changed, notes = dict(body), []
    tools = body.get("tools")
    if isinstance(tools, list) and any(_strict(tool) for tool in tools):
        changed["tools"] = [_without_strict(tool) for tool in tools]
        notes.append(STRICT)
    if body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict):
        changed["tool_choice"] = "auto"
        notes.append(REQUIRED)
    if body.get("stop"):
        changed["include_stop_str_in_output"] = True
        notes.append(STOP)
    return changed, notes


def without_system(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return a chat request whose system messages stand in front of the next user message's text; None where there is
    none. For models whose chat template refuses a system message, which agent frameworks send by default."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_is_system(message) for message in messages):
        return None
    kept: list[Any] = []
    told: list[str] = []
    for message in messages:
        if _is_system(message):
            told.append(_text(message.get("content")))
        elif told and isinstance(message, dict) and message.get("role") == "user":
            kept.append(_told_before(told, message))
            told = []
        else:
            kept.append(message)
    if told:
        kept.append({"role": "user", "content": "\n\n".join(told)})
    return {**body, "messages": kept}


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in SYSTEM_ROLES


def _text(content: Any) -> str:
    """A message's text; of a list of parts, those that are text."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _told_before(told: list[str], message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": "\n\n".join(told)}, *content]}
    return {**message, "content": "\n\n".join([*told, _text(content)])}


def _strict(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("function"), dict) and bool(tool["function"].get("strict"))


def _without_strict(tool: Any) -> Any:
    return {**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}} if _strict(tool) else tool

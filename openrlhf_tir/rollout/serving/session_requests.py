"""Change the requests that agent frameworks send by default to requests whose tokens the policy samples freely.

    temperature left out             becomes the session's, where vLLM would take 1
    tools[].function.strict          removed: a grammar would change the distribution, but the recorded log-probs are
                                     the policy's own
    tool_choice of a tool, or any    becomes "auto", for the same reason
    tools                            served, but noted if the model's chat template does not show them
    system messages                  moved in front of the user's text if the model's chat template has none
    stop                             the stop text stays in the answer: it was sampled, so the next prompt must have it
                                     to continue

Every other change is a note of the session, which its end returns and the actor logs once. Constraints that are the
point of a request (response_format, guided decoding) are not removed but refused, by engines/openai_app.py.
"""

from __future__ import annotations

from typing import Any

SYSTEM_ROLES = ("system", "developer")
SYSTEM_NOTE = "system message: the model's chat template has no place for it, so it stands before the user's first text"
TOOLS_NOTE = (
    "tools: the model's chat template does not show them, so the model does not know them; describe them in a message,"
    " or give the model a template that shows tools"
)
STRICT_NOTE = (
    "strict tools: the schema is shown to the model and not enforced,"
    " since the tokens that are trained must be the policy's own"
)
REQUIRED_NOTE = "tool_choice was taken as 'auto', since the tokens that are trained must be the policy's own"
NO_CALLS = ("none", {"type": "none"})
"""A `tool_choice` that forbids calls, in OpenAI's form and Anthropic's."""
STOP_NOTE = "stop: the stop text stays in the answer, so that the next request continues what was sampled"


def policy_request(body: dict[str, Any], temperature: float) -> tuple[dict[str, Any], list[str]]:
    """Return the request as it is served, and a note for each option that is not followed.

    Args:
        body: The request. It is not changed.
        temperature: The session's temperature, for a request that has none.
    """
    changed = dict(body)
    notes = []
    if body.get("temperature") is None:
        changed["temperature"] = temperature
    tools = body.get("tools")
    if isinstance(tools, list) and any(_is_strict(tool) for tool in tools):
        changed["tools"] = [_without_strict(tool) for tool in tools]
        notes.append(STRICT_NOTE)
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (None, "auto", "none"):
        changed["tool_choice"] = {"type": "auto"} if kind in ("any", "tool") else "auto"  # Anthropic's form, OpenAI's
        notes.append(REQUIRED_NOTE)
    if body.get("stop"):
        changed["include_stop_str_in_output"] = True
        notes.append(STOP_NOTE)
    return changed, notes


def wants_calls(body: dict[str, Any]) -> bool:
    """Return True if the client of a request waits for calls of tools."""
    return bool(body.get("tools")) and body.get("tool_choice") not in NO_CALLS


def without_system(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return a chat request with its system messages in front of the next user message's text.

    For models whose chat template refuses a system message, which agent frameworks send by default.

    Returns:
        The request; None if it has no system message.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_is_system(message) for message in messages):
        return None
    kept: list[Any] = []
    system_texts: list[str] = []
    for message in messages:
        if _is_system(message):
            system_texts.append(_text(message.get("content")))
        elif system_texts and isinstance(message, dict) and message.get("role") == "user":
            kept.append(_with_text_before(system_texts, message))
            system_texts = []
        else:
            kept.append(message)
    if system_texts:
        kept.append({"role": "user", "content": "\n\n".join(system_texts)})
    return {**body, "messages": kept}


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in SYSTEM_ROLES


def _text(content: Any) -> str:
    """Return the text of a message; of a list of parts, of those that are text."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _with_text_before(texts: list[str], message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with these texts in front of its own."""
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": "\n\n".join(texts)}, *content]}
    return {**message, "content": "\n\n".join([*texts, _text(content)])}


def _is_strict(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("function"), dict) and bool(tool["function"].get("strict"))


def _without_strict(tool: Any) -> Any:
    return (
        {**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}} if _is_strict(tool) else tool
    )

"""Session requests: what an agent framework asks for by default -> the nearest request whose tokens the policy samples
freely.

    tools[].function.strict      dropped: a grammar would bend the distribution, and the log-probs recorded are the
                                 policy's own
    tool_choice "required", {..} "auto", for the same reason
    stop                         the stop text stays in the answer: it was sampled, so the next prompt must hold it to
                                 go on from it

Whatever is changed is said: in the session's notes, which its end returns and the actor logs once. Constraints that are
the point of a request (response_format, guided decoding) are not dropped but refused, by engines/openai_app.py.
"""

from __future__ import annotations

from typing import Any

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


def _strict(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("function"), dict) and bool(tool["function"].get("strict"))


def _without_strict(tool: Any) -> Any:
    return {**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}} if _strict(tool) else tool

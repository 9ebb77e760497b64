"""Tool calls as SkyRL's and CodeAct's agents write them:

    <function=execute_bash>
    <parameter=command>ls -la</parameter>
    </function>

The rules are those of OpenHands' converter, which SkyRL-v0 uses (openhands/llm/fn_call_converter.py):

- A text with one opening tag gets a closing one, whether it has one or not: a call that was cut is a call.
- The name's tag ends its line. Without the newline there is no call.
- A value loses the white space around it. A parameter that does not close itself is not there.

What has an opening tag and is no call by these rules is `Malformed`. OpenHands takes such a text for a message without
a call, and so does the turn protocol `skyrl`.
"""

from __future__ import annotations

from collections.abc import Iterator

from .tool_call import Malformed, ParsedCall

OPEN, CLOSE = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
CUT = "</"
"""How a text ends whose stop string `</function` was left out of it."""


def function_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return every call of the text in order, or one `Malformed` if it opens a call and has none."""
    text = _repaired(text)
    found = [ParsedCall(name, _parameters(body)) for name, body in _tagged(text, OPEN, CLOSE, after_name="\n")]
    return [*found] or ([_malformed(text)] if OPEN in text else [])


def _repaired(text: str) -> str:
    if text.count(OPEN) != 1:
        return text
    return f"{text.rstrip()}function>" if text.endswith(CUT) else f"{text}\n{CLOSE}"


def _parameters(body: str) -> dict[str, str]:
    return {name: value.strip() for name, value in _tagged(body, PARAMETER, PARAMETER_END)}


def _tagged(text: str, opening: str, closing: str, after_name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, content) of what the pattern `opening([^>]+)>after_name(.*?)closing` finds, in linear time.

    Regular expressions take quadratic time on a text that opens a tag thousands of times.
    """
    at = text.find(opening)
    while at >= 0:
        start = at + len(opening)
        name_end = text.find(">", start)
        if name_end < 0:
            return
        content = name_end + 1 + len(after_name)
        if name_end == start or not text.startswith(after_name, name_end + 1):
            # Openings before this ">" would share it, and fail alike; without a name it belongs to this one alone.
            at = text.find(opening, name_end)
            continue
        end = text.find(closing, content)
        if end < 0:
            return
        yield text[start:name_end], text[content:end]
        at = text.find(opening, end + len(closing))


def _malformed(text: str) -> Malformed:
    """Say what keeps the first opening tag from being a call."""
    block = text.partition(OPEN)[2]
    name, tag_closed, rest = block.partition(">")
    if not tag_closed or not name:
        return Malformed(block, "no_name", "The call does not name a function: write <function=NAME>.")
    if not rest.startswith("\n"):
        return Malformed(block, "bad_arguments", f"The call of {name} goes on behind its tag: start a new line there.")
    return Malformed(block, "unclosed", f"The call is not closed: {CLOSE} is missing.")

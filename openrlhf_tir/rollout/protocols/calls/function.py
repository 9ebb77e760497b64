"""Tool calls as SkyRL's and CodeAct's agents write them:

    <function=execute_bash>
    <parameter=command>ls -la</parameter>
    </function>

The rules are those of OpenHands' converter, which SkyRL-v0 uses (openhands/llm/fn_call_converter.py):

- A text with exactly one opening tag gets a closing tag appended, whether it has one or not: a call that was cut
  counts.
- The tag with the name must end its line. Without the newline there is no call.
- White space around a value is removed. A parameter without a closing tag is ignored.

A text that has an opening tag and no call by these rules is `Malformed`. OpenHands takes such a text for a message
without a call, and so does the turn protocol `skyrl`.
"""

from __future__ import annotations

from collections.abc import Iterator

from .tool_call import Malformed, ParsedCall

OPEN = "<function="
CLOSE = "</function>"
PARAMETER_OPEN = "<parameter="
PARAMETER_CLOSE = "</parameter>"
CUT = "</"
"""End of a text from which a server has removed the stop string `function>`."""


def function_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return every call of the text in order, or one `Malformed` if it opens a call and has none."""
    text = _with_closing_tag(text)
    calls: list[ParsedCall | Malformed] = [
        ParsedCall(name, _parameters(body)) for name, body in _tagged(text, OPEN, CLOSE, after_name="\n")
    ]
    if not calls and OPEN in text:
        return [_malformed(text)]
    return calls


def _with_closing_tag(text: str) -> str:
    """Return a text with one opening tag with a closing tag at its end, and another text as it is."""
    if text.count(OPEN) != 1:
        return text
    return f"{text.rstrip()}function>" if text.endswith(CUT) else f"{text}\n{CLOSE}"


def _parameters(body: str) -> dict[str, str]:
    return {name: value.strip() for name, value in _tagged(body, PARAMETER_OPEN, PARAMETER_CLOSE)}


def _tagged(text: str, opening: str, closing: str, after_name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, content) of each match of the pattern `opening([^>]+)>after_name(.*?)closing`, in linear time.

    A regular expression takes quadratic time on a text that opens a tag thousands of times.
    """
    position = text.find(opening)
    while position >= 0:
        start = position + len(opening)
        name_end = text.find(">", start)
        if name_end < 0:
            return
        content = name_end + 1 + len(after_name)
        if name_end == start or not text.startswith(after_name, name_end + 1):
            # Openings before this ">" would share it and fail for the same reason, so the search goes on behind it.
            position = text.find(opening, name_end)
            continue
        end = text.find(closing, content)
        if end < 0:
            return
        yield text[start:name_end], text[content:end]
        position = text.find(opening, end + len(closing))


def _malformed(text: str) -> Malformed:
    """Return the defect of the first opening tag."""
    block = text.partition(OPEN)[2]
    name, tag_closed, rest = block.partition(">")
    if not tag_closed or not name:
        return Malformed(block, "no_name", "The call does not name a function: write <function=NAME>.")
    if not rest.startswith("\n"):
        return Malformed(block, "bad_arguments", f"The call of {name} goes on behind its tag: start a new line there.")
    return Malformed(block, "unclosed", f"The call is not closed: {CLOSE} is missing.")

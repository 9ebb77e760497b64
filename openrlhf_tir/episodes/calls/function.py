"""Tool calls as SkyRL's and CodeAct's agents write them:

    <function=execute_bash>
    <parameter=command>ls -la</parameter>
    </function>

A value is text, taken as it stands but for one newline after the opening and before the closing tag. A generation that
was stopped in "</function" counts as closed, as in the reference; a parameter must close itself. Source: SkyRL v0
(specs/SkyRL-v0.md)."""

from __future__ import annotations

from .tool_call import Malformed, ParsedCall, blocks, unclosed

OPEN, CLOSE = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


def function_calls(text: str) -> list[ParsedCall | Malformed]:
    if text.rstrip().endswith(CLOSE[:-1]):
        text = text.rstrip() + ">"
    return [_call(b.text) if b.closed else unclosed(b, CLOSE) for b in blocks(text, OPEN, CLOSE)]


def _call(block: str) -> ParsedCall | Malformed:
    name, tag_closed, body = block.partition(">")
    name = name.strip()
    if not tag_closed or not name or "\n" in name:
        return Malformed(block, "no_name", "The call does not name a function: write <function=NAME>.")
    arguments: dict[str, str] = {}
    for parameter in blocks(body, PARAMETER, PARAMETER_END):
        key, key_closed, value = parameter.text.partition(">")
        if not parameter.closed or not key_closed or not key.strip():
            return Malformed(
                block, "bad_arguments", f"A parameter of {name} is not written as <parameter=NAME>value</parameter>."
            )
        arguments[key.strip()] = value.removeprefix("\n").removesuffix("\n")
    return ParsedCall(name, arguments)

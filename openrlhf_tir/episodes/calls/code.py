"""Calls whose block is one argument: ToRL's and ZeroTIR's fence, ReTool's <code>, ARTIST's <python>, Search-R1's."""

from __future__ import annotations

from .tool_call import Malformed, ParsedCall, Parser, blocks, unclosed


def code_in(opening: str, closing: str, tool: str, argument: str) -> Parser:
    """A parser: what is between the marks is `argument` of a call of `tool`; only white space is malformed."""

    def parse(text: str) -> list[ParsedCall | Malformed]:
        found: list[ParsedCall | Malformed] = []
        for block in blocks(text, opening, closing):
            content = without_fence(block.text) if tool == "python" else block.text.strip()
            if not block.closed:
                found.append(unclosed(block, closing))
            elif not content.strip():
                found.append(Malformed(block.text, "empty", f"There is nothing between {opening} and {closing}."))
            else:
                found.append(ParsedCall(tool, {argument: content}))
        return found

    return parse


def without_fence(code: str) -> str:
    """Code without the ```python fence that a model may put inside a tag, and without blank lines around it."""
    code = code.strip("\n")
    stripped = code.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped.partition("\n")[2].removesuffix("```").strip("\n")
    return code

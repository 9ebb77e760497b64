"""Calls whose block is one argument: ToRL's and ZeroTIR's fence, ReTool's <code>, ARTIST's <python>, Search-R1's
tag."""

from __future__ import annotations

from .tool_call import Malformed, ParsedCall, Parser, blocks, unclosed


def code_in(opening: str, closing: str, tool: str, argument: str) -> Parser:
    """Return a parser of calls that are a block of text. A block of white space is malformed.

    Args:
        opening: Mark before the block.
        closing: Mark behind the block.
        tool: Name of the tool that every block calls.
        argument: Name of the argument that the block is.
    """

    def parse(text: str) -> list[ParsedCall | Malformed]:
        calls: list[ParsedCall | Malformed] = []
        for block in blocks(text, opening, closing):
            content = without_fence(block.text) if tool == "python" else block.text.strip()
            if not block.closed:
                calls.append(unclosed(block, closing))
            elif not content.strip():
                calls.append(Malformed(block.text, "empty", f"There is nothing between {opening} and {closing}."))
            else:
                calls.append(ParsedCall(tool, {argument: content}))
        return calls

    return parse


def without_fence(code: str) -> str:
    """Return code without the ```python fence that a model may put inside of a tag, and without blank lines around."""
    code = code.strip("\n")
    stripped = code.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped.partition("\n")[2].removesuffix("```").strip("\n")
    return code

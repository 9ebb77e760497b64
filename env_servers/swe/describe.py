"""Write the prompt of a bug: what users would report, from the hidden tests that fail. It describes behaviour, never
the place of the bug."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from . import openhands
from .tools import TOOLS

MAX_LINES = 8
"""Lines shown of one failed test."""
_ADDRESS = re.compile(r"<(?:function|bound method) ([\w.<>]+?)(?: of [^>]*)? at 0x[0-9a-f]+>+")
TOOLS_TEXT = """You have these functions:

1. execute_bash(command, is_input): run a bash command. The session keeps its directory and variables. A command that \
runs on has exit code -1: send an
   empty command for more of its output, text for its stdin with is_input true, or C-c with is_input true to end it.
2. str_replace_editor(command, path, file_text, old_str, new_str, insert_line, view_range): command is view, \
create, str_replace, insert or undo_edit.
   str_replace needs old_str exactly as it stands in the file, once; insert puts new_str after insert_line; \
view takes a view_range [first, last].
3. finish(): the task is done.

"""
CALLS_TEXT = {
    "skyrl": "",
    "tool": """Think inside <reasoning></reasoning>, then call functions as a JSON list:
<tool>[{"name": "execute_bash", "arguments": {"command": "ls"}}]</tool>. \
Results come inside <tool_result></tool_result>.

""",
    "hermes": """Call a function with <tool_call>{"name": "execute_bash", "arguments": {"command": "ls"}}</tool_call>; \
its result comes inside
<tool_response></tool_response>.

""",
    "messages": "",
    "": "",
}
"""How the prompt explains calls, by protocol. With "messages" the chat template explains them, from the schemas that a
row has for it (`tools_of`); "skyrl" uses OpenHands' prompt (openhands.py); "" is for a protocol that gets them from
elsewhere."""
INSTRUCTION = """The Python repository {name} is in {root}. Consider this issue:

<issue_description>
{issue}
</issue_description>

Make the changes to files of {root}, but not to its tests, that resolve the issue. The tests have been adapted already.
Nobody helps you, and there is no network.
1. Explore the repository: see how it is built and which files the issue is about.
2. Write a small script that shows the fault, and run it with `python`.
3. Edit the source code so that the issue is resolved.
4. Run the script again, and the tests with `python -m pytest -q`.
5. Think of edge cases, and see to it that they are handled as well.
6. Call finish.
"""


def issue(package: str, failures: Mapping[str, str]) -> str:
    """Return the text of an issue: at most two failed tests, in their own words and with the observed values.

    Args:
        package: Name of the package.
        failures: Failed tests and their messages.
    """
    parts = [f"Something in the package `{package}` does not do what it should."]
    # of several sets of parameters only the first failure
    first_of_test = {name.partition("[")[0]: (name, text) for name, text in list(failures.items())[::-1]}
    for name, text in list(reversed(first_of_test.values()))[:2]:
        title, bracket, case = name.rpartition("::")[2].removeprefix("test_").partition("[")
        title = title.replace("_", " ") + (f" ({case.removesuffix(']')})" if bracket else "")
        lines = [_ADDRESS.sub(r"\1", line) for line in text.splitlines() if line.strip()][:MAX_LINES]
        quoted = "\n".join(f"    {line}" for line in lines)
        parts.append(f"It should hold: {title}. But this fails:\n\n{quoted}")
    return "\n\n".join(parts)


def tools_of(protocol: str) -> dict[str, Any]:
    """Return the fields of a row's `meta` for the chat template.

    They are in the row because a server that the run starts cannot be asked when prompts are rendered.
    """
    return {"chat_tools": TOOLS} if protocol == "messages" else {}


def prompt(
    name: str,
    root: str,
    text: str,
    protocol: str,
    *,
    base: str = "what you were given",
    frame: openhands.Frame = openhands.OURS,
) -> str | list[dict[str, str]]:
    """Return the prompt of an issue: a text, or for the protocol `skyrl` a system and a user message.

    Args:
        name: The repository's name.
        root: Its directory in the session.
        text: The issue.
        protocol: How the policy writes calls, a key of CALLS_TEXT.
        base: What the prompt `skyrl` calls the state before any change, for example the commit.
        frame: The text around the task in the prompt `skyrl`.
    """
    if protocol == "skyrl":
        return frame.messages(openhands.INSTRUCTION.format(name=name, root=root, issue=text, base=base))
    calls = CALLS_TEXT[protocol]
    tools = TOOLS_TEXT if calls else ""
    return tools + calls + INSTRUCTION.format(name=name, root=root, issue=text)


def patch_text(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return a patch as git reads it, of text files that exist on both sides."""
    parts = []
    for path in sorted(after):
        if before[path] != after[path]:
            old = before[path].decode().splitlines(keepends=True)
            new = after[path].decode().splitlines(keepends=True)
            parts += [f"diff --git a/{path} b/{path}\n", *difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")]
    return "".join(parts)

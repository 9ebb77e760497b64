"""The prompt of OpenHands' CodeAct agent, on whose conversations SkyRL-v0's 7B was tuned: a system and a user message.

    system   who the agent is; every function between BEGIN and END lines; the form of a call; reminders
    user     an example conversation between START and END lines; the task; one function call a message

Roles, order, marks, tags and the lines of parameters are OpenHands' (openhands/llm/fn_call_converter.py and
agenthub/codeact_agent of NovaSky-AI/SkyRL-OpenHands); the sentences are ours. A model that was tuned on OpenHands'
conversations can be given their exact text: `from_rows` reads it from rows of that data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .tools import TOOLS

ORDER = ("execute_bash", "finish", "str_replace_editor")
"""The functions in OpenHands' order."""
NEW_TASK = "--------------------- NEW TASK DESCRIPTION ---------------------\n"
END_OF_TASK = "\n--------------------- END OF NEW TASK DESCRIPTION ---------------------\n"

_AGENT = """You are OpenHands agent, an assistant that works on a computer to solve tasks.
<IMPORTANT>
* A path that the user gives may lie anywhere: look for the file before you work on it.
* Where git asks who you are, the user.name is "openhands" and the user.email "openhands@all-hands.dev".
* Comments in code are only for what the code does not show.
</IMPORTANT>"""

_CALLS = """
You have access to the following functions:

{functions}

If you choose to call a function ONLY reply in the following format with NO suffix:

<function=example_function_name>
<parameter=example_parameter_1>value_1</parameter>
<parameter=example_parameter_2>
This is a value
of several
lines
</parameter>
</function>

<IMPORTANT>
Reminder:
- A call begins with <function= and ends with </function>
- Every required parameter MUST be there
- One function call in a message
- Reasons come BEFORE the call, nothing comes after it
- Where no function helps, answer in words and do not mention the functions
</IMPORTANT>
"""

_RUN = """<function=execute_bash>
<parameter=command>
python3 squares.py
</parameter>
</function>

USER: EXECUTION RESULT of [execute_bash]:
1
4
9
16
"""
"""A call of the example and its result, without the last line."""

_EXAMPLE = f"""Here's a running example of how to perform a task with the provided tools.

--------------------- START OF EXAMPLE ---------------------

USER: Write a script that prints the squares of 1 to 5, one a line.

ASSISTANT: Sure! Let me first see where I am:
<function=execute_bash>
<parameter=command>
pwd && ls
</parameter>
</function>

USER: EXECUTION RESULT of [execute_bash]:
/workspace
openhands@runtime:~/workspace$

ASSISTANT: There is no script yet. Let me create `squares.py`:
<function=str_replace_editor>
<parameter=command>create</parameter>
<parameter=path>/workspace/squares.py</parameter>
<parameter=file_text>
def squares(last):
    return [number * number for number in range(1, last)]


for square in squares(5):
    print(square)
</parameter>
</function>

USER: EXECUTION RESULT of [str_replace_editor]:
File created successfully at: /workspace/squares.py

ASSISTANT: Let me run it:
{_RUN}
ASSISTANT:
25 is missing: `range` ends before its last number. Let me correct that:
<function=str_replace_editor>
<parameter=command>str_replace</parameter>
<parameter=path>/workspace/squares.py</parameter>
<parameter=old_str>range(1, last)</parameter>
<parameter=new_str>range(1, last + 1)</parameter>
</function>

USER: EXECUTION RESULT of [str_replace_editor]:
The file /workspace/squares.py has been edited. Here's the result of running `cat -n` on a snippet of \
/workspace/squares.py:
     1\tdef squares(last):
     2\t    return [number * number for number in range(1, last + 1)]
     3\t
Review the changes and make sure they are as expected. Edit the file again if necessary.

ASSISTANT:
Running the edited file:
{_RUN}25

ASSISTANT:
The script prints the five squares.
<function=finish>
</function>

--------------------- END OF EXAMPLE ---------------------

Do NOT assume the environment is the same as in the example above.

"""

_AFTER_TASK = "\nPLEASE follow the format strictly! PLEASE EMIT ONE AND ONLY ONE FUNCTION CALL PER MESSAGE.\n"

INSTRUCTION = """
<uploaded_files>
{root}
</uploaded_files>

The directory {name} holds a Python repository that I have uploaded. This issue was reported:

<issue_description>
{issue}
</issue_description>

Please change the repository so that what the <issue_description> asks for is met.
All changes to the tests that it describes are made: leave the tests as they are.
Everything that the repository needs is installed, and there is no network.
Change as little as you can, in files of {root} that are no tests.

Follow these steps:

1. EXPLORATION: Look at how the repository is built, with tools like `find` and `grep`.
   - Find the files that the issue is about, and where it comes from

2. ANALYSIS: Think of two to five ways to resolve it, and choose one.
   - Say what the cause is and why your way is the best

3. TEST CREATION: Before you change anything, write a small script that shows the fault.
   - Run it and see that it fails

4. IMPLEMENTATION: Edit the source code.

5. VERIFICATION: Run your script again, and tests of the code that you changed (`python -m pytest -q`).
   - Think of edge cases, and try them

6. FINAL REVIEW: Read the issue once more and compare your changes with {base}.
   - Where a test fails, go on until all pass

Take the time that you need.
"""


class Frame(NamedTuple):
    """The text around a task: the system message, and the user message before and after the task."""

    system: str
    before: str
    after: str

    def messages(self, task: str) -> list[dict[str, str]]:
        """Return the conversation's first two messages."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{self.before}{task}{self.after}"},
        ]


def function_block(number: int, function: Mapping[str, Any]) -> str:
    """Return a function's description with its parameters, numbered, each with its type and whether it is required."""
    lines = [f"---- BEGIN FUNCTION #{number}: {function['name']} ----", f"Description: {function['description']}"]
    properties = function["parameters"]["properties"]
    if properties:
        lines.append("Parameters:")
    else:
        lines.append("No parameters are required for this function.")
    for position, (name, schema) in enumerate(properties.items(), 1):
        required = "required" if name in function["parameters"]["required"] else "optional"
        lines.append(f"  ({position}) {name} ({schema['type']}, {required}): {schema['description']}")
        if "enum" in schema:
            allowed = ", ".join(f"`{value}`" for value in schema["enum"])
            lines.append(f"Allowed values: [{allowed}]")
    lines.append(f"---- END FUNCTION #{number} ----\n")
    return "\n".join(lines)


def _functions() -> str:
    functions = {tool["function"]["name"]: tool["function"] for tool in TOOLS}
    return "\n".join(function_block(number, functions[name]) for number, name in enumerate(ORDER, 1))


OURS = Frame(_AGENT + _CALLS.format(functions=_functions()), _EXAMPLE + NEW_TASK, END_OF_TASK + _AFTER_TASK)


def from_rows(path: Path) -> Frame:
    """Return the frame of the first conversation in a JSONL file of OpenHands' demonstrations.

    Raises:
        ValueError: The first row has no `messages` (or `conversations`) that begin with a system message and a user
            message with OpenHands' marks around a task.
    """
    with path.open(encoding="utf-8") as lines:
        first = next((line for line in lines if line.strip()), "{}")
    try:
        row = json.loads(first)
    except ValueError:
        row = None
    messages = row.get("messages") or row.get("conversations") if isinstance(row, dict) else None
    texts = [_text(messages, position, role) for position, role in enumerate(("system", "user"))]
    system, user = texts
    before, mark, task = (user or "").partition(NEW_TASK)
    _, end_mark, after = task.partition(END_OF_TASK)
    if system is None or not mark or not end_mark:
        raise ValueError(
            f"{path}: the first row is no conversation of OpenHands: messages that begin with a system message and a"
            f" user message whose task stands between {NEW_TASK.strip()!r} and {END_OF_TASK.strip()!r}. Give rows of"
            " the data on which the model was tuned, or leave the flag out."
        )
    return Frame(system, before + mark, end_mark + after)


def _text(messages: object, position: int, role: str) -> str | None:
    """Return the text of the message at `position` if it has this role; its content may be a list of text parts."""
    if not isinstance(messages, Sequence) or len(messages) <= position:
        return None
    message = messages[position]
    if not isinstance(message, Mapping) or message.get("role") != role:
        return None
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else None

"""The formats of tool calls by name.

fence     ```python ... ```                                   ZeroTIR, ToRL
code      <code> ... </code>, without a fence inside          ReTool
python    <python> ... </python>                              ARTIST
search    <search> ... </search>                              Search-R1
hermes    <tool_call> {"name", "arguments"} </tool_call>      Qwen's chat template, one object per block
toolrl    <tool_call> {"name", "parameters"} per line         ToolRL, the first block only
tooln1    <tool_call> [{"name", "arguments"}, ...]            Tool-N1, the last block only
tool      <tool> [{"name", "arguments"}, ...] </tool>         ARTIST's function calling, the last block only
llama3    {"name", "parameters"}, the whole message           Llama 3.1's chat template
mistral   [TOOL_CALLS] [{"name", "arguments"}, ...]           Mistral's chat template
function  <function=NAME><parameter=P>value</parameter>...    SkyRL (CodeAct)
"""

from __future__ import annotations

from .chat_json import llama3_calls, mistral_calls
from .code import code_in
from .function import function_calls
from .json_text import hermes_calls, tool_calls, tooln1_calls, toolrl_calls
from .tool_call import Parser

PARSERS: dict[str, Parser] = {
    "fence": code_in("```python", "```", "python", "code"),
    "code": code_in("<code>", "</code>", "python", "code"),
    "python": code_in("<python>", "</python>", "python", "code"),
    "search": code_in("<search>", "</search>", "search", "query"),
    "hermes": hermes_calls,
    "toolrl": toolrl_calls,
    "tooln1": tooln1_calls,
    "tool": tool_calls,
    "llama3": llama3_calls,
    "mistral": mistral_calls,
    "function": function_calls,
}
OF_ONE_TOOL = ("fence", "code", "python", "search")
"""Formats whose calls name no function: the text between two tags is the action of the one tool that there is."""

"""OpenHands' prompt: its marks and order, and their very words where rows of their data are given."""

from __future__ import annotations

import json

import pytest

from env_servers.swe.describe import prompt
from env_servers.swe.openhands import END_OF_TASK, NEW_TASK, OURS, from_rows, function_block
from openrlhf_tir.rollout.protocols.calls.function import function_calls
from openrlhf_tir.rollout.protocols.calls.tool_call import ParsedCall


def test_the_prompt_is_a_system_message_with_the_functions_and_an_example_before_the_task():
    system, user = prompt("roman", "/tmp/roman", "It fails.", "skyrl")
    assert (system["role"], user["role"]) == ("system", "user")
    blocks = [line for line in system["content"].splitlines() if line.startswith("---- BEGIN")]
    assert blocks == [
        "---- BEGIN FUNCTION #1: execute_bash ----",
        "---- BEGIN FUNCTION #2: finish ----",
        "---- BEGIN FUNCTION #3: str_replace_editor ----",
    ]
    marks = [
        "- START OF EXAMPLE -",
        "\nUSER: ",
        "\nASSISTANT: ",
        "EXECUTION RESULT of [execute_bash]:\n",
        "- END OF EXAMPLE -",
        "- NEW TASK DESCRIPTION -",
        "<uploaded_files>\n/tmp/roman\n</uploaded_files>",
        "<issue_description>\nIt fails.\n</issue_description>",
        "- END OF NEW TASK DESCRIPTION -",
        "ONE AND ONLY ONE FUNCTION CALL PER MESSAGE",
    ]
    places = [user["content"].index(mark) for mark in marks]
    assert places == sorted(places)


def test_the_protocol_parses_every_call_of_the_example():
    messages = OURS.before.split("ASSISTANT:")[1:]
    calls = [call for text in messages for call in function_calls(text.partition("USER:")[0])]
    assert all(isinstance(call, ParsedCall) for call in calls)
    edited = ["execute_bash", "str_replace_editor", "execute_bash"]
    assert [call.name for call in calls] == [*edited, "str_replace_editor", "execute_bash", "finish"]


def test_a_function_block_has_openhands_lines():
    function = {
        "name": "f",
        "description": "Does it.",
        "parameters": {
            "properties": {
                "a": {"type": "string", "description": "One.", "enum": ["x", "y"]},
                "b": {"type": "integer", "description": "Two."},
            },
            "required": ["a"],
        },
    }
    assert function_block(3, function) == (
        "---- BEGIN FUNCTION #3: f ----\nDescription: Does it.\nParameters:\n  (1) a (string, required): One.\n"
        "Allowed values: [`x`, `y`]\n  (2) b (integer, optional): Two.\n---- END FUNCTION #3 ----\n"
    )


def test_our_task_has_the_prompt_text_of_published_rows(tmp_path):
    rows = tmp_path / "rows.jsonl"
    user = [{"type": "text", "text": f"Their example.\n{NEW_TASK}Their task.{END_OF_TASK}\nTheir reminder."}]
    rows.write_text(json.dumps({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": user}]}))
    system, task = prompt("roman", "/tmp/roman", "It fails.", "skyrl", frame=from_rows(rows))
    assert system["content"] == "S"
    assert task["content"].startswith(f"Their example.\n{NEW_TASK}\n<uploaded_files>")
    assert task["content"].endswith(f"{END_OF_TASK}\nTheir reminder.") and "Their task." not in task["content"]


@pytest.mark.parametrize("row", ["{}", "[]", '{"messages": [{"role": "user", "content": "x"}]}', "", "system: S"])
def test_rows_without_an_openhands_conversation_are_refused(tmp_path, row):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(row)
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        from_rows(rows)

"""Structured and ARTIST turns by hand, on the real episode loop: calls, malformed calls as data, budgets."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openrlhf_tir.rollout.protocols import Call, End
from openrlhf_tir.rollout.protocols.artist import SILENT, Artist
from openrlhf_tir.rollout.protocols.messages import Messages
from openrlhf_tir.rollout.protocols.structured import USED_UP, Function, Hermes, Tool, ToolN1, ToolRL
from openrlhf_tir.types import Completion
from tests.unit.rollout.protocols.test_turns import play

END = "</tool_call>"


def actions(found):
    return [json.loads(action) for action in found]


async def test_hermes_runs_its_call_and_shows_the_response():
    call = f'I look. <tool_call>\n{{"name": "f", "arguments": {{"x": 1}}}}\n{END}'
    traj, sent = await play(Hermes(max_calls=2), [(call, END), ("so 7", "eos")], "7\n")
    assert actions(sent) == [[{"name": "f", "arguments": {"x": 1}}]]
    assert traj.segments[1].text == "\n<tool_response>\n7\n</tool_response>\n"


@pytest.mark.parametrize(
    ("protocol", "call"),
    [
        (ToolRL, '{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}'),
        (ToolN1, '[{"name": "f"}, {"name": "g"}]'),
    ],
)
async def test_the_calls_of_one_block_are_one_action(protocol, call):
    _, sent = await play(protocol(max_calls=1), [(f"<tool_call>{call}{END}", END), ("x", "eos")], "ok")
    assert actions(sent) == [[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]]


async def test_a_malformed_call_is_told_to_the_model_and_recorded_for_the_reward_but_not_run():
    """The second call is the environment's first: its step_id is 0, although a malformed call came before it."""
    turns = [(f"<tool_call>{{'f'}}{END}", END), (f'<tool_call>{{"name": "f"}}{END}', END), ("x", "eos")]
    traj, sent = await play(Hermes(max_calls=2), turns, "7")
    assert actions(sent) == [[{"name": "f", "arguments": {}}]]
    bad, good = traj.calls
    assert (bad.outcome, bad.action, bad.signals) == (
        "model_error",
        "{'f'}",
        {"error_type": "malformed_call", "defect": "not_json"},
    )
    assert good.outcome == "ok" and "not valid JSON" in traj.segments[1].text
    assert [s.source for s in traj.segments] == ["model", "env", "model", "env", "model"]


async def test_one_malformed_call_keeps_its_neighbours_from_running():
    traj, sent = await play(ToolN1(max_calls=1), [(f'<tool_call>[{{"name": "f"}}, 7]{END}', END), ("x", "eos")])
    assert sent == [] and traj.calls[0].signals["defect"] == "not_a_call"


async def test_an_empty_list_calls_nothing_and_ends():
    traj, sent = await play(ToolN1(max_calls=1), [(f"<tool_call>[]{END}", END)])
    assert sent == [] and traj.calls == []


async def test_a_closing_tag_that_closes_nothing_is_malformed():
    traj, _ = await play(Hermes(max_calls=1), [(f"hm{END}", END), ("x", "eos")])
    assert traj.calls[0].signals["defect"] == "unclosed"


async def test_a_used_up_budget_is_told_when_asked_for_and_ends_the_stops():
    protocol = Hermes(max_calls=1, budget_message=True)
    traj, _ = await play(protocol, [(f'<tool_call>{{"name": "f"}}{END}', END), ("x", "eos")], "7")
    assert traj.segments[1].text.endswith(USED_UP) and protocol.stops == ()


async def test_a_function_call_names_itself_in_its_result():
    turn = "<function=bash>\n<parameter=cmd>ls</parameter>\n</function>"
    traj, sent = await play(Function(max_calls=1), [(turn, "</function>"), ("x", "eos")], "a.py\n")
    assert actions(sent) == [[{"name": "bash", "arguments": {"cmd": "ls"}}]]
    assert traj.segments[1].text == "\nEXECUTION RESULT of [bash]:\na.py\n"


async def test_a_tag_that_is_only_spoken_of_is_no_part_of_artists_code():
    turns = [("I use <python> now. <python>print(1)</python>", "</python>"), ("x", "eos")]
    assert (await play(Artist(max_calls=1), turns, "1"))[1] == ["print(1)"]


async def test_artist_runs_the_last_block_and_rejects_an_empty_one():
    turns = [("<python>print(1)</python>", "</python>"), ("<python> </python>", "</python>"), ("x", "eos")]
    traj, sent = await play(Artist(max_calls=2), turns, "")
    assert sent == ["print(1)"]
    assert traj.segments[1].text == f"\n<output>\n{SILENT}\n</output>\n"
    assert [c.outcome for c in traj.calls] == ["ok", "model_error"]


async def test_artists_functions_are_called_between_tool_tags():
    call = '<reasoning>a</reasoning><tool>[{"name": "f"}]</tool>'
    traj, sent = await play(Tool(max_calls=2), [(call, "</tool>"), ("so 7", "eos")], "7\n")
    assert actions(sent) == [[{"name": "f", "arguments": {}}]]
    assert traj.segments[1].text == "\n<tool_result>\n7\n</tool_result>\n"


async def test_with_a_user_what_is_no_call_is_a_message_without_its_reasoning():
    turns = [
        ("<think>hm</think> Who are you? ", "eos"),
        ('<tool>[{"name": "f"}]</tool>', "</tool>"),
        ("Bye.", "eos"),
        ("never", "eos"),
    ]
    traj, sent = await play(Tool(max_calls=3, user=True), turns, "Ada.", "7", "Bye.")
    assert [json.loads(a) for a in sent] == [
        {"message": "Who are you?"},
        [{"name": "f", "arguments": {}}],
        {"message": "Bye."},
    ]
    assert traj.segments[1].text == "\n# User\nAda.\n"


def said(text, stop_reason=None):
    return Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), text, "stop", stop_reason)


def test_in_a_chat_with_a_user_what_calls_nothing_is_a_message_and_its_reply_the_users():
    chat = Messages(max_calls=3, user=True)
    first = chat.advance(said("<think>hm</think>Who are you?"))
    assert json.loads(first.action) == {"message": "Who are you?"} and chat.replies("Ada.") == [
        {"role": "user", "content": "Ada."}
    ]
    second = chat.advance(said('<tool_call>{"name": "f"}</tool_call>'))
    assert json.loads(second.action) == [{"name": "f", "arguments": {}}] and chat.replies("7") == [
        {"role": "tool", "content": "7", "name": "f"}
    ]
    assert isinstance(chat.advance(said("Bye.")), Call) and isinstance(chat.advance(said("And?")), End)
    assert isinstance(Messages(max_calls=3).advance(said("Bye.")), End)


async def test_a_message_that_was_cut_is_not_sent():
    traj, sent = await play(Tool(max_calls=3, user=True), [("Who are", None)], "Ada.")
    assert sent == [] and traj.finish_reason == "length"

"""SkyRL turns by hand: one call a message, a user's answer, the continue message, and a last turn that is judged."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from openrlhf_tir.rollout.protocols import TURN_LIMIT, Call, End, Reject
from openrlhf_tir.rollout.protocols.skyrl import CONTINUE, GIVE_UP, LAST, LEFT_OUT, MAX_CHARS, SkyRL
from openrlhf_tir.types import Completion


def said(text: str, finish: str = "stop") -> Completion:
    return Completion(np.array([1]), np.zeros(1), np.zeros(1, np.int32), text, finish)


def call(name: str, **arguments: str) -> str:
    return (
        f"<function={name}>\n"
        + "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in arguments.items())
        + "</function>"
    )


def test_a_call_is_an_action_and_its_result_a_message_of_the_user():
    turns = SkyRL(max_calls=50)
    answer = turns.advance(said("I look. " + call("execute_bash", command="ls")))
    assert answer == Call(json.dumps([{"name": "execute_bash", "arguments": {"command": "ls"}}]))
    assert turns.replies("a.py\n") == [{"role": "user", "content": "EXECUTION RESULT of [execute_bash]:\na.py"}]


def test_a_message_without_a_call_is_asked_to_continue_and_nothing_runs():
    turns = SkyRL(max_calls=50)
    answer = turns.advance(said("I think it is done."))
    assert isinstance(answer, Reject) and (answer.defect, answer.message) == ("no_call", CONTINUE)
    assert turns.replies(answer.message) == [{"role": "user", "content": CONTINUE}]
    again = turns.advance(said("It is."))
    assert isinstance(again, Reject) and again.message == CONTINUE + GIVE_UP
    assert turns.replies(again.message) == [{"role": "user", "content": CONTINUE + GIVE_UP}]


def test_a_continue_message_of_ones_own_takes_the_place_of_the_methods():
    answer = SkyRL(max_calls=50, continue_message="Go on.").advance(said("Hm."))
    assert isinstance(answer, Reject) and answer.message == "Go on."


@pytest.mark.parametrize(
    "text",
    [
        "<function=execute_bash><parameter=command>ls</parameter></function>",  # no new line after the tag
        "<function=>\n</function>",
        "<function=execute_bash",
        "<function=a>\n<function=b>\n",  # two openings are not repaired
    ],
)
def test_what_is_no_call_by_openhands_rules_is_a_message_without_one(text):
    turns = SkyRL(max_calls=50)
    answer = turns.advance(said(text))
    assert isinstance(answer, Reject) and (answer.defect, answer.message) == ("no_call", CONTINUE)
    assert not turns.replies(answer.message)[0]["content"].startswith("EXECUTION")


def test_a_call_that_was_cut_is_repaired_and_made():
    cut = dataclasses.replace(
        said("<function=execute_bash>\n<parameter=command>ls</parameter>\n<parameter=is_input>tr", finish="length"),
        stop_reason=TURN_LIMIT,
    )
    action = json.dumps([{"name": "execute_bash", "arguments": {"command": "ls"}}])
    assert SkyRL(max_calls=9).advance(cut) == Call(action)
    assert SkyRL(max_calls=9).advance(said("<function=finish>\n")) == Call('[{"name": "finish", "arguments": {}}]')


def test_a_stop_in_the_closing_tag_counts_as_closed_and_only_the_first_call_is_made():
    text = call("execute_bash", command="ls").removesuffix(">")
    assert isinstance(SkyRL(max_calls=9).advance(said(text)), Call)
    two = SkyRL(max_calls=9).advance(said(call("execute_bash", command="a") + call("finish")))
    assert two == Call(json.dumps([{"name": "execute_bash", "arguments": {"command": "a"}}]))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (call("execute_bash", command="ls"), ["execute_bash", "finish"]),
        ("Hm.", ["finish"]),
        (call("finish"), ["finish"]),
        ("<function=", ["finish"]),
    ],
)
def test_the_last_turn_is_judged_whatever_it_is(text, names):
    turns = SkyRL(max_calls=2, budget_message=True)
    turns.advance(said(call("execute_bash", command="ls")))
    assert turns.replies("x")[0]["content"].endswith(LAST)
    answer = turns.advance(said(text))
    assert isinstance(answer, Call)
    calls = json.loads(answer.action)
    assert [c["name"] for c in calls] == names
    assert calls[-1]["arguments"] == ({} if text == call("finish") else {"cut": "true"})
    assert turns.advance(said(text)) == End()


def test_a_message_that_ran_out_of_tokens_ends():
    assert SkyRL(max_calls=50).advance(said(call("finish"), finish="length")) == End()


def test_a_message_that_is_cut_at_its_own_limit_is_asked_to_continue():
    turns = SkyRL(max_calls=50, max_turn_tokens=3)
    cut = dataclasses.replace(said("I think that", finish="length"), stop_reason=TURN_LIMIT)
    answer = turns.advance(cut)
    assert isinstance(answer, Reject) and answer.defect == "no_call" and turns.max_turn_tokens == 3


def test_of_a_long_result_the_ends_are_shown():
    turns = SkyRL(max_calls=50)
    turns.advance(said(call("execute_bash", command="ls")))
    shown = turns.replies("a" * MAX_CHARS + "zz")[0]["content"]
    assert LEFT_OUT in shown and shown.endswith("zz") and len(shown) < MAX_CHARS + 100

"""What the model may write as calls, and how much of their results it is shown. Needs no package."""

from __future__ import annotations

import json

import pytest

from env_servers.actions import (
    CALLS,
    MAX_CALLS,
    MAX_DEPTH,
    STEP_CHARS,
    BadAction,
    Lines,
    read_calls,
    read_message_or_calls,
)
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.environment_client.http import MAX_REPLY_BYTES


def nested(depth: int) -> str:
    """A call in which `depth` lists and objects are within one another."""
    return '[{"name": "f", "arguments": {"a": ' + "[" * (depth - 3) + "]" * (depth - 3) + "}}]"


@pytest.mark.parametrize(
    "action",
    [
        "",
        "[]",
        "3",
        '["f"]',
        '[{"name": 3}]',
        '[{"name": "f", "arguments": null}]',
        json.dumps([{"name": "f"}] * (MAX_CALLS + 1)),
        "[" * 100_000,
        nested(MAX_DEPTH + 1),
        nested(500),
        r'[{"name": "f", "arguments": {"a": ["\ud800"]}}]',
        r'[{"name": "f", "arguments": {"\udfff": 1}}]',
        r'[{"name": "\ud800", "arguments": 3}]',
        '[{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}]",
    ],
)
def test_a_call_that_cannot_be_forwarded_is_refused_with_a_sendable_reason(action):
    with pytest.raises(BadAction) as refusal:
        read_calls(action)
    StepReply(session_id="s", step_id=0, observation=str(refusal.value)).model_dump_json()


def test_in_a_dialogue_an_action_is_a_message_or_calls_and_what_it_may_be_is_said_once():
    assert read_message_or_calls('{"message": "hello"}', "THIS") == "hello"
    assert read_message_or_calls('{"name": "f"}', "THIS") == [("f", {})]
    for action in ("hello", '{"message": 3}', "[]"):
        with pytest.raises(BadAction) as refusal:
            read_message_or_calls(action, "THIS")
        assert str(refusal.value).count("THIS") == 1 and CALLS not in str(refusal.value)


def test_a_well_formed_call_is_forwarded():
    assert len(read_calls(nested(MAX_DEPTH))) == 1
    assert read_calls(r'{"name": "f", "arguments": {"a": "\ud83d\ude00"}}') == [("f", {"a": "\N{GRINNING FACE}"})]


def test_results_are_cut_to_a_limit_each_and_to_the_size_of_a_reply_together():
    lines = Lines(5)
    lines.add("result", "12345")
    lines.add("error", "123456")
    assert str(lines) == '{"result": "12345"}\n{"error": "12345... [1 characters left out]"}'
    full = Lines(STEP_CHARS)
    for _ in range(MAX_CALLS):
        full.add("result", "\x00" * STEP_CHARS)  # each is seven characters on the wire
    assert str(full).count("\n") == MAX_CALLS - 1 and f"... [{STEP_CHARS} characters left out]" in str(full)
    assert len(StepReply(session_id="s", step_id=0, observation=str(full)).model_dump_json()) < MAX_REPLY_BYTES

"""Reasoning: what a message says outside of its thoughts, and that a call inside of one is none."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.rollout.protocols import Call, End
from openrlhf_tir.rollout.protocols.calls.reasoning import without_reasoning
from openrlhf_tir.rollout.protocols.messages import Messages
from openrlhf_tir.types import Completion

CALL = '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call>'


def completion(text):
    return Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), text, "stop")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a", ""),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("<think>a<think>b</think>c", "c"),
        ("[THINK]a[/THINK]b", "b"),
        (f"◁think▷{CALL}◁/think▷b", "b"),
        ("<thinking>a</think></thinking>b", "b"),
        ("<seed:think>a</seed:think>b", "b"),
        ("no thought", "no thought"),
        ("", ""),
        (CALL.replace('"1"', "\"'</think>'\""), CALL.replace('"1"', "\"'</think>'\"")),
        (CALL.replace('"1"', "\"'<think>'\""), CALL.replace('"1"', "\"'<think>'\"")),
        (f"<think>{CALL}</think>", ""),
        (f"{CALL}</think>b", "b"),
        ('\n\n \n\t{"a": "</think>"}\n', '\n\n \n\t{"a": "</think>"}\n'),
        ('{"a": "<think>"}<think>{"b": 1}</think>\n{"c": "</think>"}', '{"a": "<think>"}\n{"c": "</think>"}'),
        ('[no JSON]\n{"a": "</think>"}', '[no JSON]\n{"a": "</think>"}'),
    ],
)
def test_what_a_message_says_outside_of_its_thoughts(text, said):
    assert without_reasoning(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 500_000,
        " \r\n" * 200_000,
        "<tool_call>" + "\n" * 500_000,
        "\n{}" * 30_000 + "<seed:think>" * 30_000,
        "\n[" * 200_000,
        "\n[x" * 200_000,
    ],
    ids=lambda text: ascii(text[:6]),
)
@pytest.mark.timeout(120)  # texts that would take an hour if a part of them were read once for each of the others
def test_a_message_is_read_in_a_time_that_grows_as_its_length(text):
    assert without_reasoning(text) in (text, text.partition("<seed:think>")[0])


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (f"<think>I could write {CALL}</think>The answer is 4.", None),
        (f"I could write {CALL}</think>The answer is 4.", None),
        ("<think>a <tool_call> is what I need</think>The answer is 4.", None),
        (f"<think>{CALL}", None),
        (f"<think>no</think>{CALL}", "1"),
        (f"{CALL}", "1"),
    ],
)
def test_a_call_is_run_only_outside_of_thoughts(text, action):
    decision = Messages(max_calls=2, argument="code").advance(completion(text))
    assert decision == (End() if action is None else Call(action))

"""Scripts: which texts are calls is found out from the protocol, whichever it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openrlhf_tir.cli.rehearsal.engine import ScriptedEngine
from openrlhf_tir.cli.rehearsal.scripts import scripts_of
from openrlhf_tir.config.settings import load
from openrlhf_tir.rollout import protocols
from openrlhf_tir.types import Task

from .test_scripted_engine import Letters

ROW = Task("Q", "56", "python_tir")


def titles(e, protocol=None):
    make = protocol or (lambda: protocols.make(e.env))
    return [s.title for s in scripts_of(ROW, e, make, ScriptedEngine(Letters(), 0).complete, 200)]


def environment(**env):
    return load(None, {f"env.{key}": value for key, value in env.items()}).environments["python_tir"]


@pytest.mark.parametrize(
    "protocol", ["zerotir", "torl", "retool", "hermes", "toolrl", "tool", "function", "searchr1", "tagged"]
)
def test_every_registered_protocol_gets_a_call_that_it_reads(protocol):
    assert any(title.startswith("a call, then") for title in titles(environment(protocol=protocol, max_calls=3)))


def test_a_protocol_with_tags_of_ones_own_choice_gets_a_call():
    options = {"opening": "<go>", "closing": "</go>"}
    found = titles(environment(protocol="tagged", max_calls=3, options=options))
    assert any(title.startswith("a call, then the right answer: '<go>") for title in found)


def test_without_calls_none_is_played():
    assert not any("call" in title for title in titles(environment(max_calls=0)))


class Digits:
    """Stops at a digit, which is the action."""

    stops = tuple("0123456789")

    def advance(self, completion):
        return protocols.Call(completion.stop_reason) if completion.stop_reason in self.stops else protocols.End()


def test_a_protocol_of_ones_own_is_found_out_by_its_stop_strings():
    found = titles(environment(max_calls=2), Digits)
    assert any("then the right answer" in title and title != "the right answer" for title in found)


def test_a_response_that_is_too_long_and_an_empty_one_are_always_played():
    e = environment(max_calls=0)
    scripts = scripts_of(replace(ROW, label="x"), e, None, ScriptedEngine(Letters(), 0).complete, 30)
    by_title = {s.title: s.turns for s in scripts}
    assert len(by_title["a response that is cut"][0]) > 30 and by_title["an empty response"] == [""]
    assert by_title["the right answer"] == ["<answer>\\boxed{x}</answer>"], "the longest form that there is room for"


BALANCE = {
    "type": "function",
    "function": {
        "name": "balance",
        "parameters": {
            "type": "object",
            "properties": {
                "account": {"type": "string"},
                "currency": {"type": "string", "enum": ["EUR", "USD"]},
            },
        },
    },
}


def test_a_tool_is_called_with_what_the_row_names_and_with_values_of_an_enumeration():
    """A tool that looks an account up answers a call with an account that exists."""
    row = replace(ROW, prompt="What has ann17?", extra={"tools_kwargs": {"balance": {"accounts": {"ann17": 5}}}})
    e = environment(protocol="hermes", max_calls=3, tools=[BALANCE])
    scripts = scripts_of(row, e, lambda: protocols.make(e.env), ScriptedEngine(Letters(), 0).complete, 200)
    calls = [script.turns[0] for script in scripts if script.title.startswith("a call, then the right answer")]
    assert any('"account": "ann17"' in call for call in calls)
    assert calls and all('"currency": "EUR"' in call for call in calls)

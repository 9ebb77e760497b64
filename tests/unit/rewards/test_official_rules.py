"""The official rules that rewards and environments have beside ours, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards import load
from openrlhf_tir.rewards.retool import answer_line_score, evaluation_answer, recipe_score
from openrlhf_tir.rewards.searchr1 import verl_score
from openrlhf_tir.rewards.zerotir import official_verdict
from openrlhf_tir.rollout.protocols import Call, Reject
from openrlhf_tir.rollout.protocols.calls import printed
from openrlhf_tir.rollout.protocols.messages import Messages
from openrlhf_tir.rollout.protocols.retool import ReTool
from tests.unit.rewards.reward_fakes import in_run, reward_of, says, task
from tests.unit.rollout.protocols.test_turns_skyrl import said


def test_the_recipe_compares_strings_at_the_end_of_the_response():
    assert recipe_score(r"\boxed{042}", "42", 2) == (-1.0, False, "042")
    assert recipe_score(r"\boxed{42} then \boxed{4", "42", 2) == (-1.0, False, "")
    assert recipe_score(r"\boxed{42}" + "x" * 91, "42", 2).acc is False
    assert recipe_score(r"\boxed{42}" + "x" * 90, "42", 2).acc is True


def test_the_lenient_rule_reads_the_last_answer_line():
    assert answer_line_score("Answer: 41\nAnswer: x = 42 degrees", "42") == (1.0, True, "42")
    assert answer_line_score(r"\boxed{42}", "42") == (-1.0, False, "[INVALID]")


def test_the_recipe_prints_the_last_line_whatever_it_is():
    assert printed.official("x=1\nx+1\n\n") == "x=1\nprint(x+1)\n\n"
    assert printed.official("```python\n1+1\n```") == "print(1+1)"
    assert printed.official("printer()") == "printer()"
    assert printed.official("x=1") == "print(x=1)"
    assert printed.official("") == ""


@pytest.mark.parametrize(
    ("text", "answer"),
    [(r"\boxed{4{2}", "4{2}"), (r"\boxed{4", "4"), (r"\boxed{1} \boxed{2", "2"), (r"$\boxed 7$ is", "7")],
)
def test_the_official_evaluation_reads_an_open_box_to_the_end_of_the_text(text, answer):
    assert evaluation_answer(text) == answer


def test_only_a_last_expression_is_printed_by_our_rewriting():
    assert printed.expression("x = 1\nx + 1\n# end") == "x = 1\nprint(x + 1)\n# end"
    assert printed.expression("```python\nf(\n 1)\n```") == "print(f(\n 1))"
    for code in ("x = 1", "import os", "if x:\n    x", "x = 1; x + 1", "print(x)", "x +", "", "# comment"):
        assert printed.expression(code) == code


def test_a_program_in_a_call_is_rewritten_where_the_protocol_is_told_to():
    turns = Messages(max_calls=1, argument="code", print_last="official")
    call = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "x=1\\nx+1"}}</tool_call>'
    assert turns.advance(said(call)) == Call("x=1\nprint(x+1)")
    for options in ({"print_last": "always", "argument": "code"}, {"print_last": "official"}):
        with pytest.raises(ConfigError, match="print_last"):
            Messages(max_calls=1, **options)


def test_the_official_executor_runs_neither_empty_code_nor_what_it_forbids():
    def answer(code, **options):
        completion = dataclasses.replace(said(f"<code>\n```python\n{code}\n```\n</code>"), stop_reason="</code>")
        return ReTool(max_calls=1, **options).advance(completion)

    assert answer("x = input()", official=True) == Reject("x = input()", "not_executed", "RuntimeError")
    assert answer("", official=True) == Reject("", "not_executed", "None")
    assert answer("print(1)", official=True) == Call("print(1)")
    assert answer("x = input()") == Call("x = input()")


@pytest.mark.parametrize(
    ("response", "label", "official", "reward"),
    [
        (r"\boxed{042}", "42", None, 1.0),
        (r"\boxed{042}", "42", True, -1.0),
        (r"\boxed{042}", "42", "recipe", -1.0),
        ("Answer: 42", "42", None, -1.0),
        ("Answer: 42", "42", "answer_line", 1.0),
        (r"\boxed{042", "42", "evaluation", 1.0),
        ("42", "42", "evaluation", 1.0),
    ],
)
def test_retools_reward_takes_the_rule_that_it_is_told(response, label, official, reward):
    options = {} if official is None else {"official": official}
    assert reward_of("retool", says(response), task(label), in_run(name="retool", options=options)).reward == reward


def test_a_rule_that_is_none_of_retools_is_refused():
    with pytest.raises(ConfigError, match="official"):
        reward_of("retool", says(""), task("1"), in_run(name="retool", options={"official": "paper"}))


def test_verls_port_of_exact_match_pays_a_quarter_among_many_answers():
    eleven = "<answer> Oslo </answer>" * 11
    assert verl_score("<answer> Oslo </answer>", "oslo") == 1.0
    assert verl_score(eleven, "oslo") == 0.25 and verl_score("", "oslo") == 0.0
    scored = load("searchr1")(says(eleven), task("oslo"), in_run(name="searchr1", options={"verl": True}))
    assert scored.reward == 0.25 and scored.correct


def test_zerotirs_official_rules_read_an_open_box_and_demand_a_stop_string():
    config = in_run(name="zerotir", format="think_answer", options={"official": True})
    good = r"t </think> <answer> \boxed{42} </answer>"
    assert (
        reward_of("zerotir", dataclasses.replace(says(good), stop_reason="</answer>"), task("42"), config).reward == 1.0
    )
    assert reward_of("zerotir", says(good), task("42"), config).reward == 0.0, "no stop string ended it"
    assert official_verdict("42", "42") == 1.0 == official_verdict("x=42", ["41", "42"])

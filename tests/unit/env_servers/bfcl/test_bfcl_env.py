"""BFCL's multi-turn environment on a stand-in of its package: turns, verdicts, mistakes of the model."""

from __future__ import annotations

import json
import re

import pytest

from env_servers.actions import STEP_CHARS
from env_servers.adapters.bfcl.env import MAX_STEPS, NOW_OFFERED, BfclEnv
from env_servers.adapters.bfcl.task import Call, parse_call
from openrlhf_tir.rewards.workers import CpuSpent

from .stand_in import FUNCTIONS, HereAndNow, install


@pytest.fixture(autouse=True)
def _package(monkeypatch):
    install(monkeypatch)


def says(text):
    return [{"role": "user", "content": text}]


TASK = {
    "id": "multi_turn_base_0",
    "functions_told": True,
    "involved_classes": ["GorillaFileSystem", "MathAPI"],
    "initial_config": {"GorillaFileSystem": {"files": {"a": "one"}}},
    "turns": [says("Now read a.")],
    "label": [["touch(file_name='b')", "write('b', text='two')"], ["cat(file_name='a')"]],
}
TOUCH, WRITE = ("touch", {"file_name": "b"}), ("write", {"file_name": "b", "text": "two"})
CAT = ("cat", {"file_name": "a"})
DONE = json.dumps({"message": "Done."})


def calls(*made):
    return json.dumps([{"name": n, "arguments": a} for n, a in made])


async def opened(**changes):
    env = BfclEnv(HereAndNow(), FUNCTIONS)
    return env, await env.reset(TASK | changes, 0)


async def play(*actions, **changes):
    env, _ = await opened(**changes)
    return [await env.step(action, 5.0) for action in actions]


def numbers(step):
    return [step.signals[k] for k in ("state_match", "state_total", "functions_matched", "functions_total")]


async def test_the_true_calls_pass_and_the_users_messages_come_between_the_turns():
    first, then, last, end = await play(calls(TOUCH, WRITE), DONE, calls(CAT), DONE)
    assert (
        first.observation == "None\ntwo"
        and then.observation == "Now read a."
        and last.observation == '{"content": "one"}'
    )
    assert [numbers(s) for s in (first, last)] == [[2, 2, 2, 3], [2, 2, 3, 3]]
    assert (end.reward, end.done, end.signals["turns_passed"], end.signals["failed"]) == (1.0, True, 2, None)
    assert first.reward is None and not then.done


@pytest.mark.parametrize(
    ("actions", "failed"),
    [
        ([calls(TOUCH), DONE, calls(CAT), DONE], "instance_state_mismatch"),
        # the state is right, and touch was never called
        ([calls(WRITE), DONE, calls(CAT), DONE], "execution_response_mismatch"),
        ([calls(TOUCH, WRITE), DONE, DONE], "empty_turn_model_response"),
        ([calls(TOUCH, WRITE, CAT), DONE, DONE], "empty_turn_model_response"),
        # a result of an earlier turn counts
        ([calls(TOUCH, WRITE, CAT), DONE, calls(("add", {"a": 1, "b": 2})), DONE], None),
        ([calls(TOUCH, WRITE), DONE, calls(CAT, ("touch", {"file_name": "c"})), DONE], "instance_state_mismatch"),
    ],
)
async def test_a_turn_passes_by_the_packages_rule(actions, failed):
    end = (await play(*actions))[-1]
    assert (end.reward, end.done, end.signals["failed"]) == (float(failed is None), True, failed)


@pytest.mark.parametrize(
    ("action", "shown", "kind"),
    [
        ("no JSON", r".*Expecting value: line 1 column 1 ", "bad_call"),
        (json.dumps([{"name": "cat", "arguments": [1]}]), r"cat: .*\blist\b", "bad_call"),
        (calls(("fly", {})), "Error during execution: name 'fly' is not defined", "unknown_function"),
        (
            calls(("_load_scenario", {"scenario": {}})),
            "Error during execution: name '_load_scenario' is not defined",
            "unknown_function",
        ),
        (calls(("run", {})), "Error during execution: Function call run is not allowed.", "unknown_function"),
        (
            calls(("cat", {"name": "a"})),
            r"Error during execution: GorillaFileSystem\.cat\(\) got an unexpected keyword argument 'name'",
            "bad_call",
        ),
        (calls(("cat", {"file_name": "z"})), "Error during execution: 'z'", "bad_call"),
        (calls(("touch", {"file_name": "a"})), r'\{"error": "touch: a: File exists"\}', "refused"),
        (calls(("hang", {})), "Error during execution: the call takes more than 5 s of CPU", "cpu"),
    ],
)
async def test_a_wrong_call_is_answered_with_the_error_and_the_turn_continues(action, shown, kind):
    wrong, *_, end = await play(action, calls(TOUCH, WRITE), DONE, calls(CAT), DONE)
    assert re.match(shown, wrong.observation) and (
        wrong.outcome,
        wrong.signals["error_type"],
        wrong.signals["errors"],
    ) == ("model_error", kind, 1)
    assert (wrong.done, end.reward) == (False, 1.0)


class Spent(HereAndNow):
    async def run(self, function, *args):
        raise CpuSpent("used up")


async def test_a_turn_that_uses_up_its_cpu_fails_and_is_not_a_fault():
    env, _ = await opened()
    await env.step(calls(TOUCH, WRITE), 5.0)
    env._workers = Spent()
    end = await env.step(DONE, 5.0)
    assert (end.reward, end.done, end.outcome, end.signals["failed"]) == (0.0, True, "model_error", "cpu")


async def test_a_world_that_contains_itself_is_a_wrong_state_and_not_a_fault():
    step, *_, end = await play(calls(("loop", {})), DONE, calls(CAT), DONE)
    assert "loop" in step.observation and end.signals["failed"] == "instance_state_mismatch"


async def test_a_result_is_cut_to_the_size_of_a_reply_and_graded_whole():
    text = "x" * (STEP_CHARS + 7)
    step, *_, end = await play(
        calls(("write", {"file_name": "a", "text": text})),
        DONE,
        label=[[f"write(file_name='a', text={text!r})"]],
        turns=[],
    )
    assert step.observation == "x" * STEP_CHARS + "... [7 characters left out]" and end.reward == 1.0


async def test_more_steps_than_the_package_allows_end_the_episode():
    steps = await play(*[calls(CAT)] * (MAX_STEPS + 1), DONE)
    assert [s.done for s in steps[: MAX_STEPS + 1]] == [False] * MAX_STEPS + [True]
    assert (steps[MAX_STEPS].reward, steps[MAX_STEPS].signals["failed"]) == (0.0, "force_terminated")
    assert (steps[-1].outcome, steps[-1].reward) == ("model_error", None)


async def test_mutable_defaults_of_the_package_start_empty_in_every_session():
    actions = [calls(("tag", {"name": "x"})), calls(("more", {"name": "x", "tag": "new"}))]
    for _ in range(2):
        first, second = await play(*actions)
        assert (first.observation, second.observation) == ('{"tags": []}', '{"tags": ["new"]}')


async def test_functions_absent_from_the_prompt_are_listed_in_the_first_observation():
    _, observation = await opened(functions_told=False, missed_function={"1": ["cat"]})
    names = [json.loads(line)["name"] for line in observation.splitlines()[1:]]
    assert observation.startswith("# Functions\n") and names == ["touch", "write", "tag", "more", "loop", "add"]


async def test_a_missing_function_is_offered_in_its_turn():
    _, then, *_ = await play(calls(TOUCH, WRITE), DONE, turns=[[]], missed_function={"1": ["cat"]})
    schema, words = then.observation.splitlines()
    assert json.loads(schema)["name"] == "cat" and words == NOW_OFFERED


async def test_a_turn_without_true_calls_passes_for_any_calls():
    *_, end = await play(calls(CAT), DONE, DONE, label=[["cat(file_name='a')"], []])
    assert end.reward == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": [["cat(file_name='a')"]]}, r" 1 .* 1 \+ 1\."),
        ({"label": [["__import__('os').remove('a')"], []]}, r"__import__.*os.*remove"),
        ({"label": [["cat(open('a'))"], []]}, r"cat\(open.*: malformed node"),
        ({"involved_classes": ["WebSearchAPI"]}, "involved_classes: WebSearchAPI: .* GorillaFileSystem"),
        (
            {"initial_config": {"GorillaFileSystem": {}}},
            "initial_config: GorillaFileSystem .*: KeyError: 'files'",
        ),
        ({"label": [["hang()"], []]}, " multi_turn_base_0 .*: used up$"),
    ],
)
async def test_a_malformed_task_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        await opened(**change)


def test_a_true_call_is_parsed_and_never_evaluated():
    assert parse_call("sort('a', reverse=True, keys=[1, (2.5, None)])") == Call(
        "sort", ("a",), {"reverse": True, "keys": [1, (2.5, None)]}
    )
    for hostile in ("f(x=g())", "f(*[1])", "f(**{'a': 1})", "f", "f(", "f(x=9**9**9)", "a.f()", "[f()]"):
        with pytest.raises(ValueError, match=re.escape(repr(hostile))):
            parse_call(hostile)

"""The functions environment: state, calls and responses graded over the whole episode, users in turns, and no reward
that is not earned."""

from __future__ import annotations

import json
import random

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from env_servers.actions import STEP_CHARS
from env_servers.functions.domains import DOMAINS
from env_servers.functions.env import FunctionsEnv
from env_servers.functions.make_tasks import VARIANTS, make_task
from env_servers.functions.policy import SCENARIOS, policy_task
from env_servers.functions.task import FunctionTask, UserLine
from env_servers.functions.users import GO_ON, ScriptedUser, UserUnavailable, user_of

from .solver import Solver

TASK = {
    "domains": ["files"],
    "state": {"files": {"tree": {"a.txt": "x"}, "here": []}},
    "gold": [
        [
            {"name": "make_directory", "arguments": {"path": "box"}},
            {"name": "move", "arguments": {"source": "a.txt", "destination": "box"}},
        ]
    ],
}


def calls(*made):
    return json.dumps([{"name": n, "arguments": a} for n, a in made])


def message(text="Done."):
    return json.dumps({"message": text})


BOX = ("make_directory", {"path": "box"})
MOVE = ("move", {"source": "a.txt", "destination": "box"})


async def play(task, *actions):
    env = FunctionsEnv()
    await env.reset(task if isinstance(task, dict) else task.model_dump(exclude_defaults=True), 0)
    return [await env.step(action, 5.0) for action in actions]


def numbers(step):
    return [step.signals[k] for k in ("state_match", "state_total", "functions_matched", "functions_total")]


async def test_the_whole_episode_is_graded_and_not_only_its_last_call():
    first, second, end = await play(TASK, calls(BOX), calls(MOVE), message())
    assert numbers(first) == [1, 2, 1, 2] and numbers(second) == [2, 2, 2, 2]
    assert first.observation == '{"result": null}' and first.reward is None
    assert (end.done, end.reward) == (True, 1.0)


async def test_calls_that_do_more_than_the_gold_leave_another_state():
    *_, end = await play(TASK, calls(BOX, MOVE, ("create_file", {"path": "extra"})), message())
    assert numbers(end) == [1, 2, 2, 2] and end.reward == 0.0


async def test_a_call_made_twice_counts_once():
    step, _ = await play(TASK, calls(("current_directory", {}), BOX, BOX), message())
    assert numbers(step)[2:] == [1, 2] and step.outcome == "model_error"


@pytest.mark.parametrize(
    ("action", "kind", "says"),
    [
        ("hello", "bad_call", "Expecting value: line 1 column 1 "),
        ("[]", "bad_call", " 64 "),
        ('[{"arguments": {}}]', "bad_call", " 64 "),
        ("[" * 50_000, "bad_call", "recursion"),
        ('[{"name": "make_directory", "arguments": {"path": "\\ud83d"}}]', "bad_call", "surrogate"),
        ('[{"name": "make_directory", "arguments": {"path": 1e999}}]', "bad_call", " inf"),
        ('[{"name": "make_directory", "arguments": {"path": NaN}}]', "bad_call", " nan"),
        (calls(("fly", {})), "unknown_function", "'fly'"),
        (calls(("move", {"source": 1, "destination": "b"})), "refused", "valid string"),
    ],
)
async def test_a_wrong_action_is_an_observation(action, kind, says):
    (step,) = await play(TASK, action)
    assert (step.outcome, step.signals["error_type"], step.done) == (
        "model_error",
        kind,
        False,
    ) and says in step.observation


@pytest.mark.parametrize(
    "malformed",
    [
        {"domains": ["none"]},
        {"gold": []},
        {"gold": [[{"name": "fly"}]]},
        {"gold": [[{"name": "remove", "arguments": {"path": "none"}}]]},
        {"check": "end", "gold": [[], []]},
        {"hidden": ["fly"]},
        {"gold": [[], []]},
        {"gold": [[], [], []], "user": [{"text": "Go on."}]},
    ],
)
async def test_a_malformed_task_is_the_callers_mistake(malformed):
    with pytest.raises((ValueError, ValidationError)):
        await FunctionsEnv().reset({**TASK, **malformed}, 0)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"files": {"zz": 1}}, r"state\.files .* zz; .* files .* tree, here\."),
        ({"files": {"here": []}}, r"state\.files \w+ here; .* files .* tree, here\."),
        (
            {"files": {"tree": {}, "here": [], "zz": 1}},
            r"state\.files .* tree, here, zz; .* files .* tree, here\.",
        ),
        ({"files": {"tree": [], "here": []}}, r"state\.files\.tree .*\blist; .* object "),
        ({"files": TASK["state"]["files"], "travel": {}}, r": travel: .* files\."),
        ({"moon": {}}, r": moon: .* files\."),
    ],
)
async def test_a_state_of_another_domain_is_refused_before_the_first_step(state, message):
    with pytest.raises(ValueError, match=message):
        await FunctionsEnv().reset({**TASK, "state": state}, 0)


def test_a_user_script_that_is_too_short_is_refused_with_the_number_of_missing_lines():
    """Its last turn would never begin: every episode would have 0, whatever the model does."""
    task = FunctionTask.model_validate(
        {**TASK, "gold": [[], [], []], "user": [{"text": "Go on."}], "instruction": "Go."}
    )
    with pytest.raises(ValueError, match=r"\b3 .* 1 .* 1 "):
        user_of(task, None, "", 1.0)
    assert user_of(task, "http://127.0.0.1:9/v1", "m", 1.0), "a model says as much as it is asked"


async def test_results_larger_than_a_reply_are_cut_and_graded_whole():
    calls_of_turn = [{"name": "read_file", "arguments": {"path": "a.txt"}}] * 64
    task = {**TASK, "state": {"files": {"tree": {"a.txt": "x" * 20_000}, "here": []}}, "gold": [calls_of_turn]}
    read, end = await play(task, calls(*[("read_file", {"path": "a.txt"})] * 64), message())
    assert len(read.observation) < STEP_CHARS + 100 and "characters left out]" in read.observation
    assert (read.outcome, end.reward) == ("ok", 1.0)


async def test_a_variable_that_starts_as_none_may_be_set():
    state = DOMAINS["travel"].initial(random.Random(0))
    await FunctionsEnv().reset(
        {"domains": ["travel"], "state": {"travel": {**state, "budget": 900.5}}, "gold": [[]]}, 0
    )


async def test_a_hidden_function_is_offered_when_the_user_announces_it():
    task = {
        **TASK,
        "hidden": ["move"],
        "gold": [[TASK["gold"][0][0]], [TASK["gold"][0][1]]],
        "user": [{"text": "Now:", "reveal": ["move"]}],
    }
    _, early, announced, after, end = await play(
        task, calls(BOX), calls(MOVE), message("I cannot move."), calls(MOVE), message()
    )
    assert early.signals["error_type"] == "unknown_function"
    assert announced.observation.startswith("Now:\n") and '"name": "move"' in announced.observation
    assert not announced.done
    assert after.outcome == "ok" and end.reward == 1.0 and end.signals["turns_passed"] == 2


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(10))
async def test_a_generated_task_is_solved_by_all_of_its_gold_calls_only(variant, seed):
    _, task = make_task(seed, domains=1 + seed % 3, calls=(1, 3), distractors=3, variant=variant)
    solution = [action for turn in task.gold for action in (*(json.dumps([c.model_dump()]) for c in turn), message())]
    assert (await play(task, *solution))[-1].reward == 1.0
    assert (await play(task, *[message("No.")] * len(task.gold)))[-1].reward == 0.0
    assert make_task(seed, domains=1 + seed % 3, calls=(1, 3), distractors=3, variant=variant)[1] == task


@pytest.mark.parametrize("index", range(48))
async def test_every_help_desk_task_is_solvable_and_not_without_calls(index):
    _, task = policy_task(index)
    steps = await play(task, *Solver(task).actions)
    assert (steps[-1].done, steps[-1].reward) == (True, 1.0)
    lazy = await play(task, *[message("What is your name?"), message("No."), message("No.")])
    assert (lazy[-1].done, lazy[-1].reward) == (True, 0.0)


async def test_a_required_amount_must_be_in_a_message():
    _, task = policy_task(SCENARIOS.index(next(s for s in SCENARIOS if s.__name__ == "cancel_pending")))
    silent = [a for a in Solver(task).actions if "EUR" not in a]
    assert (await play(task, *silent, message("Bye.")))[-1].reward == 0.0


async def test_a_scripted_user_answers_questions_and_ends_the_dialogue_if_no_answer_fits():
    user = ScriptedUser([UserLine(text="Ada.", when=["name"]), UserLine(text="Bye.")])
    assert (await user.answer("Hello?")).text == "Bye."
    assert [(await user.answer("Hm?")).text for _ in range(3)] == [GO_ON] * 3
    assert (await user.answer("Your NAME?")).text == "Ada." and await user.answer("?") is None


async def test_a_user_model_that_does_not_answer_is_a_fault_and_not_a_score():
    task = FunctionTask.model_validate({**TASK, "instruction": "You want a box."})
    with pytest.raises(UserUnavailable, match="--user-url"):
        await user_of(task, "http://127.0.0.1:9/v1", "m", 2.0).answer("Hello")


async def test_an_answer_of_the_user_model_that_no_parser_follows_is_a_fault():
    async def completions(request):
        return web.Response(text="[" * 30000, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", completions)
    task = FunctionTask.model_validate({**TASK, "instruction": "You want a box."})
    async with TestServer(app) as server:
        with pytest.raises(UserUnavailable):
            await user_of(task, str(server.make_url("/v1")), "m", 30.0).answer("Hello")


async def test_an_empty_reply_of_the_user_model_is_a_fault_and_its_question_is_not_recorded():
    task, heard = FunctionTask.model_validate({**TASK, "instruction": "You want a box."}), []
    contents = [None, " \n", "A box.", "Thanks."]

    async def completions(request):
        heard.append([m["content"] for m in (await request.json())["messages"][1:]])
        return web.json_response({"choices": [{"message": {"content": contents.pop(0)}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", completions)
    async with TestServer(app) as server:
        env = FunctionsEnv(lambda task: user_of(task, str(server.make_url("/v1")), "m", 30.0))
        await env.reset(task.model_dump(exclude_defaults=True), 0)
        for _ in range(2):
            with pytest.raises(UserUnavailable, match=r"\(\w+ '( \\n)?'\)\. .*--user-model"):
                await env.step(message("Hello"), 5.0)
        user = user_of(task, str(server.make_url("/v1")), "m", 30.0)
        contents[:0] = [None]
        with pytest.raises(UserUnavailable):
            await user.answer("Hello")
        assert (await user.answer("Hello?")).text == "A box."
        assert (await user.answer("Done.")).text == "Thanks."
    assert heard[-1] == ["Hello?", "A box.", "Done."]

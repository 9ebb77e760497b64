"""The lesson `mending`: every example is an episode of SkyRL's turns, worth what the environment's verdict says, and a
row is a repository that is broken."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from env_servers.swe.task import SweTask
from miniatures.toy.lessons import mending
from miniatures.toy.task import write_splits
from openrlhf_tir.config import Data
from openrlhf_tir.data.prompts import problems
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.environment import environment
from openrlhf_tir.types import Task
from tests.unit.rewards.reward_fakes import in_run

from .mending_episode import played
from .test_toy_lessons import text_of

RIGHT, WRONG = mending.Formula("*", 372), mending.Formula("*", 519)
READ = ("execute_bash", {"command": "cat f.py"})
FINISH = ("finish", {})


class Judges:
    """The environment of an episode: its last reply is the verdict."""

    def __init__(self, *observations: str, reward: float, viewed_first: bool) -> None:
        self.left = [*observations]
        self.last = {"reward": reward, "done": True, "signals": {"viewed_first": viewed_first}}
        self.actions: list[tuple[str, dict]] = []

    async def reset(self):
        return ""

    async def step(self, action, *, step_id):
        ((call),) = json.loads(action)
        self.actions.append((call["name"], call["arguments"]))
        said = {"observation": self.left.pop(0)} if self.left else {"observation": "The task is finished.", **self.last}
        return StepReply(session_id="s", step_id=step_id, **said)


def edit(old: str) -> tuple[str, dict]:
    return "str_replace_editor", {"command": "str_replace", "path": "/tmp/f/f.py", "old_str": old, "new_str": "x*372"}


@pytest.fixture
def context() -> RewardContext:
    return in_run(name="env", options={"signals": "viewed_first"})


async def test_a_file_that_is_read_and_mended_is_an_episode_of_three_tools(context):
    env = Judges(mending.seen(WRONG.file), mending.EDITED, reward=1.0, viewed_first=True)
    episode = await played(mending.mending(WRONG, RIGHT), RIGHT.question, env)
    assert env.actions == [READ, edit("x*519"), FINISH]
    scored = environment(episode, Task("p", "-", "swe"), context)
    assert scored.reward == 1.0 and scored.correct and scored.parts["viewed_first"] == 1.0


async def test_a_guess_is_an_episode_as_well_and_worth_nothing(context):
    env = Judges(mending.refused(WRONG.text), reward=0.0, viewed_first=False)
    trace = mending.guessing(WRONG, RIGHT)
    episode = await played(trace, RIGHT.question, env)
    assert env.actions == [edit("x*519"), FINISH]
    scored = environment(episode, Task("p", "-", "swe"), context)
    assert scored.reward == 0.0 and scored.parts["viewed_first"] == 0.0
    assert text_of(trace.token_ids[np.isclose(trace.weights, 0.2)]) == "x*519", "what cannot be known weighs little"


def test_one_token_is_wrong_and_the_hidden_tests_see_every_such_bug():
    rng = Random(0)
    for _ in range(300):
        right = mending.draw_formula(rng, "train")
        wrong = mending.broken(right, rng)
        assert (wrong.sign == right.sign) != (wrong.number == right.number)
        assert _holds(right.tests, right.file) and not _holds(right.tests, wrong.file)


def _holds(tests: str, file: str) -> bool:
    names: dict = {}
    exec(file, names)
    exec(tests.replace("from f import f", ""), names)
    try:
        names["test_f"]()
    except AssertionError:
        return False
    return True


def test_the_share_of_examples_that_read_first_is_the_tool_ratio():
    rng = Random(0)
    read = ["cat f.py" in text_of(mending.draw_trace(rng, 0.3).token_ids) for _ in range(400)]
    assert np.mean(read) == pytest.approx(0.3, abs=0.06)


def test_rows_are_whole_repositories_and_no_formula_is_in_both_splits(tmp_path):
    write_splits(tmp_path, 42, mending.rows, n_train=300, n_test=60)
    train, test = (
        list(problems(Data(prompt_dataset=str(tmp_path / f"{split}.jsonl"), apply_chat_template=True)))
        for split in ("train", "test")
    )
    assert not {p.input for p in train} & {p.input for p in test} and {p.env for p in train} == {"swe"}
    for p in [*train, *test]:
        task = SweTask.model_validate(p.meta)
        assert (
            task.tests
            and task.repo == "f"
            and p.input.endswith(f"should be {_formula(p.label, '+')}.")
            and _formula(p.label, "-") in task.files["f.py"]
        )


def _formula(patch: str, sign: str) -> str:
    (line,) = [line for line in patch.splitlines() if line.startswith(f"{sign}  ")]
    return line.split()[-1]

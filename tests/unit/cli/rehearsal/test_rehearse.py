"""A rehearsal plays whole episodes through a server of the user's class, rewards and filters, and finds its bugs."""

from __future__ import annotations

import json
import re

import pytest

from miniatures.toy.tokenizer import save_tokenizer
from openrlhf_tir.cli.rehearsal import rehearse
from openrlhf_tir.cli.rehearsal.play import MORE_ROWS, MORE_SHAPES, WRONG_IS_CORRECT, various
from openrlhf_tir.cli.rehearsal.show import fault_lines, lines_of
from openrlhf_tir.config.settings import load
from openrlhf_tir.types import Task

ENVIRONMENT = """
from env_servers.env import Env, Step

class Guess(Env):
    async def reset(self, task, seed):
        self.tries = 0
        return "Guess."

    async def step(self, action, deadline_s):
        self.tries += 1
        {second}
        return Step("yes" if action == "7" else "no", reward=float(action == "7"), done=action == "7")
"""
CODE = """
import numpy as np
from openrlhf_tir.rollout.protocols import Call, End

class Digits:
    def __init__(self, *, max_calls, budget_message=False):
        self.left = max_calls

    @property
    def stops(self):
        return tuple("0123456789") if self.left else ()

    def advance(self, completion):
        if completion.stop_reason not in self.stops:
            return End()
        self.left -= 1
        return Call(completion.stop_reason)

    def insertion(self, observation):
        return " " + observation + "\\n"

    def too_long(self):
        return None

    def after_insertion(self):
        return ""

def score(trajectory, task, context):
    {reward}
    return float(sum(call.reward for call in trajectory.calls))

def keep(group, options):
    {filter}
    return (True, "")

def estimate(inputs):
    {estimator}
    return [np.where(mask, reward, 0.0) for reward, mask in zip(inputs.rewards_G, inputs.trained_G)]
"""


@pytest.fixture
def played(tmp_path):
    """A function that rehearses a run with these lines in the user's code."""
    model = tmp_path / "model"
    model.mkdir()
    save_tokenizer(model)
    rows = [{"prompt": f"Guess {i}.\n", "label": "7", "env": "guess"} for i in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def rehearsed(*, second="", reward="", filter="", estimator="", **changes):
        (tmp_path / "guess.py").write_text(ENVIRONMENT.format(second=second))
        (tmp_path / "mine.py").write_text(CODE.format(reward=reward, filter=filter, estimator=estimator))
        settings = {
            "run_dir": str(tmp_path / "run"),
            "actor.model_name_or_path": str(model),
            "actor.num_gpus_per_node": 1,
            "rollout.engine": "torch",
            "rollout.batch_size": 2,
            "rollout.n_samples_per_prompt": 2,
            "rollout.max_new_tokens": 48,
            "env.name": "guess",
            "env.file": f"{tmp_path}/guess.py:Guess",
            "env.protocol": f"{tmp_path}/mine.py:Digits",
            "env.max_calls": 3,
            "reward.name": f"{tmp_path}/mine.py:score",
            "reward.verify_timeout_s": 2.0,  # of CPU, which an endless one uses up on every worker
            "filter.names": [f"{tmp_path}/mine.py:keep"],
            "algo.advantage.estimator": f"{tmp_path}/mine.py:estimate",
            "data.prompt_dataset": str(tmp_path / "rows.jsonl"),
            "data.max_len": 128,
        }
        settings |= changes
        return rehearse(load(None, {name: value for name, value in settings.items() if value is not None}))

    rehearsed.directory = tmp_path
    return rehearsed


@pytest.mark.slow
def test_right_and_wrong_answers_calls_and_cut_responses_are_played_and_the_mask_is_shown(played):
    found = played()
    assert not found.faults and not found.notes
    group = found.groups["guess"]
    by_title = dict(zip(found.scripts["guess"], group.trajectories, strict=True))
    right = next(t for t in group.trajectories if t.calls and t.calls[-1].done)
    assert right.reward == 1.0 and {s.source for s in right.segments} == {"model", "env"}
    assert by_title["a response that is cut"].finish_reason == "length"
    assert len(by_title["calls until they are used up, then a wrong answer"].calls) >= 2
    text = "\n".join(lines_of(found))
    assert "Guess 0." in text and "masked" in text and "trained" in text
    assert not (played.directory / "run").exists(), "nothing is left on disk"


@pytest.mark.slow
@pytest.mark.extended
def test_an_environment_that_no_episode_called_is_named(played):
    found = played(**{"env.protocol": "zerotir", "rollout.max_new_tokens": 4})
    (note,) = found.notes
    assert found.untried and "guess" in note and "env.protocol" in note and "rollout.max_new_tokens = 4" in note


@pytest.mark.slow
@pytest.mark.extended
def test_an_environment_without_rows_is_named_and_was_not_tried(played):
    env = {
        "file": f"{played.directory}/guess.py:Guess",
        "protocol": f"{played.directory}/mine.py:Digits",
        "max_calls": 3,
    }
    unset = {f"env.{name}": None for name in ("name", "file", "protocol", "max_calls")}
    environments = {f"envs.{name}.{key}": value for name in ("guess", "idle") for key, value in env.items()}
    found = played(**unset, **environments)
    (note,) = found.notes
    assert found.untried and "idle" in note and "guess" not in note
    assert list(found.groups) == ["guess"]


@pytest.mark.slow
def test_a_reward_by_which_wrong_answers_are_correct_is_named_and_is_no_fault(played):
    bonus = "return 0.1 + (task.label in trajectory.text)"
    names = {"filter.names": None}
    found = played(reward=bonus, **names)
    (note,) = found.notes
    assert note.startswith(f"{WRONG_IS_CORRECT}: ") and "0.1" in note and "filter.names" in note
    assert not found.faults and not found.untried
    told = "from openrlhf_tir.types import RewardParts; right = task.label in trajectory.text"
    assert not played(reward=f"{told}; return RewardParts(0.1 + right, correct=right)", **names).notes


LONG = pytest.mark.long
"""Marks bugs that the same code finds as one that always runs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "bug"),
    [
        pytest.param("guess.py", {"second": "if self.tries == 2: self.nothing()"}, marks=pytest.mark.extended),
        # A hang that costs no CPU.
        pytest.param("guess.py", {"second": 'while self.tries == 2: __import__("time").sleep(1)'}, marks=LONG),
        pytest.param("guess.py", {"second": "if self.tries == 2: raise KeyboardInterrupt"}, marks=LONG),
        ("mine.py", {"reward": "trajectory.calls[0]"}),
        pytest.param("mine.py", {"reward": "raise KeyboardInterrupt"}, marks=LONG),
        pytest.param("mine.py", {"reward": "while True: pass"}, marks=LONG),
        ("mine.py", {"filter": "max(t.reward for t in group.valid if t.parts['correct'] > 2)"}),
        pytest.param("mine.py", {"estimator": "inputs.rewards"}, marks=pytest.mark.extended),
    ],
    ids=[
        "environment, second turn",
        "environment, endless",
        "environment, an interrupt",
        "reward, without a call",
        "reward, an interrupt",
        "reward, endless",
        "filter",
        "estimator",
    ],
)
def test_a_bug_in_user_code_is_told_with_file_line_and_traceback(played, file, bug):
    found = played(**bug)
    (line,) = bug.values()
    path = played.directory / file
    number = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if line in text)
    first = found.faults[0]
    assert first.in_user_code and f"{path}:{number}:" in first.words
    frames = re.findall(r'File "(.+?)", line (\d+)', first.traceback)
    assert frames[0][0] == str(path) and (str(path), str(number)) in frames, "it begins in the user's file"
    assert first.during and f"{path}:{number}" in "\n".join(fault_lines(found.faults))


def _row(number, label="7", **extra):
    return Task(f"Guess {number}.", label, row=f"row {number}", extra=extra)


@pytest.mark.parametrize(
    "odd",
    [_row(99), _row(99, hint=None), _row(99, hint=""), _row(99, hint=["a"]), _row(99, label="7 apples", hint="a")],
    ids=["column missing", "null", "empty", "another type", "a label that is no number"],
)
def test_a_row_of_another_shape_is_played_wherever_it_stands(odd):
    rows = [*(_row(i, hint="a") for i in range(40)), odd, *(_row(i, hint="b") for i in range(41, 60))]
    chosen = various(rows)
    assert chosen[0] is rows[0] and odd in chosen
    assert len(chosen) == 1 + MORE_ROWS and len({id(row) for row in chosen}) == len(chosen)


def test_rows_of_many_shapes_are_not_all_played():
    rows = [_row(i, **{f"column_{i}": 1}) for i in range(40)]
    assert various(rows) == rows[: 1 + MORE_SHAPES]
    assert various(rows[:2]) == rows[:2]

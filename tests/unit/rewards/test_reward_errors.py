"""A reward that is wrong: its samples fail with file and line, and never get a reward."""

from __future__ import annotations

import io
import re
import signal
from pathlib import Path

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.errors import ConfigError, RewardError, VerifierError
from openrlhf_tir.rewards import call, load
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.otc import otc_group
from openrlhf_tir.rewards.own import GroupReward, OwnReward
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.rewards.workers import PRINTED, BoundedOutput, _interrupts
from openrlhf_tir.types import Task
from openrlhf_tir.user_code.failures import Overrun, Starved
from tests.unit.rewards.reward_fakes import group, in_run, says, scored, task

WRONG = {
    "None": r" None \(NoneType\)",
    "'1.0'": r" '1\.0' \(str\)",
    "{'reward': 1.0}": r" {'reward': 1\.0} \(dict\)",
    "np.ones(2)": r" array\(\[1\., 1\.\]\) \(ndarray\)",
    "10**400": r" 1000+\.\.\. \(int\)",
    "10**5000": r" \(int\), not finite",
    "(1.0, True, {'a': __import__('fractions').Fraction(10**400)})": r" parts\['a'\] .*\(Fraction\)",
    "np.array(1.0)": r" array\(1\.\) \(ndarray\)",
    "float('nan')": r" nan \(float\)",
    "float('inf')": r" inf \(float\)",
    "(float('nan'), True, {})": r" nan \(float\)",
    "(1.0, 'yes', {})": r" `correct` .*'yes' \(str\)",
    "(1.0, True, None)": r" `parts` .*None \(NoneType\)",
    "(1.0, True, {'a': {'b': 1.0}})": r" parts\['a'\] .*{'b': 1\.0} \(dict\)",
    "(1.0, True, {'a': float('inf')})": r" parts\['a'\] .*inf \(float\)",
    "(1.0, True, {'a': np.ones(1)})": r" parts\['a'\] .*array\(\[1\.\]\) \(ndarray\)",
    "(1.0, True)": r" \(1\.0, True\) \(tuple\)",
}


def own(directory: Path, body: str, shape: str = "trajectory, task, context", name: str = "score") -> str:
    path = directory / "mine.py"
    path.write_text(f"import numpy as np\n\ndef {name}({shape}):\n    {body}\n")
    return f"{path}:{name}"


@pytest.mark.parametrize("value", WRONG)
def test_what_is_no_finite_number_is_an_error_with_file_and_line(tmp_path, value):
    with pytest.raises(RewardError) as e:
        OwnReward(own(tmp_path, f"return {value}"))(says("x"), task("1"), in_run())
    assert re.search(rf"{tmp_path}/mine\.py:3:.*{WRONG[value]}", str(e.value))


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("2", (2.0, True, {})),
        ("np.float32(-0.5)", (-0.5, False, {})),
        ("True", (1.0, True, {})),
        ("(0.5, False, {'a': np.int64(3)})", (0.5, False, {"a": 3.0})),
    ],
)
def test_a_number_alone_is_a_reward_and_correct_above_zero(tmp_path, value, want):
    assert OwnReward(own(tmp_path, f"return {value}"))(says("x"), task("1"), in_run())[0] == want


@pytest.mark.parametrize(
    "bug",
    [
        "return trajectory.txt",
        "return task.meta['difficulty']",
        "return 1 / task.meta['zero']",
        "return float(open('answers.json').read())",
        "return score(trajectory, task, context)",
        "return float(len([0] * 10**13))",
        "import sys; sys.exit(1)",
        "raise type('Panic', (BaseException,), {})",
        "import asyncio; raise asyncio.CancelledError",
        "import not_a_module",
        "return trajectory.text + 1",
        "raise type('Silent', (Exception,), {'__str__': lambda self: 1 / 0})",
        "raise type('Silent', (Exception,), {'__str__': lambda self: None})",
    ],
)
def test_bugs_that_people_write_are_told_with_file_and_line(tmp_path, bug):
    with pytest.raises(RewardError, match=re.escape(f"{tmp_path / 'mine.py'}:4")):
        OwnReward(own(tmp_path, bug))(says("x"), Task("", "1", meta={"zero": 0}), in_run())


def test_a_reward_that_changes_its_input_is_told_at_the_call_that_misses_it(tmp_path):
    reward = OwnReward(own(tmp_path, "return task.meta.pop('level')"))
    row = Task("", "1", meta={"level": 2})
    assert reward(says("x"), row, in_run())[0].reward == 2.0
    with pytest.raises(RewardError, match=re.escape(f"{tmp_path / 'mine.py'}:4: KeyError")):
        reward(says("x"), row, in_run())


def test_an_exception_names_the_line_that_raised_it(tmp_path):
    with pytest.raises(RewardError, match=rf"{tmp_path}/mine.py:4: ZeroDivisionError"):
        OwnReward(own(tmp_path, "return 1 / 0"))(says("x"), task("1"), in_run())


async def test_a_registered_reward_that_raises_fails_its_sample(monkeypatch):
    """ToolRL's label is JSON: a row without it is the data's fault, and neither the run's end nor a reward of 0."""
    pool = RewardPool(Reward(name="toolrl"))
    with pytest.raises(RewardError, match=r"reward\.name = 'toolrl': .*toolrl\.py:\d+"):
        await pool.score(says("<tool_call>\n{}\n</tool_call>"), task("<tool_call>\nno json\n</tool_call>"))


@pytest.mark.slow
async def test_the_error_of_a_worker_process_arrives_with_its_line(tmp_path):
    pool = RewardPool(Reward(name=own(tmp_path, "return {}[task.label]")))
    try:
        with pytest.raises(RewardError, match=r"mine\.py:4: KeyError: 'x'"):
            await pool.score(says("a"), task("x"))
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [1.0]", r"mine\.py:3: .* 1 .* 2 "),
        ("return [1.0, float('nan')]", r"mine\.py:3: .* 1 .*nan"),
        ("return 'ab'", r"mine\.py:3: .*'ab' \(str\)"),
        ("return [1.0, None]", r"mine\.py:3: .* 1 .*None"),
        ("return [1.0, 10**400]", r"mine\.py:3: .* 1 .*\(int\)"),
        ("return None", r"mine\.py:3: .*None \(NoneType\)"),
        ("raise ValueError('odd')", r"mine\.py:4: ValueError: odd"),
    ],
)
def test_a_group_reward_gives_one_number_per_valid_trajectory(tmp_path, body, said):
    members = group(scored(1.0), scored(0.0, failed="timeout"), scored(0.0))
    with pytest.raises(RewardError, match=said):
        GroupReward(own(tmp_path, body, "group, context"))(members, in_run())


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (
            "def score(trajectory, task):\n    return 1.0\n",
            "score",
            r"mine\.py:1: score\(trajectory, task\) .*too many positional",
        ),
        ("import nothing_like_it\n", "score", r"mine\.py:1: ModuleNotFoundError: .*nothing_like_it"),
        ("def other(a):\n    pass\n", "score", r"mine\.py .*'score'.*: other\b"),
        ("x = (\n", "score", r"mine\.py:1: SyntaxError"),
        ("score = 3\n", "score", r"mine\.py: score .*\bint\b"),
    ],
)
def test_a_mistake_in_the_file_is_told_before_anything_is_loaded(tmp_path, text, name, said):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(f"{tmp_path / 'mine.py'}:{name}")


@pytest.mark.parametrize(
    "name",
    [
        "a" * 300 + ":b", "x/" * 3000 + "y.py:f", "~nouser/x.py:f", "a\nb.py:f", ".py:f", ":f", "a:", "..:f", "a..b:f",
        "/tmp:f", "a:b:c.py:f",
    ],
)  # fmt: skip
def test_whatever_a_name_is_it_is_refused_in_one_error(name):
    from openrlhf_tir.config.settings import load as load_config

    with pytest.raises(ConfigError):
        load(load_config(None, {"reward.name": name}).reward.name)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"reward\.name = .* /nowhere/mine\.py\b"):
        load("/nowhere/mine.py:score")


def test_numpy_scalars_of_a_group_reward_are_numbers(tmp_path):
    name = own(tmp_path, "return np.arange(2)", "group, context")
    assert GroupReward(name)(group(scored(1.0), scored(0.0)), in_run())[0] == [0.0, 1.0]


@pytest.mark.parametrize(("starved", "error"), [(True, VerifierError), (False, RewardError)])
def test_a_late_reward_is_the_machines_doing_where_it_had_no_core_and_its_line_is_told_in_any_case(
    tmp_path, starved, error
):
    handler = _interrupts("it was late", starved=lambda: starved)
    name = own(tmp_path, "return context(0, None)")  # stands for a loop, in which the signal's handler runs
    try:
        with pytest.raises(error, match=re.escape(f"{tmp_path / 'mine.py'}:4")):
            OwnReward(name)(says("x"), task("1"), handler)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def test_the_deadline_begins_again_while_the_machine_has_no_core_so_that_a_loop_uses_up_its_cpu():
    handler = _interrupts("it was late", starved=lambda: True, extensions=2, wall_s=1000.0)
    try:
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0)
            handler(signal.SIGALRM, None)
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
        with pytest.raises(Starved):
            handler(signal.SIGALRM, None)
        spent = _interrupts("it used up its CPU", starved=lambda: False, extensions=2, wall_s=1000.0)
        with pytest.raises(Overrun) as caught:
            spent(signal.SIGPROF, None)
        assert type(caught.value) is Overrun
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def test_of_what_a_call_prints_the_beginning_gets_through():
    console = io.StringIO()
    output = BoundedOutput(console)
    for _ in range(2):
        output.begin()
        print("x" * (10 * PRINTED), "y", file=output)
        assert console.getvalue().count("x") == PRINTED and "y" not in console.getvalue().partition("... ")[0]
        console.truncate(console.seek(0))
    output.begin()
    print("short", file=output)
    assert console.getvalue() == "short\n"


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("torl", "wformat", "no"),
        ("torl", "execution_penalty", "half"),
        ("retool", "turn_bonus", "yes"),
        ("searchr1", "structure_score", True),
        ("searchr1", "final_score", 10**400),
        ("artist", "functions", 2),
        ("otc", "c", [4]),
        ("otc", "c", -1),
        ("otc", "base_options", "wformat"),
        ("toolrl", "coarse", "no"),
        ("toolrl", "updates_per_step", True),
        ("zerotir", "overlong", "no"),
        ("zerotir", "max_tokens", 8192.5),
        ("gsm8k", "flexible", "no"),
        ("env", "correct_above", "0"),
    ],
)
async def test_an_option_of_another_type_is_refused_with_its_setting(name, option, value):
    with pytest.raises(ConfigError, match=rf"^reward\.options\.{option} = "):
        await call(load(name), says("x"), task("1"), in_run(name=name, options={option: value}))


async def test_zero_and_one_are_truth_values_and_whole_numbers_are_numbers():
    options = {"wformat": 1, "execution_penalty": 1}
    scored_wrong = await call(load("torl"), says(r"\boxed{2}"), task("1"), in_run(name="torl", options=options))
    assert scored_wrong.reward == -0.5


def test_an_option_of_a_group_reward_is_refused_with_its_setting():
    two = group(scored(1.0), scored(0.0))
    with pytest.raises(ConfigError, match=r"^reward\.group_options\.c = -1 "):
        otc_group(two, RewardContext(options={"c": -1}))
    with pytest.raises(ConfigError, match=r"^reward\.group_options\.alpha = 'x' "):
        otc_group(two, RewardContext(options={"alpha": "x"}))

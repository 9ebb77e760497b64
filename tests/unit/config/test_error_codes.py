"""Errors say to a program what they say to a person: a code and a setting for each mistake."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from openrlhf_tir import errors
from openrlhf_tir.cli import main
from openrlhf_tir.config.problems import Problems, setting_in
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError, DataError, EnvTimeout, Problem, QueueFull, TirError
from openrlhf_tir.user_code import plugins


def codes(error: TirError) -> set[tuple[str, str | None]]:
    return {(problem.code, problem.setting) for problem in error.problems}


def all_errors(root: type[TirError] = TirError) -> list[type[TirError]]:
    return [root, *(error for child in root.__subclasses__() for error in all_errors(child))]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"actor.lr": "1"}, ("unknown_setting", "actor.lr")),
        ({"actor.learning_rate": "fast"}, ("invalid_value", "actor.learning_rate")),
        ({"rollout.n_samples_per_prompt": "1"}, ("a_group_can_be_valid", "rollout.min_valid")),
        ({"envs.calc.nope": "1"}, ("unknown_setting", "envs.calc.nope")),
        ({"train.share_gpus": "true", "vllm.num_engines": "9"}, ("rank_and_engine_share_a_gpu", "train.share_gpus")),
    ],
)
def test_a_mistake_in_the_settings_has_its_code_and_setting(overrides, expected):
    with pytest.raises(ConfigError) as caught:
        load(None, overrides)
    assert expected in codes(caught.value)


def test_each_of_several_mistakes_is_one_problem_and_the_first_is_the_error_s_own():
    with pytest.raises(ConfigError) as caught:
        load(None, {"actor.lr": "1", "actor.l2": "much", "vllm.num_engines": "0"})
    error = caught.value
    assert codes(error) >= {
        ("unknown_setting", "actor.lr"),
        ("invalid_value", "actor.l2"),
        ("invalid_value", "vllm.num_engines"),
    }
    assert (error.code, error.setting) == ("unknown_setting", "actor.lr")
    assert [problem.message for problem in error.problems] == str(error).splitlines()


def test_an_unknown_recipe_and_an_unknown_name_have_codes():
    with pytest.raises(ConfigError) as caught:
        load("no_such_recipe")
    assert caught.value.code == "unknown_recipe"
    with pytest.raises(ConfigError) as caught:
        plugins.load(plugins.ENVIRONMENT, "no_such_file.py:Class")
    assert caught.value.code == "no_file"


def test_an_error_without_a_code_of_its_own_has_that_of_its_class():
    assert (DataError("row 3").code, DataError("row 3").setting) == ("data", None)
    assert EnvTimeout("late").code == EnvTimeout.reason == "timeout"
    assert QueueFull("full", 3).code == "queue_full" and QueueFull("full", 3).retry_after_s == 3


def test_every_class_of_error_has_a_code():
    assert not [error.__name__ for error in all_errors() if error is not TirError and error.reason == TirError.reason]


def test_code_setting_and_problems_survive_a_pickle():
    problems = [Problem("a", "conflict", "actor.l2"), Problem("b", "data")]
    for error in (ConfigError("a\nb", problems=problems), ConfigError("a", code="path", setting="run_dir")):
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.problems) == (str(error), error.problems)


def test_what_is_caught_keeps_its_own_code_and_gets_the_check_s_otherwise():
    problems = Problems()
    with problems.caught(code="machine"):
        raise ConfigError("--vllm.num_engines 4 need 5 GPUs")
    with problems.caught(code="machine"):
        raise ConfigError("actor.l2: there is no file x", code="no_file")
    with problems.caught(lambda line: f"envs.calc.{line}", code="method"):
        raise ConfigError("reward.name = 'x' is unknown")
    with pytest.raises(ConfigError) as caught:
        problems.raise_any()
    assert codes(caught.value) == {
        ("machine", "vllm.num_engines"),
        ("no_file", "actor.l2"),
        ("method", "envs.calc.reward.name"),
    }


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("--train.max_steps = 3 and actor.l2", "train.max_steps"),
        ("/data/train.max_steps is no file", None),
        ("ckpt.save_steps_more is unknown", None),
        ("envs.my-env.step_timeout_s = 0 is too little", "envs.my-env.step_timeout_s"),
        ("algo.advantage.estimator_x, algo.advantage.estimator", "algo.advantage.estimator"),
        ("nothing", None),
    ],
)
def test_the_setting_of_a_message_is_the_first_that_it_names_whole(text, setting):
    assert setting_in(text) == setting


def test_a_command_with_json_prints_the_mistakes_as_json_and_keeps_its_exit_code(capsys):
    assert main(["simulate", "--json", "--actor.l2", "much"]) == 2
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["error"], answer["code"], answer["setting"]) == ("ConfigError", "invalid_value", "actor.l2")
    assert answer["problems"][0]["message"] in err
    assert main(["simulate", "--actor.l2", "much"]) == 2
    assert not capsys.readouterr().out


def test_the_page_lists_every_code_that_the_source_gives():
    root = Path(errors.__file__).parent
    given = {code for file in root.rglob("*.py") for code in re.findall(r'code="([a-z_]+)"', file.read_text())}
    page = (root.parent / "docs" / "troubleshooting.md").read_text()
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", page.partition("## Codes")[2].partition("\n## ")[0], re.MULTILINE))
    assert listed == given | {ConfigError.reason, DataError.reason}

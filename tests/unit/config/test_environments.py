"""[envs.NAME]: what an environment takes from the common sections, its flags, its files, each mistake as one line."""

from __future__ import annotations

import argparse
import re

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.changes import changes, dumped
from openrlhf_tir.config.environments import entry_of, without_calls
from openrlhf_tir.config.flags import Parser, add_config_flags, config_from
from openrlhf_tir.config.own_files import files_of, freeze
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import load, load_former, to_toml
from openrlhf_tir.errors import ConfigError

TWO = """
[env]
step_timeout_s = 7.0
url = "http://never.used"
[reward]
name = "zerotir"
options = { bonus = 1.0 }
group = "otc"
[filter]
accuracy_range = [0.1, 0.9]
[envs.calc]
server = "python_tir"
share = 3
max_calls = 4
[envs.guess]
share = 1
step_timeout_s = 2.0
[envs.guess.reward]
name = "env"
[envs.guess.filter]
names = ["zero_variance"]
"""


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    return str(path)


def test_what_a_section_leaves_unset_is_taken_from_the_common_ones(two):
    calc, guess = load(two).environments.values()
    assert (calc.name, calc.serves, calc.env.max_calls) == ("calc", "python_tir", 4)
    assert (calc.env.step_timeout_s, calc.urls) == (7.0, [])
    assert (calc.reward.name, calc.reward.options, calc.reward.group, calc.filter.accuracy_range) == (
        "zerotir",
        {"bonus": 1.0},
        "otc",
        (0.1, 0.9),
    )
    assert (guess.serves, guess.env.step_timeout_s, guess.env.max_calls) == ("guess", 2.0, 2)
    assert (guess.reward.name, guess.reward.options) == ("env", {}), (
        "options belong to the reward that they were written for"
    )
    assert guess.reward.group == "otc" and guess.filter.order == ["zero_variance"]


def test_one_environment_is_the_section_env_by_its_name_whatever_a_task_calls_it():
    cfg = load(None, {"env.name": "echo", "env.max_calls": 1})
    (only,) = cfg.environments.values()
    assert (only.name, only.section, only.env, only.reward) == ("echo", "env", cfg.env, cfg.reward)
    assert entry_of(cfg.environments, "anything") == only


def test_a_name_that_is_none_of_several_is_refused(two):
    with pytest.raises(ConfigError, match=r"'gues'.* calc, guess"):
        entry_of(load(two).environments, "gues")


def test_flags_of_an_environment_win_and_mistakes_in_them_are_told(two):
    def parsed(*argv: str) -> tuple[Config, list[str]]:
        top = Parser(allow_abbrev=False)
        add_config_flags(top)
        args, args_unknown = top.parse_known_args(["--recipe", two, *argv])
        problems = Problems()
        cfg = config_from(argparse.Namespace(**{**vars(args), "unknown": args_unknown}), problems)
        return cfg, problems.lines

    cfg, wrong = parsed(
        "--envs.guess.max_calls",
        "9",
        "--envs.third.reward.weights",
        "env=1.0",
        "format=0.1",
        "--envs.calc.workers",
        "3",
        "--envs.third.share",
        "0.5",
    )
    assert wrong == [] and cfg.environments["guess"].env.max_calls == 9 and cfg.environments["calc"].env.workers == 3
    assert cfg.environments["third"].reward.weights == {"env": 1.0, "format": 0.1}
    _, wrong = parsed("--envs.guess.max_cals", "9", "--env.url", "http://x")
    assert any("'envs.guess.max_cals'" in line and "'envs.guess.max_calls'" in line for line in wrong)
    assert any(line.startswith("--env.url ") for line in wrong)
    _, wrong = parsed("--envs.calc.url", "http://x", "--envs.calc.workers", "4")
    (line,) = wrong
    assert line.startswith("--envs.calc.workers ") and "envs.calc.url" in line
    for flag in ("--env.code_timeout_s", "--envs.guess.code_timeout_s"):
        _, wrong = parsed("--envs.calc.server", "echo", flag, "9")
        (line,) = wrong
        assert line.startswith(f"{flag} ") and " (envs." in line
        assert "envs.calc.server = 'echo'" in line or "envs.guess.server unset" in line


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (
            {"envs.calc.shares": 1},
            r"'envs\.calc\.shares'.*'envs\.calc\.share'\?",
        ),
        ({"envs.calc.share": -1}, r"envs\.calc\.share = -1.*0\."),
        (
            {"envs.calc.share": 0, "envs.guess.share": 0},
            r"envs\.calc, envs\.guess .*\b0\b",
        ),
        ({"envs.third.max_calls": 1}, r"envs\.third\.share.*envs\.calc\.share = 3, envs\.guess\.share = 1\."),
        ({"envs.calc.max_calls": "x"}, r"envs\.calc\.max_calls = 'x'"),
        (
            {"envs.guess.filter.names": ["reward"]},
            r"envs\.guess\.filter\.names.*'reward'.*envs\.guess\.filter\.reward_range",
        ),
        (
            {"envs.guess.filter.sample": "zerotir"},
            (r"envs\.guess\.filter\.sample .*'zerotir'.*reward\.name"),
        ),
        (
            {"envs.guess.file": "g.py:G", "envs.guess.url": "http://x"},
            r"envs\.guess\.url = 'http://x'",
        ),
        (
            {"envs.calc.url": "http://x:1/", "envs.guess.url": "http://x:1", "envs.guess.protocol": "searchr1"},
            (
                r"envs\.calc.*envs\.guess.*http://x:1\b.*'python_tir'.*'zerotir'"
                r".*'guess'.*'searchr1'"
            ),
        ),
        (
            {"data.prompt_dataset": "a,b", "data.prompt_probs": [1, 2, 3]},
            r"data\.prompt_probs .*\(1, 2, 3\).*data\.prompt_dataset 2",
        ),
        (
            {"data.prompt_dataset": ["a", "b"], "data.prompt_probs": "1,0"},
            r"data\.prompt_probs .*\b0\b",
        ),
    ],
)
def test_a_mistake_is_one_line_with_fact_value_and_remedy(two, over, said):
    with pytest.raises(ConfigError) as e:
        load(two, over)
    (line,) = str(e.value).splitlines()
    assert re.search(said, line) and line.endswith((".", "?"))


def test_the_url_of_an_environments_remote_reward_makes_that_the_reward_as_in_the_common_section(two):
    cfg = load(two, {"envs.calc.reward.remote_url": "http://host:1/get_reward"})
    calc, guess = cfg.environments.values()
    assert (calc.reward.used, calc.reward.options) == ({"remote": 1.0}, {})
    assert (guess.reward.used, guess.reward.remote_url) == ({"env": 1.0}, None)
    mixed = {"reward.weights": {"remote": 0.5, "format": 0.5}, "reward.remote_url": "http://host:1"}
    other_server = {"envs.calc.reward.remote_url": "http://host:2", "envs.guess.share": 1}
    calc = load(None, {**mixed, **other_server, "envs.calc.share": 1}).environments["calc"]
    assert (calc.reward.used, calc.reward.remote_url) == (mixed["reward.weights"], "http://host:2")


def test_environments_share_the_runs_reward_model(two, tmp_path):
    judged = load(two, {"envs.calc.reward.name": "model", "reward.model_name_or_path": "org/judge"})
    assert judged.environments["calc"].reward.model_name_or_path == "org/judge", "no matter what [reward] is"
    own = {"envs.calc.reward.name": "model", "envs.calc.reward.model_name_or_path": "org/judge"}
    with pytest.raises(
        ConfigError, match=r"'envs\.calc\.reward\.model_name_or_path'.* reward\.model_name_or_path"
    ) as e:
        load(two, own)
    assert e.value.problems[0].code == "removed_setting"
    (tmp_path / "config.toml").write_text('[envs.calc.reward]\nmodel_name_or_path = "org/judge"\n')
    assert [*load_former(tmp_path / "config.toml").environments] == ["calc"], "a run that has it can be looked at"


def test_a_recipes_mistake_in_a_section_names_the_recipe(tmp_path):
    (tmp_path / "r.toml").write_text('[envs.calc]\nprotcol = "torl"\n[envs."a.b"]\nshare = 1\n')
    with pytest.raises(ConfigError) as e:
        load(str(tmp_path / "r.toml"))
    lines = str(e.value).splitlines()
    assert any(
        all(fact in line for fact in ("'envs.calc.protcol'", f"{tmp_path}/r.toml", "'envs.calc.protocol'"))
        for line in lines
    )
    assert any("[envs.'a.b']" in line and f"{tmp_path}/r.toml" in line for line in lines)


def test_a_configuration_with_environments_survives_as_a_recipe(two, tmp_path):
    cfg = load(two, {"envs.empty.share": 0.0, "run_dir": str(tmp_path)})
    for only_changes in (False, True):
        (tmp_path / "again.toml").write_text(to_toml(cfg, only_changes=only_changes))
        assert load(str(tmp_path / "again.toml")) == cfg
    (tmp_path / "bare.toml").write_text("[envs.python_tir]\n[envs.echo]\n")
    (tmp_path / "again.toml").write_text(to_toml(load(str(tmp_path / "bare.toml")), only_changes=True))
    assert [*load(str(tmp_path / "again.toml")).environments] == ["python_tir", "echo"]


def test_files_of_ones_own_in_a_section_travel_with_the_run(tmp_path):
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "r.toml").write_text(
        '[envs.a]\nfile = "mine.py:E"\nprotocol = "mine.py:P"\n[envs.a.reward]\nweights = { "mine.py:score" = 1.0 }\n'
    )
    cfg = load(str(tmp_path / "r.toml"), {"run_dir": str(tmp_path / "run")})
    assert files_of(cfg) == [tmp_path / "mine.py"]
    frozen = freeze(cfg).environments["a"]
    assert all(
        name.startswith(f"{tmp_path}/run/own/mine-")
        for name in (frozen.env.file, frozen.env.protocol, *frozen.reward.weights)
    )


def test_a_resume_may_move_a_server_and_not_change_a_share(two):
    before = dumped(load(two))
    refused, said = changes(
        before,
        load(
            two,
            {
                "envs.calc.share": 1,
                "envs.calc.url": "http://x",
                "envs.guess.max_calls": 5,
                "data.prompt_probs": [1.0],
                "data.prompt_dataset": "a",
            },
        ),
    )
    assert [str(c) for c in refused] == ["envs.calc.share 3.0 -> 1.0", "data.prompt_probs unset -> [1.0]"]
    assert [str(c) for c in said] == ["envs.guess.max_calls unset -> 5"]


def test_several_data_sets_are_a_list_or_words_between_commas():
    assert (
        load(None, {"data.prompt_dataset": "a.jsonl, b/c"}).data.datasets
        == load(None, {"data.prompt_dataset": ["a.jsonl", "b/c"]}).data.datasets
    )
    assert load(None, {"data.prompt_dataset": "a,b", "data.prompt_probs": "0.7,0.3"}).data.prompt_probs == [0.7, 0.3]


def test_it_is_known_which_environments_run_code_and_which_see_no_call(tmp_path):
    cfg = load(
        None,
        {
            "envs.calc.server": "python_tir",
            "envs.calc.max_calls": 0,
            "envs.guess.file": "guess.py:Guess",
            "envs.wiki.server": "search",
        },
    )
    assert [name for name, e in cfg.environments.items() if e.server_info.runs_code] == ["calc"]
    assert without_calls(cfg) == {"calc"}
    assert without_calls(cfg, max_calls=0) == {"calc", "guess", "wiki"}, "an evaluation's own, for all"
    assert without_calls(cfg, max_calls=2) == set()
    assert without_calls(load(None, {"rollout.agent": "external"})) == {"python_tir"}, (
        "an agent calls what it likes, and we see none of it"
    )

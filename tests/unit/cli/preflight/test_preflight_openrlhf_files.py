"""The checks before a run look at OpenRLHF's files in a process of their own, and at nothing an agent file idles."""

from __future__ import annotations

import re
import sys

import pytest

from openrlhf_tir.cli.checks.envs import check_envs
from openrlhf_tir.cli.checks.load_elsewhere import load_elsewhere, load_here
from openrlhf_tir.cli.checks.names import check_names, openrlhf_files
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

AGENT = "openrlhf_tir.rollout.protocols.agent_file.place:AGENT"
REWARD = "openrlhf_tir.rewards.remote.file:REWARD_FUNC"
GOOD = "import colorsys\nprint('loud')\nclass AgentExecutor:\n    async def execute(self, **kwargs):\n        ...\n"


@pytest.mark.slow
def test_a_good_file_is_loaded_and_leaves_nothing_here(tmp_path, capfd):
    (tmp_path / "agent.py").write_text(GOOD)
    sys.modules.pop("colorsys", None)
    load_elsewhere(AGENT, f"{tmp_path / 'agent.py'}:AgentExecutor")
    assert "colorsys" not in sys.modules and "loud" not in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load_it", "place", "text", "attribute", "said"),
    [
        (load_here, AGENT, "x = 1\n", "AgentExecutor", r"agent\.py .*'AgentExecutor'"),
        (load_here, AGENT, "\nimport no_such_thing\n", "AgentExecutor", r"agent\.py:2: ModuleNotFoundError"),
        (load_elsewhere, AGENT, "import os\nos._exit(7)\n", "AgentExecutor", r"agent\.py:2: Exited"),
        (
            load_elsewhere,
            AGENT,
            "import os\nos.kill(os.getpid(), 9)\n",
            "AgentExecutor",
            r"agent\.py:AgentExecutor: .* -9:",
        ),
        (
            load_here,
            REWARD,
            "def reward_func(queries):\n    ...\n",
            "reward_func",
            r"agent\.py:1: reward_func\(queries\)",
        ),
        (load_here, REWARD, "def reward(q, p, l):\n    ...\n", "reward_func", r"agent\.py .*'reward_func'.*: reward\."),
    ],
)
def test_a_mistake_names_file_and_line(tmp_path, load_it, place, text, attribute, said):
    (tmp_path / "agent.py").write_text(text)
    with pytest.raises(ConfigError) as e:
        load_it(place, f"{tmp_path / 'agent.py'}:{attribute}")
    assert re.search(said, str(e.value))


@pytest.mark.slow
def test_a_file_that_does_not_end_its_import_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setattr("openrlhf_tir.cli.checks.load_elsewhere.LOAD_S", 1.0)
    with pytest.raises(ConfigError, match=r"agent\.py:AgentExecutor .* 1 s\b"):
        load_elsewhere(AGENT, f"{tmp_path / 'agent.py'}:AgentExecutor")


def test_files_are_checked_servers_are_not_and_no_environment_is_wanted(tmp_path):
    cfg = load(None, {"train.agent_func_path": "there.py", "reward.remote_url": "http://h:1"})
    ((_, name),) = openrlhf_files(cfg)
    assert name.endswith("/there.py:AgentExecutor")
    problems = Problems()
    check_names(cfg, problems)
    with pytest.raises(ConfigError, match=r"/there\.py ") as e:
        problems.raise_any()
    assert [problem.code for problem in e.value.problems] == ["no_file"]
    (fact,) = check_envs(cfg, machine=None, problems=problems)
    assert re.match(r".* there\.py: 4 |.*/there\.py:.*: \d+ ", fact)


def test_the_reward_file_of_one_environment_of_several_is_checked_too():
    cfg = load(None, {"envs.calc.reward.remote_url": "there.py", "envs.guess.protocol": "plain"})
    ((place, name),) = openrlhf_files(cfg)
    assert place == REWARD and name.endswith("/there.py:reward_func")
    problems = Problems()
    check_names(cfg, problems)
    (line,) = problems.lines
    assert "/there.py " in line

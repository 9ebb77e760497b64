"""Settings of OpenRLHF that name a file alone, or a server: agent_func_path, remote_url, from flag to the copy."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from openrlhf_tir.config.flags import Parser, add_config_flags, overrides_of
from openrlhf_tir.config.own_files import files_of, freeze
from openrlhf_tir.config.packed_command import pack
from openrlhf_tir.config.settings import load, to_toml
from openrlhf_tir.errors import ConfigError
from tests.contract.docs.docs_blocks import block


def parsed(*argv):
    parser = Parser(allow_abbrev=False)
    add_config_flags(parser)
    args: argparse.Namespace = parser.parse_args(argv)
    return load(args.recipe, overrides_of(args))


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text("class AgentExecutor: ...\n")
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_openrlhfs_flags_are_taken_over_as_they_are_written(home):
    cfg = parsed("--train.agent_func_path", "agent.py", "--reward.remote_url", "./reward.py")
    assert cfg.train.agent_func_path == f"{home}/agent.py:AgentExecutor"
    assert (cfg.reward.remote_url, cfg.reward.name) == (f"{home}/reward.py:reward_func", "remote")


def test_a_server_stays_a_url_and_is_the_reward(home):
    cfg = parsed("--reward.remote_url", "http://a:1/score,http://b:2/score")
    assert (cfg.reward.remote_url, cfg.reward.name) == ("http://a:1/score,http://b:2/score", "remote")
    both = parsed("--reward.remote_url", "http://a:1", "--reward.weights", "remote=1", "format=0.1")
    assert both.reward.used == {"remote": 1.0, "format": 0.1}


def test_a_run_works_with_copies_and_its_written_config_names_them(home):
    cfg = parsed("--run-dir", "run", "--train.agent_func_path", "agent.py", "--reward.remote_url", "reward.py")
    frozen = freeze(cfg)
    assert sorted(path.stem.partition("-")[0] for path in files_of(frozen)) == ["agent", "reward"]
    assert all(path.parent == home / "run/own" for path in files_of(frozen))
    (home / "shown.toml").write_text(to_toml(frozen, only_changes=True))
    assert load(str(home / "shown.toml")) == frozen


def test_a_submitted_job_takes_the_files_along(home, tmp_path):
    sent = tmp_path / "repo/.job-1"
    args = pack(
        ["--train.agent_func_path", "agent.py", "--reward.remote_url=reward.py", "--reward.name", "remote"], sent, home
    )
    where, _, attribute = args[1].rpartition(":")
    assert where.startswith(".job-1/agent-") and attribute == "AgentExecutor"
    assert (sent.parent / where).read_text() == (home / "agent.py").read_text()
    assert args[2].startswith("--reward.remote_url=.job-1/reward-") and args[2].endswith(":reward_func")
    assert pack(["--reward.remote_url", "http://h:1"], Path(sent), home) == ["--reward.remote_url", "http://h:1"]


def test_the_recipe_of_the_documentation_loads(home):
    (home / "guess_agent.toml").write_text(block("openrlhf_files.md", "toml", "agent_func_path"))
    cfg = load("guess_agent.toml")
    assert cfg.train.agent_func_path == f"{home}/guess_agent.py:AgentExecutor" and cfg.data.max_len == 160


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        ("--reward.name remote", ["'remote'", "reward.remote_url"]),
        ("--reward.remote_url http://h:1 --reward.name math", ["'remote'", "reward.remote_url"]),
        ("--train.agent_func_path agent.py --rollout.agent external", ["train.agent_func_path", "rollout.agent"]),
        ("--train.agent_func_path agent.py --rollout.early_stop", ["rollout.early_stop"]),
    ],
)
def test_what_does_not_go_together_is_refused(home, argv, facts):
    with pytest.raises(ConfigError) as e:
        parsed(*argv.split())
    assert all(fact in str(e.value) for fact in facts)

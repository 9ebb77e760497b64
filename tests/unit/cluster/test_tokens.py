"""The endpoints' token is never the one that hosts of the model's code hold."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.cluster import env_process
from openrlhf_tir.cluster.tokens import FILE, Tokens, check_tokens, tokens
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError

ENV, ROLLOUT = {"TIR_ENV_TOKEN": "e"}, {"TIR_ROLLOUT_TOKEN": "r"}


@pytest.fixture
def cfg(tmp_path):
    return Config.model_validate({"run_dir": tmp_path, "env": {"name": "echo"}})


def test_without_tokens_everything_stays_on_loopback(cfg):
    assert tokens(cfg, {}) == Tokens(None, None) and not (cfg.run_dir / FILE).exists()


def test_each_has_its_own(cfg):
    assert tokens(cfg, ENV | ROLLOUT) == Tokens("e", "r") and tokens(cfg, ROLLOUT) == Tokens(None, "r")
    assert not (cfg.run_dir / FILE).exists()


def test_a_set_up_with_the_environments_token_only_gets_one_for_its_endpoints_and_is_told_where(cfg):
    made = tokens(cfg, ENV)
    path = cfg.run_dir / FILE
    assert made.env == "e" and len(made.rollout) >= 32 and path.read_text().strip() == made.rollout
    assert path.stat().st_mode & 0o777 == 0o600
    assert tokens(cfg, ENV) == made, "a restarted run keeps it: agents go on"
    assert str(path) in check_tokens(cfg, ENV)[0] and check_tokens(cfg, ENV | ROLLOUT) == []


def test_a_file_that_may_only_be_read_is_read(cfg, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    made = tokens(cfg, ENV)
    monkeypatch.setattr("os.open", refuse)
    assert tokens(cfg, ENV) == made


def test_a_file_that_a_full_disk_left_empty_gets_a_token(cfg):
    path = cfg.run_dir / FILE
    path.parent.mkdir()
    path.touch(0o600)
    made = tokens(cfg, ENV)
    assert len(made.rollout) >= 32 and tokens(cfg, ENV) == made


def test_the_same_token_for_both_is_refused(cfg):
    with pytest.raises(ConfigError, match=r"TIR_ROLLOUT_TOKEN .*TIR_ENV_TOKEN "):
        check_tokens(cfg, {"TIR_ENV_TOKEN": "x", "TIR_ROLLOUT_TOKEN": "x"})


async def test_the_server_that_runs_the_models_code_is_not_given_the_endpoints_token(cfg, monkeypatch):
    given = {}

    async def fork(*command, env, **_):
        given.update(env)
        raise OSError("enough")

    for name in ("TIR_ENV_TOKEN", "TIR_ROLLOUT_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, name)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fork)
    with pytest.raises(OSError, match="enough"):
        async with env_process.env_urls(cfg):
            pass
    assert "TIR_ENV_TOKEN" in given and "TIR_ROLLOUT_TOKEN" not in given and "WANDB_API_KEY" not in given

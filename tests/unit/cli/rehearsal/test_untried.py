"""User code that a rehearsal could not try is waited for, or ends the command with another code than 0."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from openrlhf_tir.cli import train
from openrlhf_tir.cli.exit_codes import DONE, NO
from openrlhf_tir.cli.rehearsal import Rehearsal, play, rehearse
from openrlhf_tir.config.settings import load

OWN_REWARD = {"reward.name": "/nowhere/mine.py:score"}
INDEX = {"env.name": "search", "env.protocol": "searchr1"}


@pytest.mark.parametrize(("user_code", "code"), [(OWN_REWARD, NO), ({}, DONE)])
def test_a_model_that_is_not_here_yet_leaves_user_code_untried(user_code, code, monkeypatch, capsys):
    cfg = load(None, {"actor.model_name_or_path": "nobody/no-such-model", **user_code})
    result = rehearse(cfg)
    assert result.notes and result.untried == bool(user_code)
    monkeypatch.setattr("openrlhf_tir.cli.rehearsal.rehearse", lambda cfg, progress: result)
    assert train._rehearsed(cfg) == code
    assert "all checks passed" not in capsys.readouterr().out


@pytest.fixture
def slow_start(monkeypatch):
    """A server that is up after the deadline of one that builds an index."""

    @asynccontextmanager
    async def env_urls(cfg):
        await asyncio.sleep(0.001)
        yield {"any": ["http://up"]}

    monkeypatch.setattr("openrlhf_tir.cluster.env_process.env_urls", env_urls)
    monkeypatch.setattr(play, "INDEX_S", 0.0)


@pytest.mark.parametrize(
    ("settings", "urls", "untried"),
    [
        ({"env.name": "mine", "env.file": "/nowhere/mine.py:Guess"}, {"any": ["http://up"]}, False),
        (INDEX, None, False),
        (INDEX | OWN_REWARD, None, True),
    ],
)
async def test_a_server_is_waited_for_unless_it_builds_an_index(slow_start, settings, urls, untried):
    result = Rehearsal()
    async with play.started_servers(load(None, settings), result, lambda line: None) as started:
        assert started == urls
    assert (result.untried, bool(result.notes)) == (untried, urls is None)

"""The clients of several environments: each by its own limits, and by the name that its servers give themselves."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rollout.environment_client.client import EnvClient

from .scripted_env import Script


def clients(**urls: list[str]) -> EnvClient:
    cfg = Config(envs={"sums": {"server": "python_tir", "step_timeout_s": 3.0}, "guess": {"step_timeout_s": 9.0}})
    return EnvClient.of(cfg.environments, urls, owner="me")


async def test_a_session_goes_to_the_server_of_its_environment():
    async with Script() as one, Script() as other:
        several = clients(sums=[one.url], guess=[other.url])
        async with several.session("guess", {"label": "x"}, seed=1) as session:
            await session.reset()
        assert (
            not one.resets
            and other.resets[0]["session_id"].startswith("me.")
            and several.servers == sorted([one.url, other.url])
        )
        assert several.limits_of("sums").step_timeout_s == 3.0 and several.limits_of("guess").reset_timeout_s == 27.0
        assert {"sessions/sums", "sessions/guess"} <= several.stats().keys()
        with pytest.raises(ConfigError, match="'search'"):
            several.session("search", {})
        await several.close()


async def test_a_new_server_is_asked_whether_it_is_what_the_section_says_and_not_the_sections_name():
    """Swapped in, it gets a session once its /health has named python_tir; one that names the section has another."""
    async with Script() as right:
        right.health = {"env": "python_tir", "status": "ok"}
        several = clients(guess=["http://g"])
        several.set_urls({"sums": [right.url], "guess": ["http://g"]})
        async with asyncio.timeout(60), several.session("sums", {}) as session:
            await session.reset()
        assert right.probes >= 1 and right.resets
        several.urls.check("sums")
        await several.close()

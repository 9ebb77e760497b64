"""A port that is in use on an engine's node is told before its model is loaded; its limit of open files is raised."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, Unavailable
from openrlhf_tir.machine.open_files import OPEN_FILES

pytestmark = pytest.mark.slow  # importing ray


def test_a_port_in_use_where_the_engine_is_costs_no_loading(tmp_path, monkeypatch):
    from openrlhf_tir.cluster import rollout_actor
    from openrlhf_tir.cluster.tokens import Tokens

    class Engine:
        @classmethod
        async def start(cls, *args, **kwargs):
            raise AssertionError("the model was loaded")

    monkeypatch.setattr(rollout_actor, "end_children_with_us", lambda: True)
    monkeypatch.setattr(rollout_actor, "_engine_class", lambda cfg: Engine)
    monkeypatch.setattr("openrlhf_tir.telemetry.own_log.own_log", lambda path: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        cfg = Config(run_dir=tmp_path, rollout={"port": port - 2})
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            asyncio.run(rollout_actor.RolloutActor(2).start(cfg, {}, Tokens(None, None)))


def test_an_actor_of_a_ray_that_was_started_from_a_shell_has_as_many_open_files_as_it_needs(tmp_path, monkeypatch):
    from openrlhf_tir.cluster import rollout_actor
    from openrlhf_tir.cluster.tokens import Tokens

    class Engine:
        @classmethod
        async def start(cls, *args, **kwargs):
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise ConfigError(f"{soft} open files")

    monkeypatch.setattr(rollout_actor, "end_children_with_us", lambda: True)
    monkeypatch.setattr(rollout_actor, "watched", lambda cfg, name: None)
    monkeypatch.setattr(rollout_actor, "_engine_class", lambda cfg: Engine)
    monkeypatch.setattr("openrlhf_tir.telemetry.own_log.own_log", lambda path: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    open_here = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_here + 100, hard))
    try:
        with pytest.raises(ConfigError, match=f"^{needed} open files"):
            asyncio.run(rollout_actor.RolloutActor(0).start(Config(run_dir=tmp_path), {}, Tokens(None, None)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

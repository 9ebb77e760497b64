"""A port that is in use on an engine's node is told before its model is loaded."""

from __future__ import annotations

import asyncio
import socket

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import Unavailable

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

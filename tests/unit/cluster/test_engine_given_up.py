"""A rollout actor that is given up, as its controller's calls see it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from openrlhf_tir.cluster import engine_handle as handles
from openrlhf_tir.cluster.engine_handle import EngineHandle
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.config import Config
from openrlhf_tir.errors import EngineGone
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.deadlines import Deadline


def test_calls_to_an_actor_that_is_killed_end_at_once_and_those_that_come_later_too(monkeypatch):
    monkeypatch.setattr(handles, "ray", SimpleNamespace(kill=lambda actor: None, exceptions=handles.ray.exceptions))
    deaths: list[str] = []

    async def scenario():
        loop = asyncio.get_running_loop()
        answered, hung = loop.create_future(), loop.create_future()
        answers = iter([answered, hung, loop.create_future()])
        process = SimpleNamespace(invoke=SimpleNamespace(remote=lambda method: next(answers)))
        actor = EngineHandle(3, process, None, lambda member, why: deaths.append(why), Config())
        soon = Deadline(1000.0, "a test's")
        loop.call_later(1.0, answered.set_result, "meta")
        loop.call_later(2.0, actor.kill)
        calls = [actor.call(RolloutActor.heartbeat, deadline=soon) for _ in range(2)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert found[0] == "meta" and isinstance(found[1], EngineGone)
        with pytest.raises(EngineGone, match="rollout-3"):
            await actor.call(RolloutActor.heartbeat, deadline=soon)
        assert loop.time() == 2.0 and not deaths, "whoever gave it up knows"

    run(scenario())

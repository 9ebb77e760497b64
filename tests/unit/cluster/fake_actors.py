"""Actors without processes: what stands behind a Ray handle is a coroutine, which may hang, fail, die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from openrlhf_tir.cluster.engine_handle import EngineHandle
from openrlhf_tir.cluster.engine_pool import EnginePool
from openrlhf_tir.cluster.node_room import NodeReport
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.config import Config
from openrlhf_tir.types import Completion, GroupMeta
from openrlhf_tir.waiting.deadlines import Deadline

from ...pipeline.fakes import group_of


class Remote:
    """A method of a handle: `.remote()` starts it and returns what can be awaited."""

    def __init__(self, call: Callable[..., Coroutine]) -> None:
        self.call = call

    def remote(self, *args: Any) -> asyncio.Task:
        return asyncio.ensure_future(self.call(*args))

    def options(self, num_returns: int) -> Remote:
        assert num_returns == 2
        return TwoResults(self.call)


class TwoResults(Remote):
    def remote(self, *args: Any) -> tuple[asyncio.Task, asyncio.Task]:
        both = super().remote(*args)
        return asyncio.ensure_future(_part(both, 0)), asyncio.ensure_future(_part(both, 1))


async def _part(both: asyncio.Task, i: int) -> Any:
    try:
        return (await asyncio.shield(both))[i]
    except Exception:
        if i:  # the payload of a group that failed: nobody asks for it
            return None
        raise


class FakeActor:
    """A handle. `hangs`: methods that never answer. `raises`: methods that raise. `fails_groups`: prompt -> why its
    group fails."""

    _actor_id = SimpleNamespace(hex=lambda: "ab")

    def __init__(self, index: int) -> None:
        self.index, self.version, self.killed = index, 0, False
        self.hangs: set[str] = set()
        self.raises: dict[str, Exception] = {}
        self.fails_groups: Callable[[str], str | None] = lambda prompt: None
        self.groups: list[str] = []

    def __getattr__(self, name: str) -> Remote:
        if name == "invoke":
            return Remote(lambda method, *args: self._answer(method, *args))
        return Remote(lambda *args: self._answer(name, *args))

    async def _answer(self, name: str, *args: Any) -> Any:
        await asyncio.sleep(0.5)
        if name in self.hangs:
            await asyncio.get_running_loop().create_future()
        if name in self.raises:
            raise self.raises[name]
        return await getattr(self, f"do_{name}")(*args)

    async def do_start(self, *args: Any) -> str:
        return f"http://fake-{self.index}"

    async def do_check_node(self, mark: Any, versions: Any) -> NodeReport:
        return NodeReport("10.0.0.1", time.time(), memory=1 << 40, gpu=None)

    async def do_address(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    async def do_stop(self) -> None: ...

    async def do_heartbeat(self) -> list[str]:
        return []

    async def do_set_env_urls(self, urls: Any) -> None: ...

    async def do_confirm_weights(self, version: int) -> dict[str, float]:
        return {}

    async def do_sleep(self) -> None: ...

    async def do_wake(self) -> None: ...

    async def do_call(self, method: str, *args: Any) -> None:
        """Of a learner's rank."""

    async def do_update_weights(
        self, path: Any, version: int, digest: str, canary: Any, link: str | None
    ) -> list[Completion]:
        self.version = version
        n = canary.max_tokens
        return [
            Completion(
                np.arange(n, dtype=np.int32), np.zeros(n, np.float32), np.full(n, version, np.int32), "", "length"
            )
            for _ in canary.prompt_ids
        ]

    async def do_run_group(self, key: Any, task: Any, mode: Any) -> tuple[GroupMeta, Any]:
        self.groups.append(task.prompt)
        await asyncio.sleep(5)
        if "run_group_after" in self.hangs:
            await asyncio.get_running_loop().create_future()
        meta, group = group_of(key, self.version, failed=self.fails_groups(task.prompt))
        return replace(meta, actor=f"rollout-{self.index}", load=LOAD), group


LOAD = {"running": 2.0, "waiting": 1.0, "width": 8.0, "preemptions": 0.0}
"""What each fake actor tells with a group."""


class FakeCluster:
    """A pool on fake actors; `actors` holds all that ever started, `prepare` sees each before it starts."""

    def __init__(self, cfg: Config, monkeypatch: Any) -> None:
        from openrlhf_tir.cluster import engine_pool as pool_module

        self.actors: list[FakeActor] = []
        self.actor_class: type[FakeActor] = FakeActor
        self.prepare: Callable[[FakeActor], None] = lambda actor: None
        monkeypatch.setattr(pool_module, "spawn", self.spawn)
        monkeypatch.setattr("ray.kill", self.kill)
        monkeypatch.setattr("ray.cancel", lambda ref: ref.cancel())
        self.pool = EnginePool(cfg, {})
        self.pool.fleet.on_lost = lambda member: None

    async def spawn(
        self, actor_class: type, index: int, cfg: Config, env_urls: Any, on_death: Callable, shared: None
    ) -> EngineHandle:
        actor = self.actor_class(index)
        self.actors.append(actor)
        self.prepare(actor)
        member = EngineHandle(index, actor, None, on_death, cfg)
        try:
            member.url = await member.call(RolloutActor.start, deadline=Deadline.of(cfg, "timeouts.start_s"))
        except BaseException:
            member.kill()
            raise
        return member

    def kill(self, actor: FakeActor) -> None:
        actor.killed = True

    @property
    def names(self) -> list[str]:
        return sorted(m.name for m in self.pool.members)

"""The scale benchmark's engines and ranks without Ray, in this process: what stands behind each handle is a coroutine.
For virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.pipeline.scale.host import Host, Hosts

from ..cluster.fake_actors import Remote


class InThisProcess:
    """What a Ray actor's handle is. Arguments that stand for an object are it when the call begins, as with Ray."""

    def __init__(self, actor: object) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Remote:
        async def call(*args: Any) -> Any:
            return await getattr(self.actor, name)(*[await a if isinstance(a, asyncio.Future) else a for a in args])

        return Remote(call)


class LocalHosts(Hosts):
    def process(self, make: Any) -> InThisProcess:
        return InThisProcess(Host(make))

"""EnvClients: the clients of a run's environments as one, each with its limits. A rollout actor owns it for life."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..config.environments import Environment, one
from ..errors import unknown
from ..logs.intervals import Interval
from .client import EnvClient
from .session import HttpSession


class EnvClients:
    """`clients` by the name that tasks use."""

    def __init__(self, clients: Mapping[str, EnvClient]) -> None:
        self.clients = dict(clients)

    @classmethod
    def of(
        cls,
        environments: Mapping[str, Environment],
        urls: Mapping[str, Sequence[str]],
        *,
        token: str | None = None,
        owner: str = "",
    ) -> EnvClients:
        """`urls`: environment -> base URLs of its servers. `owner` begins the ids of all sessions."""
        clients = {
            name: EnvClient.of(
                e.env, {name: urls[name]} if name in urls else {}, token=token, owner=owner, serves=e.serves
            )
            for name, e in environments.items()
        }
        return cls(clients)

    def check(self, env: str) -> None:
        """Raises ConfigError for an environment without a URL."""
        if not any(env in client.urls.known for client in self.clients.values()):
            raise unknown(
                "env",
                env,
                self.clients,
                "Give its server's URL (env.url, or envs.NAME.url), or correct the row's env column.",
            )

    def session(self, env: str, task: Mapping[str, Any], *, seed: int = 0) -> HttpSession:
        """See EnvClient.session."""
        return one(self.clients, env).session(env, task, seed=seed)

    def set_urls(self, urls: Mapping[str, Sequence[str]]) -> None:
        """Swap the map, whole: see EnvClient.set_urls."""
        for name, client in self.clients.items():
            client.set_urls({name: urls[name]} if name in urls else {})

    @property
    def servers(self) -> list[str]:
        """Every base URL that may hold a session of ours."""
        return sorted({url for client in self.clients.values() for url in client.servers})

    def stats(self) -> dict[str, float]:
        """The counters of all clients; their names hold the environment's."""
        return {name: value for client in self.clients.values() for name, value in client.stats().items()}

    def drain_stage_times(self) -> dict[tuple[str, str], list[Interval]]:
        """See StageTimes.drain."""
        return {what: spans for client in self.clients.values() for what, spans in client.stage_times.drain().items()}

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients.values()))

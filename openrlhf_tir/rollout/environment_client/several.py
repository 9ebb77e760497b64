"""The clients of all environments of a run, each with its own limits, behind one interface."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ...config.environments import Environment, entry_of
from ...telemetry.intervals import Interval
from .client import EnvClient
from .session import HttpSession


class EnvClients:
    """The clients by environment. A rollout actor owns them for its whole life."""

    def __init__(self, clients: Mapping[str, EnvClient]) -> None:
        """Take ownership of clients, by the environment's name in tasks."""
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
        """Return the clients of a run.

        Args:
            environments: The run's environments by name.
            urls: Environment -> base URLs of its servers.
            token: Bearer token of the servers.
            owner: Prefix of all sessions' ids.
        """
        clients = {}
        for name, environment in environments.items():
            own_urls = {name: urls[name]} if name in urls else {}
            clients[name] = EnvClient.of(environment.env, own_urls, token=token, owner=owner, serves=environment.serves)
        return cls(clients)

    def check(self, env: str) -> None:
        """Check that an environment has a server.

        Raises:
            ConfigError: It has no URL.
        """
        entry_of(self.clients, env).urls.check(env)

    def session(self, env: str, task: Mapping[str, Any], *, seed: int = 0) -> HttpSession:
        """See EnvClient.session."""
        return entry_of(self.clients, env).session(env, task, seed=seed)

    def set_urls(self, urls: Mapping[str, Sequence[str]]) -> None:
        """Replace the map of all servers; see EnvClient.set_urls."""
        for name, client in self.clients.items():
            client.set_urls({name: urls[name]} if name in urls else {})

    @property
    def servers(self) -> list[str]:
        """Every base URL that may hold one of the clients' sessions."""
        return sorted({url for client in self.clients.values() for url in client.servers})

    def stats(self) -> dict[str, float]:
        """Return the figures of all clients. The environment is part of each name."""
        return {name: value for client in self.clients.values() for name, value in client.stats().items()}

    def drain_stage_times(self) -> dict[tuple[str, str], list[Interval]]:
        """See StageTimes.drain."""
        return {track: spans for client in self.clients.values() for track, spans in client.stage_times.drain().items()}

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(client.close() for client in self.clients.values()))

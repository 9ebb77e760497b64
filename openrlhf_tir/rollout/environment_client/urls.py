"""Which server of an environment takes the next session. The map of servers can be replaced during a run.

    set_urls({"search": [a, b]})       A server that is no longer in the map keeps its sessions and gets no new one. A
                                       new server gets its first session once its /health is ok.
    choose("search") -> EnvServer      Of the servers that are up, the one with the fewest sessions; waits if none is
                                       up.
    holder(env, url) -> EnvServer      The process that the reply to /reset names, if it is not the URL of the request.

A server whose breaker opened is asked for /health after each pause until it is healthy, so no session is lost to find
out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import EnvError, EnvLost, unknown
from .breaker import Breaker
from .credits import Credits
from .refusals import Refusals

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class EnvServer:
    """One base URL.

    Attributes:
        env: The environment.
        url: The base URL.
        credits: How many calls may be in flight.
        breaker: Whether it is up.
        sessions: Sessions that it holds.
        opened: Open sessions that were opened at this URL, also those that a process behind it holds.
        listed: True if it is in the map and may get new sessions. A process that a reply to /reset named is not, and is
            forgotten with its last session.
        no_sessions_until: Event loop time in seconds before which it gets no new session: it is full or drains, but
            answers steps.
        session_refusals: Sessions that it refused.
        probing: The task that checks its health while its breaker is open.
    """

    env: str
    url: str
    credits: Credits
    breaker: Breaker
    sessions: int = 0
    opened: int = 0
    listed: bool = True
    no_sessions_until: float = 0.0
    session_refusals: Refusals = field(default_factory=Refusals)
    probing: asyncio.Task[None] | None = None


class EnvUrls:
    """The servers of a client's environments."""

    def __init__(
        self,
        urls: Mapping[str, str | Sequence[str]],
        *,
        max_calls: Callable[[str], int],
        probe: Callable[[EnvServer], Awaitable[None]],
        probe_pause_s: float,
    ) -> None:
        """Begin with servers that are taken to be up.

        Args:
            urls: Environment -> base URL, or several.
            max_calls: Environment -> calls in flight per server at most.
            probe: Returns if the server is healthy, raises EnvError if not.
            probe_pause_s: Seconds before the first health check of a server that failed.
        """
        self._max_calls = max_calls
        self._probe = probe
        self._probe_pause_s = probe_pause_s
        self._servers: dict[tuple[str, str], EnvServer] = {}
        self._changed = asyncio.Event()
        for env, url in _pairs(urls):
            self._add(env, url)

    def __iter__(self) -> Iterator[EnvServer]:
        return iter(self._servers.values())

    @property
    def known(self) -> set[str]:
        """Environments with a server in the map."""
        return {server.env for server in self if server.listed}

    def set_urls(self, urls: Mapping[str, str | Sequence[str]]) -> None:
        """Replace the map. Environments and servers that it does not name get no new session."""
        listed = set(_pairs(urls))
        for key, server in list(self._servers.items()):
            if server.listed and key not in listed:
                log.info("Environment %s: %s gets no new session; %d are open.", *key, server.sessions)
            server.listed = key in listed
            self.drop_unused(server)
        for env, url in listed - self._servers.keys():
            server = self._add(env, url)
            server.breaker.open("it is new and its health was not checked yet")
            server.breaker.pause_s = 0.0
            self.watch(server)
        self._notify()

    def check(self, env: str) -> None:
        """Check that an environment has a server.

        Raises:
            ConfigError: It has no URL.
        """
        if env not in self.known:
            remedy = "Give its server's URL (env.url, or envs.NAME.url), or correct the row's env column."
            raise unknown("env", env, self.known, remedy)

    async def choose(self, env: str, outage_s: float, room_s: float, avoid: Sequence[EnvServer] = ()) -> EnvServer:
        """Return the server for a new session: up, with room, and of these the one with the fewest sessions.

        Args:
            env: The environment.
            outage_s: Seconds to wait while no server is up.
            room_s: Seconds to wait for a server with room.
            avoid: Servers that are returned only if there is no other.

        Raises:
            EnvLost: No server was up for `outage_s`.
            TimeoutError: The servers that are up had no room for `room_s`.
        """
        clock = asyncio.get_running_loop().time
        start = clock()
        while True:
            listed = [server for server in self if server.env == env and server.listed]
            up = [server for server in listed if server.breaker.admits]
            with_room = [server for server in up if server.no_sessions_until <= clock()]
            if with_room:
                # Random among equals, so that several actors do not choose the same server.
                return min(
                    with_room,
                    key=lambda server: (server in avoid, server.opened + server.credits.in_flight, random.random()),
                )
            wake_at = start + outage_s
            if up:
                wake_at = min(start + room_s, *(server.no_sessions_until for server in up))
            try:
                async with asyncio.timeout_at(wake_at):
                    await self._changed.wait()
            except TimeoutError:
                if not up and clock() >= start + outage_s:
                    causes = "; ".join(f"{server.url}: {server.breaker.cause}" for server in listed)
                    raise EnvLost(
                        f"Every server of env {env!r} has been down for {outage_s:g} s ({causes or 'no URL is left'})."
                        " Start one, or give another URL (`openrlhf-tir control`)."
                    ) from None
            if clock() >= start + room_s and up:
                raise TimeoutError

    async def up(self, server: EnvServer, timeout_s: float) -> None:
        """Wait until `server` admits a call.

        Raises:
            TimeoutError: It did not within `timeout_s`.
        """
        if server.breaker.admits:
            return
        async with asyncio.timeout(timeout_s):
            while not server.breaker.admits:
                await self._changed.wait()

    def holder(self, env: str, url: str) -> EnvServer:
        """Return the server that holds a session. The caller counts the session in its `sessions`."""
        return self._servers.get((env, url)) or self._add(env, url, listed=False)

    def failed(self, server: EnvServer, ticket: int, cause: str) -> None:
        """Record that a call failed."""
        server.breaker.failed(ticket, cause)
        if server.breaker.state == "open":
            self.watch(server)

    def succeeded(self, server: EnvServer, ticket: int) -> None:
        """Record that a step was executed."""
        state_before = server.breaker.state
        server.breaker.succeeded(ticket)
        if server.breaker.state != state_before:
            log.info("Environment %s: %s is in use again.", server.env, server.url)
            self._notify()

    def left(self, server: EnvServer, ticket: int, answered: bool) -> None:
        """Record that a call ended; see Breaker.leave."""
        server.breaker.leave(ticket, answered)
        if server.breaker.state == "trial":
            self._notify()

    def watch(self, server: EnvServer) -> None:
        """Check the health of a server with an open breaker until it is healthy."""
        if server.probing is None or server.probing.done():
            log.warning("Environment %s: %s gets no calls: %s", server.env, server.url, server.breaker.cause)
            server.probing = asyncio.create_task(self._probe_until_healthy(server), name=f"probe {server.url}")

    async def _probe_until_healthy(self, server: EnvServer) -> None:
        while True:
            await asyncio.sleep(server.breaker.pause_s * random.uniform(0.5, 1.0))
            try:
                await self._probe(server)
            except EnvError as e:
                server.breaker.open(str(e))
            except Exception as e:  # nobody else asks: without this task the server would never be used again
                log.exception("The health check of %s failed by itself.", server.url)
                server.breaker.open(f"its health check failed: {type(e).__name__}: {e}")
            else:
                break
        server.breaker.healthy()
        self._notify()

    def drop_unused(self, server: EnvServer) -> None:
        """Forget a server that is not in the map and holds no session."""
        if not server.listed and not server.sessions:
            self._servers.pop((server.env, server.url), None)
            if server.probing is not None:
                server.probing.cancel()

    async def close(self) -> None:
        """Stop all health checks."""
        probing = [server.probing for server in self if server.probing is not None]
        for task in probing:
            task.cancel()
        await asyncio.gather(*probing, return_exceptions=True)

    def _add(self, env: str, url: str, *, listed: bool = True) -> EnvServer:
        breaker = Breaker(first_pause_s=self._probe_pause_s)
        server = EnvServer(env, url, Credits(self._max_calls(env)), breaker, listed=listed)
        self._servers[env, url] = server
        return server

    def _notify(self) -> None:
        """Wake everyone who waits for a server to come up."""
        self._changed.set()
        self._changed = asyncio.Event()


def _pairs(urls: Mapping[str, str | Sequence[str]]) -> list[tuple[str, str]]:
    """Return (environment, base URL) for every server of a map."""
    return [
        (env, url.strip().rstrip("/"))
        for env, value in urls.items()
        for url in ([value] if isinstance(value, str) else value)
    ]

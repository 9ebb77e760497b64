"""EnvUrls: which server of an environment takes the next session. The map can be swapped during a run.

    set_urls({"search": [a, b]})       c is gone from the map: its sessions end there, none is opened; a new URL gets
                                       its first session once its /health said ok
    choose("search") -> EnvServer      the one with the fewest sessions of those that are up; waits while none is
    holder(env, url) -> EnvServer      the process that /reset named, when it is not the one that was asked

A server whose breaker opened is asked for /health after a pause, until it is well: no session is spent on finding out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import EnvError, EnvLost, unknown
from .breaker import Breaker
from .credits import Credits
from .refusals import Refusals

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class EnvServer:
    """One base URL: is it up, how much may be sent, how many sessions it holds."""

    env: str
    url: str
    credits: Credits
    breaker: Breaker
    sessions: int = 0
    """How many sessions this server holds."""
    opened: int = 0
    """Open sessions that came in by this URL, also those that a process behind it holds."""
    listed: bool = True
    """Whether it is in the map, so may get new sessions. A holder that /reset named is not, ends with its last."""
    no_sessions_until: float = 0.0
    """Loop time. The server refused a session (it is full, or draining) but answers steps."""
    session_refusals: Refusals = field(default_factory=Refusals)
    probing: asyncio.Task | None = None


class EnvUrls:
    def __init__(
        self,
        urls: Mapping[str, str | Sequence[str]],
        *,
        most: int,
        probe: Callable[[EnvServer], Awaitable[None]],
        probe_pause_s: float = 1.0,
    ) -> None:
        """`most`: calls in flight per server. `probe` returns when the server is well, else raises EnvError."""
        self._most, self._probe, self._probe_pause_s = most, probe, probe_pause_s
        self._servers: dict[tuple[str, str], EnvServer] = {}
        self._changed = asyncio.Event()
        for env, given in urls.items():
            for url in _list(given):
                self._add(env, url)

    def __iter__(self):
        return iter(self._servers.values())

    @property
    def known(self) -> set[str]:
        return {s.env for s in self if s.listed}

    def set_urls(self, urls: Mapping[str, str | Sequence[str]]) -> None:
        """The new map, whole. Environments and URLs that it does not name get no new session."""
        wanted = {(env, url) for env, given in urls.items() for url in _list(given)}
        for key, server in list(self._servers.items()):
            if server.listed and key not in wanted:
                log.info("environment %s: %s gets no new session; %d are open", *key, server.sessions)
            server.listed = key in wanted
            self.drop_unused(server)
        for env, url in wanted - self._servers.keys():
            server = self._add(env, url)
            server.breaker.open("it is new and has not said that it is well")
            server.breaker.pause_s = 0.0
            self.watch(server)
        self._notify()

    def check(self, env: str) -> None:
        """Raises ConfigError for an environment without a URL."""
        if env not in self.known:
            raise unknown("env", env, self.known, "Give its server's URL (env.url), or correct the row's env column.")

    async def choose(self, env: str, outage_s: float, room_s: float, avoid: Sequence[EnvServer] = ()) -> EnvServer:
        """The listed server with the fewest sessions that is up and takes new ones; one of `avoid` only when there is
        no other.

        Raises EnvLost when none was up for `outage_s`, TimeoutError when those up took no session for `room_s`."""
        clock = asyncio.get_running_loop().time
        start = clock()
        while True:
            listed = [s for s in self if s.env == env and s.listed]
            up = [s for s in listed if s.breaker.admits]
            if open_now := [s for s in up if s.no_sessions_until <= clock()]:
                return min(open_now, key=lambda s: (s in avoid, s.opened + s.credits.in_flight, random.random()))
            try:
                # Whatever comes first: a server comes up, a full one wants to be asked again, patience ends.
                wake_at = min(start + room_s, *(s.no_sessions_until for s in up)) if up else start + outage_s
                async with asyncio.timeout_at(wake_at):
                    await self._changed.wait()
            except TimeoutError:
                if not up and clock() >= start + outage_s:
                    facts = "; ".join(f"{s.url}: {s.breaker.cause}" for s in listed) or "no URL is left"
                    raise EnvLost(
                        f"Every server of env {env!r} has been down for {outage_s:g} s ({facts}). Start one, or give"
                        " another URL (`openrlhf-tir control`)."
                    ) from None
            if clock() >= start + room_s and up:
                raise TimeoutError

    async def up(self, server: EnvServer, patience_s: float) -> None:
        """Return when `server` admits a call. Raises TimeoutError."""
        if server.breaker.admits:
            return
        async with asyncio.timeout(patience_s):
            while not server.breaker.admits:
                await self._changed.wait()

    def holder(self, env: str, url: str) -> EnvServer:
        """The server of a session; from now on `sessions` of it are counted by the caller."""
        return self._servers.get((env, url)) or self._add(env, url, listed=False)

    def failed(self, server: EnvServer, ticket: int, fact: str) -> None:
        server.breaker.failed(ticket, fact)
        if server.breaker.state == "open":
            self.watch(server)

    def succeeded(self, server: EnvServer, ticket: int) -> None:
        was = server.breaker.state
        server.breaker.succeeded(ticket)
        if server.breaker.state != was:
            log.info("environment %s: %s is in use again", server.env, server.url)
            self._notify()

    def left(self, server: EnvServer, ticket: int, answered: bool) -> None:
        server.breaker.leave(ticket, answered)
        if server.breaker.state == "trial":
            self._notify()

    def watch(self, server: EnvServer) -> None:
        """Ask an open server for its health until it is well."""
        if server.probing is None or server.probing.done():
            log.warning("environment %s: %s is left alone: %s", server.env, server.url, server.breaker.cause)
            server.probing = asyncio.create_task(self._revive(server), name=f"probe {server.url}")

    async def _revive(self, server: EnvServer) -> None:
        while True:
            await asyncio.sleep(server.breaker.pause_s * random.uniform(0.5, 1.0))
            try:
                await self._probe(server)
            except EnvError as e:
                server.breaker.open(str(e))
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
        probing = [s.probing for s in self if s.probing is not None]
        for task in probing:
            task.cancel()
        await asyncio.gather(*probing, return_exceptions=True)

    def _add(self, env: str, url: str, *, listed: bool = True) -> EnvServer:
        server = self._servers[env, url] = EnvServer(
            env, url, Credits(self._most), Breaker(first_pause_s=self._probe_pause_s), listed=listed
        )
        return server

    def _notify(self) -> None:
        """Wake everyone who waits for a server to come up."""
        self._changed.set()
        self._changed = asyncio.Event()


def _list(given: str | Sequence[str]) -> list[str]:
    return [u.strip().rstrip("/") for u in ([given] if isinstance(given, str) else given)]

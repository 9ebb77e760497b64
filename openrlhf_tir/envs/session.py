"""HttpSession: one trajectory's environment. Reset somewhere, step where the session is, close it everywhere it may
have been opened."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from ..errors import EnvError, EnvLost, EnvTimeout, InfraError
from ..protocol import TRAINABLE_OUTCOMES, ResetReply, ResetRequest, StepReply, StepRequest
from .hedge import hedged
from .http import Broken, Full, code_defect
from .urls import EnvServer

if TYPE_CHECKING:
    from .client import EnvClient


class HttpSession:
    """Used by one coroutine. Its id begins with the client's owner, so that a dead client's sessions can be told."""

    def __init__(self, client: EnvClient, env: str, task: dict[str, Any], seed: int) -> None:
        self._client, self._env = client, env
        self._id = f"{client.owner}.{uuid.uuid4().hex}"
        self._request = ResetRequest(task=task, seed=seed, session_id=self._id)
        self._server: EnvServer | None = None
        self._front: EnvServer | None = None
        """The server with whose base URL the session was opened; set together with `_server`."""
        self._asked: list[EnvServer] = []

    @property
    def server(self) -> str | None:
        """Base URL of the process that holds the session."""
        return self._server.url if self._server is not None else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes the session in the background: an episode does not wait for it, and a cancelled one need not."""
        if self._server is not None and self._front is not None:
            self._server.sessions -= 1
            self._front.opened -= 1
            self._client.urls.drop_unused(self._server)
            self._close([self._server])
        else:
            self._close(self._asked)
        self._server, self._asked = None, []

    async def reset(self) -> str:
        """The first observation. Raises EnvError, EnvTimeout, EnvFull."""
        asked = time.time()
        with self._counted():
            front, reply = await hedged(self._open, self._open, self._client.hedge_after_s)
        self._client.stage_times.add(self._env, "start", asked, time.time())
        self._front, self._server = front, self._client.urls.holder(self._env, (reply.server or front.url).rstrip("/"))
        self._server.sessions += 1
        front.opened += 1
        # a lost reply or a slower server may have opened it there as well
        self._close([s for s in self._asked if s is not front])
        return reply.observation

    async def step(self, action: str, *, step_id: int) -> StepReply:
        """Outcome ok or model_error. Raises EnvError, EnvTimeout, EnvFull."""
        if self._server is None:
            raise RuntimeError("step() before reset(): the session is not open.")
        asked = time.time()
        with self._counted():
            reply = await self._step(self._server, action, step_id)
        if reply.reward is not None and (reply.done or reply.truncated):
            self._client.stage_times.add(self._env, "evaluate", asked, time.time())
        self._client.outcomes[self._env, reply.outcome] += 1
        return reply

    async def _open(self) -> tuple[EnvServer, ResetReply]:
        c, clock = self._client, asyncio.get_running_loop().time

        async def send(server: EnvServer, left: float) -> tuple[EnvServer, ResetReply]:
            self._asked.append(server)
            sent = clock()
            try:
                reply = await c.http.send("POST", f"{server.url}/reset", self._request, ResetReply, timeout_s=left)
            except (Full, Broken) as e:
                if e.after_s is None:
                    raise
                # Full, or draining (503 with Retry-After): open sessions go on there, new ones go elsewhere.
                server.session_refusals.refused(sent, clock())
                server.no_sessions_until = clock() + server.session_refusals.pause_s(e.after_s) * random.uniform(
                    0.5, 1.5
                )
                raise Full(e.after_s) from None
            server.session_refusals.taken()
            return server, reply

        return await c.call(
            self._env,
            lambda room: c.urls.choose(self._env, c.outage_timeout_s, room, avoid=self._asked),
            send,
            timeout_s=c.reset_timeout_s,
            ready=lambda s: s.breaker.admits and s.no_sessions_until <= clock(),
        )

    async def _step(self, server: EnvServer, action: str, step_id: int) -> StepReply:
        c = self._client

        async def up(room: float) -> EnvServer:
            try:
                await c.urls.up(server, c.step_timeout_s)
            except TimeoutError:
                raise EnvLost(
                    f"{server.url}, which holds the session, has been down for {c.step_timeout_s:g} s"
                    f" ({server.breaker.cause})."
                ) from None
            return server

        async def send(server: EnvServer, left: float) -> StepReply:
            request = StepRequest(session_id=self._id, step_id=step_id, action=action, deadline_s=left)
            sent = asyncio.get_running_loop().time()

            def once():
                return c.send_step(server.url, request, left + c.grace_s)

            def again():
                c.outcomes[self._env, "hedge"] += 1
                return once()

            try:
                reply = await hedged(once, again, c.hedge_after_s)
            except Full as e:
                server.credits.refused(sent, e.after_s)
                raise
            if reply.outcome == "timeout":  # too many wait there
                server.credits.refused(sent)
            return reply

        reply = await c.call(self._env, up, send, timeout_s=c.step_timeout_s)
        if (reply.session_id, reply.step_id) != (self._id, step_id):
            raise EnvError(
                f"{server.url}/step answered for another step ({reply.session_id}/{reply.step_id}, asked"
                f" {self._id}/{step_id})."
            )
        if reply.outcome in TRAINABLE_OUTCOMES:
            return reply
        if reply.outcome == "timeout":
            at = f" It waits at {reply.signals['waits_at']}." if "waits_at" in reply.signals else ""
            raise EnvTimeout(
                f"{server.url}/step missed its deadline of {c.step_timeout_s:g} s.{at}"
                " Add env workers, or raise env.step_timeout_s."
            )
        if defect := code_defect(self._env, reply.signals):
            raise defect
        raise EnvError(
            f"{server.url}/step failed with outcome {reply.outcome}: {reply.signals.get('error', 'no reason given')}"
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except InfraError as e:
            self._client.outcomes[self._env, e.reason] += 1
            raise

    def _close(self, servers: list[EnvServer]) -> None:
        for url in {s.url for s in servers}:
            self._client.in_background(self._client.http.delete(f"{url}/session/{self._id}"), f"close {self._id}")

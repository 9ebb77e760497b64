"""One trajectory's environment session: opened on some server, stepped where it is, closed wherever it may be open."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from ...errors import EnvError, EnvLost, EnvTimeout, InfraError
from ...protocol import TRAINABLE_OUTCOMES, ResetReply, ResetRequest, StepReply, StepRequest
from .http import EXCERPT_BYTES, ActionTooLong, Broken, Full, InvalidReply, code_defect
from .urls import EnvServer

if TYPE_CHECKING:
    from .client import EnvClient


class HttpSession:
    """A session on an environment server. Used by one coroutine, as an async context manager."""

    def __init__(self, client: EnvClient, env: str, task: dict[str, Any], seed: int) -> None:
        """Prepare a session; `reset` opens it.

        Args:
            client: Where it is opened.
            env: The environment.
            task: What the environment is told of the row.
            seed: Seed of the session.
        """
        self._client = client
        self._env = env
        self._limits = client.limits_of(env)
        # The owner comes first, so that the sessions of a client that died can be closed by prefix.
        self._id = f"{client.owner}.{uuid.uuid4().hex}"
        self._request = ResetRequest(task=task, seed=seed, session_id=self._id)
        self._server: EnvServer | None = None
        """The process that holds the session."""
        self._front: EnvServer | None = None
        """The server at whose base URL the session was opened. It may have several processes behind it."""
        self._tried: list[EnvServer] = []
        """Servers that got a reset request."""

    @property
    def server(self) -> str | None:
        """Base URL of the process that holds the session."""
        return self._server.url if self._server is not None else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the session in the background: an episode does not wait for it, and a cancelled one could not."""
        if self._server is not None and self._front is not None:
            self._server.sessions -= 1
            self._front.opened -= 1
            self._client.urls.drop_unused(self._server)
            self._close([self._server])
        else:
            self._close(self._tried)
        self._server = None
        self._tried = []

    async def reset(self) -> str:
        """Open the session and return the first observation.

        Raises:
            TaskRefused: The server can make no episode of this row.
            EnvironmentCodeError: The environment's own code failed; file and line are in the message.
            EnvError: The environment failed, or no server is up.
            EnvTimeout: The deadline passed.
            EnvFull: There was no room.
        """
        started = time.time()
        with self._counting_faults():
            front, reply = await self._open()
        self._client.stage_times.add(self._env, "start", started, time.time())
        self._front = front
        self._server = self._client.urls.holder(self._env, (reply.server or front.url).rstrip("/"))
        self._server.sessions += 1
        front.opened += 1
        # A reply may have been lost: the session may be open there as well.
        self._close([server for server in self._tried if server is not front])
        return reply.observation

    async def step(self, action: str, *, step_id: int) -> StepReply:
        """Execute an action and return the reply, whose outcome is ok or model_error.

        Args:
            action: The action.
            step_id: Number of the step. The server executes a number once and repeats its reply.

        Raises:
            EnvLost: Four exchanges in a row broke, which takes about a second; or the server, left alone after
                failures, was not well again by the deadline; or it does not know the session any more.
            EnvironmentCodeError: The environment's own code failed; file and line are in the message.
            EnvError: The environment failed, or its reply is not valid.
            EnvTimeout: The deadline passed.
            EnvFull: There was no room.
            RuntimeError: The session was not opened by `reset`.
        """
        if self._server is None:
            raise RuntimeError("step() before reset(): the session is not open.")
        started = time.time()
        with self._counting_faults():
            reply = await self._step(self._server, action, step_id)
        if reply.reward is not None and (reply.done or reply.truncated):
            self._client.stage_times.add(self._env, "evaluate", started, time.time())
        self._client.outcomes[self._env, reply.outcome] += 1
        return reply

    async def _open(self) -> tuple[EnvServer, ResetReply]:
        client = self._client
        clock = asyncio.get_running_loop().time

        async def send(server: EnvServer, remaining_s: float) -> tuple[EnvServer, ResetReply]:
            self._tried.append(server)
            sent_at = clock()
            url = f"{server.url}/reset"
            try:
                reply = await client.http.send("POST", url, self._request, ResetReply, timeout_s=remaining_s)
            except (Full, Broken) as e:
                if e.after_s is None:
                    raise
                # Full, or draining (503 with Retry-After): open sessions go on there, new ones go elsewhere.
                server.session_refusals.refused(sent_at, clock())
                pause_s = server.session_refusals.pause_s(e.after_s)
                server.no_sessions_until = clock() + pause_s * random.uniform(0.5, 1.5)
                raise Full(e.after_s) from None
            server.session_refusals.taken()
            if reply.server and not reply.server.startswith(("http://", "https://")):
                raise InvalidReply(f"{url} names {reply.server[:EXCERPT_BYTES]!r} as its server, which is not a URL.")
            return server, reply

        return await client.call(
            self._env,
            lambda room_s: client.urls.choose(self._env, client.outage_timeout_s, room_s, avoid=self._tried),
            send,
            timeout_s=self._limits.reset_timeout_s,
            ready=lambda server: server.breaker.admits and server.no_sessions_until <= clock(),
        )

    async def _step(self, server: EnvServer, action: str, step_id: int) -> StepReply:
        client = self._client

        async def wait_until_up(room_s: float) -> EnvServer:
            try:
                await client.urls.up(server, self._limits.step_timeout_s)
            except TimeoutError:
                raise EnvLost(
                    f"{server.url}, which holds the session, has been down for {self._limits.step_timeout_s:g} s"
                    f" ({server.breaker.cause})."
                ) from None
            return server

        async def send(server: EnvServer, remaining_s: float) -> StepReply:
            request = StepRequest(session_id=self._id, step_id=step_id, action=action, deadline_s=remaining_s)
            sent_at = asyncio.get_running_loop().time()
            try:
                reply = await client.batches.send(server.url, request, remaining_s + client.grace_s)
            except Full as e:
                server.credits.refused(sent_at, e.after_s)
                raise
            if reply.outcome == "timeout":  # too many calls wait there
                server.credits.refused(sent_at)
            return reply

        try:
            reply = await client.call(self._env, wait_until_up, send, timeout_s=self._limits.step_timeout_s)
        except ActionTooLong:
            return StepReply(
                session_id=self._id,
                step_id=step_id,
                observation="The action is too long. Nothing was run.",
                outcome="model_error",
                signals={"error_type": "malformed_call", "defect": "too_long"},
            )
        if (reply.session_id, reply.step_id) != (self._id, step_id):
            raise EnvError(
                f"{server.url}/step answered for another step ({reply.session_id}/{reply.step_id} instead of"
                f" {self._id}/{step_id})."
            )
        if reply.outcome in TRAINABLE_OUTCOMES:
            return reply
        if reply.outcome == "timeout":
            location = f" It waits at {reply.signals['waits_at']}." if "waits_at" in reply.signals else ""
            raise EnvTimeout(
                f"{server.url}/step missed its deadline of {self._limits.step_timeout_s:g} s.{location}"
                " Add env workers, or raise env.step_timeout_s."
            )
        defect = code_defect(self._env, reply.signals)
        if defect:
            raise defect
        raise EnvError(
            f"{server.url}/step failed with outcome {reply.outcome}: {reply.signals.get('error', 'no reason given')}"
        )

    @contextmanager
    def _counting_faults(self) -> Iterator[None]:
        """Count an infrastructure fault that is raised in this block."""
        try:
            yield
        except InfraError as e:
            self._client.outcomes[self._env, e.reason] += 1
            raise

    def _close(self, servers: list[EnvServer]) -> None:
        for url in {server.url for server in servers}:
            self._client.in_background(self._client.http.delete(f"{url}/session/{self._id}"), f"close {self._id}")

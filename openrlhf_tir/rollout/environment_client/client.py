"""The trainer's side of the environment protocol. Only replies that can be trained are returned; faults are exceptions.

    async with client.session("python_tir", task, seed=1) as env:
        text = await env.reset()
        reply = await env.step(code, step_id=0)         outcome ok or model_error

A rollout actor has one client for its whole life. What happens to a call:

    no server is up             It waits: a new session for `outage_timeout_s`, a step until its deadline (urls,
                                breaker).
    no room                     It waits for a credit (credits), also after 429 and outcome capacity, for at most
                                `capacity_timeout_s` in all. Its deadline does not run meanwhile. Then: EnvFull.
    broken connection, 5xx      It is sent again with the same ids, which the server executes once only, up to
                                `max_retries` times with growing pauses. Then: EnvLost (no connection), EnvError (5xx).
                                A 5xx with Retry-After at /reset is a server without room (above).
    the session's server is     down until the deadline, or was restarted (404): EnvLost.
    the row is refused          422 at /reset: TaskRefused.
    outcome timeout, deadline   EnvTimeout, also after 504: the server gave up a reset.
    the environment's code      code_defect in a step's signals or in a 500: EnvironmentCodeError, not tried again.
    the action is too long      413 at /step: a reply with outcome model_error. What a model writes is no fault.
    everything else             EnvError with URL and fact: outcome env_error, a body that is not the protocol's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from ...config import Env
from ...config.environments import Environment, entry_of
from ...errors import EnvError, EnvFull, EnvLost, EnvTimeout, InfraError
from ...protocol import CODE_DEFECT, TRAINABLE_OUTCOMES, EnvSchema, Health, StepReply, StepRequest
from ...waiting.backoff import backoff_s, jittered
from .http import CONNECT_TIMEOUT_S, Broken, EnvHttp, Full, InvalidReply, Unreachable
from .session import HttpSession
from .stage_times import StageTimes
from .step_batches import StepBatches
from .urls import EnvServer, EnvUrls

T = TypeVar("T")
Urls = Mapping[str, str | Sequence[str]]
"""Environment -> base URL of its server, or several."""
MAX_PAUSE_S = 5.0
"""Largest pause before a call is sent again, in seconds."""
CAPACITY_TIMEOUT_S = 300.0
"""How long a call waits for room. Full servers are ordinary load; none that makes progress is full for minutes, unless
one call may take as long (env.step_timeout_s)."""
OUTAGE_TIMEOUT_S = 120.0
"""How long a new session waits while all servers are down: a server that is started again is up by then, and the groups
of one that stays down are issued again, at first with a pause."""
MAX_RETRIES = 3
"""How often a call is sent again after a broken exchange. A fourth break in a row within a second is an outage."""


@dataclass(frozen=True, slots=True)
class EnvLimits:
    """How the servers of one environment are called.

    Attributes:
        max_concurrency: Calls in flight per server at most.
        step_timeout_s: Deadline of a step in seconds.
        reset_timeout_s: Deadline of a reset in seconds.
        capacity_timeout_s: Seconds that a call waits for room.
        serves: What the servers call the environment; None: by its name.
    """

    max_concurrency: int = 256
    step_timeout_s: float = 20.0
    reset_timeout_s: float = 60.0
    capacity_timeout_s: float = CAPACITY_TIMEOUT_S
    serves: str | None = None

    @classmethod
    def of(cls, settings: Env, serves: str | None = None) -> EnvLimits:
        """Return the limits that the environment's section describes."""
        return cls(
            settings.max_concurrency,
            settings.step_timeout_s,
            settings.reset_timeout_s,
            max(CAPACITY_TIMEOUT_S, settings.step_timeout_s),
            serves,
        )


class EnvClient:
    """Opens sessions on the servers of all environments, and survives the servers' faults.

    Attributes:
        limits: Environment -> how its servers are called. A single entry counts for every environment.
        urls: The servers.
        http: The connections.
        stage_times: When sessions were being started and evaluated.
        batches: What sends steps.
        outcomes: (environment, outcome or reason of the fault) -> number of calls; also "retry", "refused".
    """

    def __init__(
        self,
        urls: Urls,
        *,
        limits: Mapping[str, EnvLimits] | None = None,
        token: str | None = None,
        owner: str = "",
        outage_timeout_s: float = OUTAGE_TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        backoff_s: float = 0.1,
        grace_s: float = 2.0,
        probe_pause_s: float = 1.0,
    ) -> None:
        """Create a client without connections.

        Args:
            urls: Environment -> base URL, or several among which sessions are spread.
            limits: Environment -> how its servers are called; by default all alike.
            token: Bearer token of the servers.
            owner: Prefix of every session's id, by which others can close the sessions of a process that was killed.
            outage_timeout_s: Seconds that a new session waits for a server.
            max_retries: How often a call is sent again after a broken exchange.
            backoff_s: First pause before that, in seconds.
            grace_s: Seconds beyond its deadline for which a step is waited for: the server's own "timeout" says more
                than a cut connection.
            probe_pause_s: Seconds before the first health check of a server that failed; doubled each time.
        """
        self.limits = limits or {"": EnvLimits()}
        self.max_retries = max_retries
        self.outage_timeout_s = outage_timeout_s
        self.backoff_s = backoff_s
        self.grace_s = grace_s
        self.owner = owner or uuid.uuid4().hex[:8]
        self.http = EnvHttp(token)
        self.stage_times = StageTimes()
        self.urls = EnvUrls(
            urls,
            max_calls=lambda env: self.limits_of(env).max_concurrency,
            probe=self._probe,
            probe_pause_s=probe_pause_s,
        )
        self.batches = StepBatches(self._schema_of, self._post_step, self.http.step_batch)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._background: set[asyncio.Task[None]] = set()

    @classmethod
    def of(
        cls, environments: Mapping[str, Environment], urls: Urls, *, token: str | None = None, owner: str = ""
    ) -> EnvClient:
        """Return the client of a run with these environments."""
        limits = {name: EnvLimits.of(environment.env, environment.serves) for name, environment in environments.items()}
        return cls(urls, limits=limits, token=token, owner=owner)

    def limits_of(self, env: str) -> EnvLimits:
        """Return how the servers of an environment are called."""
        return entry_of(self.limits, env)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for sessions that are being closed, then close the connections."""
        await self.urls.close()
        self.batches.close()
        while self._background:
            await asyncio.wait(self._background)
        await self.http.close()

    def session(self, env: str, task: Mapping[str, Any], *, seed: int = 0) -> HttpSession:
        """Return a session as an async context manager, which closes it on exit.

        Args:
            env: The environment.
            task: What the environment is told of the row.
            seed: Seed of the session.

        Raises:
            ConfigError: The environment has no URL.
        """
        self.urls.check(env)
        return HttpSession(self, env, dict(task), seed)

    def set_urls(self, urls: Urls) -> None:
        """Replace the map of servers: new ones get sessions once they are healthy, open sessions end where they are."""
        self.urls.set_urls(urls)

    @property
    def servers(self) -> list[str]:
        """Every base URL that may hold one of this client's sessions, processes behind a front port included."""
        return sorted({server.url for server in self.urls})

    def stats(self) -> dict[str, float]:
        """Return figures for /metrics: sessions/ENV, in_flight/ENV, waiting/ENV, down/ENV and calls/ENV/OUTCOME."""
        counts: Counter[str] = Counter()
        for server in self.urls:
            counts[f"sessions/{server.env}"] += server.sessions
            counts[f"in_flight/{server.env}"] += server.credits.in_flight
            counts[f"waiting/{server.env}"] += server.credits.waiting
            counts[f"down/{server.env}"] += server.breaker.state != "closed"
        for (env, outcome), calls in self.outcomes.items():
            counts[f"calls/{env}/{outcome}"] = calls
        return {name: float(count) for name, count in counts.items()}

    async def call(
        self,
        env: str,
        choose: Callable[[float], Awaitable[EnvServer]],
        send: Callable[[EnvServer, float], Awaitable[T]],
        *,
        timeout_s: float,
        ready: Callable[[EnvServer], bool] = lambda server: server.breaker.admits,
    ) -> T:
        """Send a call until there is an answer.

        Args:
            env: The environment.
            choose: Waits for a server that is `ready`, for at most the given seconds; raises TimeoutError after them.
            send: One attempt at a server, with its deadline in seconds.
            timeout_s: Deadline of the call in seconds. It runs only while a server works on the call.
            ready: True if the server still takes the call once there is a credit for it.

        Raises:
            EnvError: The exchange broke too often, or the environment failed.
            EnvironmentCodeError: The environment's own code failed.
            EnvTimeout: The deadline passed.
            EnvFull: There was no room for `capacity_timeout_s`.
        """
        clock = asyncio.get_running_loop().time
        remaining_s = timeout_s
        failures = 0
        capacity_timeout_s = self.limits_of(env).capacity_timeout_s
        capacity_deadline = clock() + capacity_timeout_s
        while True:
            try:
                server = await choose(capacity_deadline - clock())
                await server.credits.acquire(capacity_deadline - clock())
            except TimeoutError:
                raise EnvFull(
                    f"Env {env!r} had no room for {capacity_timeout_s:g} s."
                    " Add env workers or servers, lower rollout.batch_size, or raise env.step_timeout_s beyond that."
                ) from None
            if not ready(server):
                server.credits.release()
                continue
            sent_at = clock()
            try:
                return await self._attempt(server, send, remaining_s)
            except Full:  # `choose` and the credits know for how long to wait
                self.outcomes[server.env, "refused"] += 1
            except Broken as e:
                failures += 1
                if failures > self.max_retries:
                    lost: type[EnvError] = EnvLost if isinstance(e, Unreachable) else EnvError
                    raise lost(
                        f"{server.url} failed {failures} times, the last time with: {e.fact}. Is the server alive?"
                    ) from None
                # Jitter, so that actors which failed together do not come back together.
                await asyncio.sleep(jittered(backoff_s(failures - 1, first_s=self.backoff_s, cap_s=MAX_PAUSE_S)))
                remaining_s -= clock() - sent_at
                if remaining_s <= 0:
                    late: type[InfraError] = EnvLost if isinstance(e, Unreachable) else EnvTimeout
                    raise late(
                        f"{server.url} did not answer within {timeout_s:g} s; the last fault: {e.fact}."
                        " Is the server alive?"
                    ) from None
                self.outcomes[server.env, "retry"] += 1

    async def _attempt(
        self, server: EnvServer, send: Callable[[EnvServer, float], Awaitable[T]], remaining_s: float
    ) -> T:
        """Make one attempt, for which the caller has acquired a credit. Tell breaker and credits how it went."""
        ticket = server.breaker.enter()
        answered = False
        try:
            reply = await send(server, remaining_s)
            answered = True
            step = reply if isinstance(reply, StepReply) else None
            if step is None or step.outcome != "timeout":
                server.credits.answered()
            if step is None:
                return reply
            if step.outcome == "env_error" and CODE_DEFECT not in step.signals:
                self.urls.failed(server, ticket, f"outcome env_error: {step.signals.get('error', 'no reason given')}")
            elif step.outcome in TRAINABLE_OUTCOMES or CODE_DEFECT in step.signals:
                self.urls.succeeded(server, ticket)
            return reply
        except (Broken, InvalidReply, EnvTimeout) as e:
            self.urls.failed(server, ticket, str(e))
            raise
        finally:
            self.urls.left(server, ticket, answered)
            server.credits.release()

    async def _schema_of(self, server: str) -> EnvSchema:
        return await self.http.send("GET", f"{server}/schema", None, EnvSchema, timeout_s=CONNECT_TIMEOUT_S)

    async def _post_step(self, server: str, request: StepRequest, timeout_s: float) -> StepReply:
        return await self.http.send("POST", f"{server}/step", request, StepReply, timeout_s=timeout_s)

    async def _probe(self, server: EnvServer) -> None:
        """Check a server's health.

        Raises:
            EnvError: It is not healthy, serves another environment, or drains.
        """
        try:
            health = await self.http.send("GET", f"{server.url}/health", None, Health, timeout_s=CONNECT_TIMEOUT_S)
        except (Broken, Full, EnvTimeout) as e:
            raise EnvError(f"/health: {e}") from None
        if health.env != (self.limits_of(server.env).serves or server.env):
            raise EnvError(f"it is env {health.env!r}")
        if health.status == "draining" and server.listed:
            raise EnvError("it is draining")

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` to its end even if the caller is cancelled. `close` waits for it."""
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

"""EnvClient: the trainer's side of the environment protocol. Only trainable replies come back; every fault is an
exception.

    async with client.session("python_tir", task, seed=1) as env:
        text = await env.reset()
        reply = await env.step(code, step_id=0)         outcome ok or model_error

One client per rollout actor, for its whole life. What happens to a call:

    no server is up             waits, a session for `outage_timeout_s`, a step until its deadline     (urls, breaker)
    no room                     waits for a credit, 429 and outcome capacity included, `capacity_timeout_s` in all; the
                                deadline does not run meanwhile; then EnvFull                          (credits)
    broken connection, 5xx      sent again with the same ids (the server runs an id once), `max_retries` times, backing
                                off; then EnvLost (no connection), EnvError (5xx)
    the session's server        down until the deadline, or restarted (404): EnvLost
    outcome timeout, deadline   EnvTimeout
    everything else             EnvError with URL and fact: env_error, lost session, a body that is not the protocol's
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

from ..backoff import backoff_s, jittered
from ..config import Env
from ..errors import EnvError, EnvFull, EnvLost, EnvTimeout, InfraError
from ..protocol import TRAINABLE_OUTCOMES, EnvSchema, Health, StepReply, StepRequest
from .http import CODE_DEFECT, CONNECT_TIMEOUT_S, Broken, EnvHttp, EnvNonsense, Full, Unreachable
from .session import HttpSession
from .stage_times import StageTimes
from .step_batches import StepBatches
from .urls import EnvServer, EnvUrls

log = logging.getLogger(__name__)
T = TypeVar("T")
Urls = Mapping[str, str | Sequence[str]]
MAX_PAUSE_S = 5.0


class EnvClient:
    def __init__(
        self,
        urls: Urls,
        *,
        token: str | None = None,
        owner: str = "",
        max_concurrency: int = 256,
        step_timeout_s: float = 20.0,
        reset_timeout_s: float = 60.0,
        capacity_timeout_s: float = 300.0,
        outage_timeout_s: float = 120.0,
        hedge_after_s: float | None = None,
        max_retries: int = 3,
        backoff_s: float = 0.1,
        grace_s: float = 2.0,
        probe_pause_s: float = 1.0,
        serves: str | None = None,
    ) -> None:
        """`urls`: environment -> base URL, or several among which sessions are spread.

        `serves` is what the servers call the environment, where that is not the name in `urls`.

        `owner` begins every session's id, so that others can close what this process leaves behind when it is killed.
        `grace_s` is how much longer than its deadline a step is waited for: the server's own "timeout" says more than a
        cut connection. `probe_pause_s` is how long a server that failed is left alone before it is asked for its
        health; doubled each time."""
        self.step_timeout_s, self.reset_timeout_s, self.max_retries = step_timeout_s, reset_timeout_s, max_retries
        self.capacity_timeout_s, self.outage_timeout_s = capacity_timeout_s, outage_timeout_s
        self.hedge_after_s = hedge_after_s
        self.backoff_s, self.grace_s, self.owner = backoff_s, grace_s, owner or uuid.uuid4().hex[:8]
        self.serves = serves
        self.http = EnvHttp(token)
        self.stage_times = StageTimes()
        self.urls = EnvUrls(urls, most=max_concurrency, probe=self._probe, probe_pause_s=probe_pause_s)
        self.send_step: Callable[[str, StepRequest, float], Awaitable[StepReply]] = self._post_step
        """(base URL, request, seconds to wait) -> reply; batching may take its place. Raises as EnvHttp does."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """(environment, ok | model_error | env_error | timeout | capacity) -> calls that ended so; also `retry`,
        `refused`, `hedge`."""
        self._background: set[asyncio.Task] = set()

    @classmethod
    def of(
        cls, cfg: Env, urls: Urls, *, token: str | None = None, owner: str = "", serves: str | None = None
    ) -> EnvClient:
        """The client that the configuration describes."""
        same = (
            "max_concurrency",
            "step_timeout_s",
            "reset_timeout_s",
            "capacity_timeout_s",
            "outage_timeout_s",
            "hedge_after_s",
            "max_retries",
        )
        client = cls(urls, token=token, owner=owner, serves=serves, **{name: getattr(cfg, name) for name in same})
        client.send_step = StepBatches(
            client.check,
            client.send_step,
            client.http.step_batch,
            max_batch=cfg.max_batch,
            max_wait_ms=cfg.batch_wait_ms,
        )
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for sessions that are being closed, then closes the connections."""
        await self.urls.close()
        while self._background:
            await asyncio.wait(self._background)
        await self.http.close()

    def session(self, env: str, task: Mapping[str, Any], *, seed: int = 0) -> HttpSession:
        """An async context manager; leaving closes the session. Raises ConfigError for an environment without a URL."""
        self.urls.check(env)
        return HttpSession(self, env, dict(task), seed)

    def set_urls(self, urls: Urls) -> None:
        """Swap the map: new sessions go to its servers once they are healthy, open ones end where they are."""
        self.urls.set_urls(urls)

    @property
    def servers(self) -> list[str]:
        """Every base URL that may hold a session of ours, processes behind a front port included."""
        return sorted({s.url for s in self.urls})

    def stats(self) -> dict[str, float]:
        """For /metrics: `sessions/ENV`, `in_flight/ENV`, `waiting/ENV`, `down/ENV`, `calls/ENV/OUTCOME`."""
        figures: Counter[str] = Counter()
        for s in self.urls:
            figures[f"sessions/{s.env}"] += s.sessions
            figures[f"in_flight/{s.env}"] += s.credits.in_flight
            figures[f"waiting/{s.env}"] += s.credits.waiting
            figures[f"down/{s.env}"] += s.breaker.state != "closed"
        return {name: float(n) for name, n in figures.items()} | {
            f"calls/{env}/{what}": float(n) for (env, what), n in self.outcomes.items()
        }

    async def check(self, url: str) -> EnvSchema:
        """What the server at `url` is. Raises EnvError with a remedy when none answers."""
        url = url.rstrip("/")
        try:
            return await self.http.send("GET", f"{url}/schema", None, EnvSchema, timeout_s=CONNECT_TIMEOUT_S)
        except (Broken, Full, EnvTimeout) as e:
            raise EnvError(
                f"No environment server answers at {url} ({e})."
                " Start one (`python -m env_servers.python_tir`), or correct env.url."
            ) from None

    async def call(
        self,
        env: str,
        choose: Callable[[float], Awaitable[EnvServer]],
        send: Callable[[EnvServer, float], Awaitable[T]],
        *,
        timeout_s: float,
        ready: Callable[[EnvServer], bool] = lambda server: server.breaker.admits,
    ) -> T:
        """Send until there is an answer. Raises EnvError, EnvTimeout, EnvFull.

        `choose(seconds)` gives a server that is `ready`, and raises TimeoutError when for so long there was none with
        room; `send(server, seconds)` is one attempt and its deadline, which runs only while a server works on the call.
        """
        clock = asyncio.get_running_loop().time
        left, failures, give_up = timeout_s, 0, clock() + self.capacity_timeout_s
        while True:
            try:
                server = await choose(give_up - clock())
                await server.credits.acquire(give_up - clock())
            except TimeoutError:
                raise EnvFull(
                    f"Env {env!r} had no room for {self.capacity_timeout_s:g} s."
                    " Add env workers, or raise env.capacity_timeout_s."
                ) from None
            if not ready(server):
                server.credits.release()
                continue
            sent = clock()
            try:
                return await self._attempt(server, send, left)
            except Full:  # `choose` and the credits know until when
                self.outcomes[server.env, "refused"] += 1
            except Broken as e:
                failures += 1
                if failures > self.max_retries:
                    lost: type[EnvError] = EnvLost if isinstance(e, Unreachable) else EnvError
                    raise lost(
                        f"{server.url} failed {failures} times, the last time with: {e.fact}. Is the server alive?"
                    ) from None
                # Jitter, so that a fleet that failed together does not come back together.
                await asyncio.sleep(jittered(backoff_s(failures - 1, first_s=self.backoff_s, cap_s=MAX_PAUSE_S)))
                left -= clock() - sent
                if left <= 0:
                    late: type[InfraError] = EnvLost if isinstance(e, Unreachable) else EnvTimeout
                    raise late(
                        f"{server.url} gave no answer within {timeout_s:g} s; the last fault: {e.fact}."
                        " Is the server alive?"
                    ) from None
                self.outcomes[server.env, "retry"] += 1

    async def _attempt(self, server: EnvServer, send: Callable[[EnvServer, float], Awaitable[T]], left: float) -> T:
        """One attempt with a credit in hand, which is given back; breaker and credits learn how it went."""
        ticket, answered = server.breaker.enter(), False
        try:
            reply = await send(server, left)
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
        except (Broken, EnvNonsense, EnvTimeout) as e:
            self.urls.failed(server, ticket, str(e))
            raise
        finally:
            self.urls.left(server, ticket, answered)
            server.credits.release()

    async def _post_step(self, server: str, request: StepRequest, timeout_s: float) -> StepReply:
        return await self.http.send("POST", f"{server}/step", request, StepReply, timeout_s=timeout_s)

    async def _probe(self, server: EnvServer) -> None:
        try:
            health = await self.http.send("GET", f"{server.url}/health", None, Health, timeout_s=CONNECT_TIMEOUT_S)
        except (Broken, Full, EnvTimeout) as e:
            raise EnvError(f"/health: {e}") from None
        if health.env != (self.serves or server.env):
            raise EnvError(f"it is env {health.env!r}")
        if health.status == "draining" and server.listed:
            raise EnvError("it is draining")

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run to its end even when the caller is cancelled; `close` waits for it."""
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

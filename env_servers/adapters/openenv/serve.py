"""python -m env_servers.adapters.openenv.serve --url URL: serve one of our environment servers as an OpenEnv
environment.

    OpenEnv client --ws--> Environment (one per connection) --/reset, /step--> the server at URL

An action is {"action": text}; an observation {"text", "outcome", "signals", "truncated"}. `reset(task={...}, seed=7)`
takes a row's task. The outcomes env_error and timeout, and a full server, are errors for the client, never
observations.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import aiohttp
from pydantic import ValidationError

from env_servers.adapters.http import Pool
from env_servers.adapters.packages import required
from env_servers.flags import call_seconds, command_parser
from env_servers.launch import TOKEN_ENV
from openrlhf_tir.errors import EnvError
from openrlhf_tir.http_guard.origin import OwnOrigin
from openrlhf_tir.protocol import TRAINABLE_OUTCOMES, ResetReply, StepReply

Wire = TypeVar("Wire", ResetReply, StepReply)


class Bridge:
    """One episode on one of our servers, by plain HTTP."""

    def __init__(self, http: Callable[[], aiohttp.ClientSession], url: str, timeout_s: float) -> None:
        self._http = http
        self._front_url = url
        self._timeout_s = timeout_s
        self._url = url
        """URL of the process that holds the session."""
        self.session: str | None = None
        self.steps = 0

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """End the last episode and start another. Raises EnvError."""
        await self.end()
        # set before the reply: if that comes too late, the session must still be closed
        self._url = self._front_url
        self.session = uuid.uuid4().hex
        self.steps = 0
        try:
            reply = await self._post("/reset", {"task": task, "seed": seed, "session_id": self.session}, ResetReply)
        except BaseException:
            await self.end()
            raise
        self._url = reply.server or self._front_url
        return reply.observation

    async def step(self, action: str) -> StepReply:
        """Take one step. Raises EnvError for an outcome that is not an observation."""
        if self.session is None:
            raise EnvError("step before reset: there is no episode.")
        body = {"session_id": self.session, "step_id": self.steps, "action": action, "deadline_s": self._timeout_s}
        reply = await self._post("/step", body, StepReply)
        self.steps += 1
        if reply.outcome not in TRAINABLE_OUTCOMES:
            raise EnvError(f"{reply.outcome}: {reply.signals.get('error', 'the environment gives no observation')}")
        return reply

    async def _post(self, path: str, body: dict[str, Any], kind: type[Wire]) -> Wire:
        try:
            async with self._http().post(
                self._url + path,
                json=body,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s + 5),
                allow_redirects=False,
            ) as r:
                if r.status != 200:
                    text = await r.text(errors="replace")
                    raise EnvError(f"{self._url}{path}: HTTP {r.status}: {text[:500]}")
                return kind.model_validate_json(await r.read())
        except ValidationError as e:  # OpenEnv would report a ValidationError as an error of the action
            raise EnvError(
                f"{self._url}{path} sent no valid {kind.__name__}: {e.errors(include_url=False)[0]['msg']}."
                " Does this server speak the protocol?"
            ) from e
        except (aiohttp.ClientError, TimeoutError) as e:
            raise EnvError(f"{self._url}{path}: {type(e).__name__}: {e}") from e

    async def end(self) -> None:
        """Close the session. If it cannot be closed, it expires on the server."""
        session = self.session
        self.session = None
        if session is not None:
            try:
                async with self._http().delete(
                    f"{self._url}/session/{session}", timeout=aiohttp.ClientTimeout(total=5)
                ):
                    pass
            except (aiohttp.ClientError, TimeoutError):
                return


def create_openenv_app(
    url: str, *, token: str | None, timeout_s: float, max_sessions: int, allowed_origins: Collection[str] = ()
) -> Any:
    """Return the package's FastAPI app around the server at `url`.

    Args:
        url: URL of our server.
        token: Bearer token of our server.
        timeout_s: Deadline of one step.
        max_sessions: Number of connections.
        allowed_origins: Origins whose web pages may connect. The app has no token of its own, and acts with the
            server's.
    """
    import asyncio

    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from pydantic import Field

    class TirAction(Action):
        action: str = Field(description="what the environment calls an action: see its /schema")

    class TirObservation(Observation):
        text: str = ""
        outcome: str = "ok"
        truncated: bool = False
        signals: dict[str, Any] = Field(default_factory=dict)

    pool = Pool({"Authorization": f"Bearer {token}"} if token else {})

    class TirEnvironment(Environment[TirAction, TirObservation, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.bridge = Bridge(pool, url, timeout_s)
            self.loop: asyncio.AbstractEventLoop | None = None

        async def reset_async(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            task: dict[str, Any] | None = None,
            **more: Any,
        ) -> TirObservation:
            self.loop = asyncio.get_running_loop()
            return TirObservation(text=await self.bridge.reset(task or {}, seed or 0))

        async def step_async(self, action: TirAction, timeout_s: float | None = None, **more: Any) -> TirObservation:
            r = await self.bridge.step(action.action)
            over = r.done or r.truncated
            return TirObservation(
                text=r.observation,
                outcome=r.outcome,
                truncated=r.truncated,
                signals=r.signals,
                reward=r.reward,
                done=over,
            )

        def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> TirObservation:
            raise RuntimeError("Use the WebSocket: over plain HTTP no episode is kept from one request to the next.")

        def step(self, action: TirAction, timeout_s: float | None = None, **more: Any) -> TirObservation:
            raise RuntimeError("Use the WebSocket: over plain HTTP no episode is kept from one request to the next.")

        @property
        def state(self) -> State:
            return State(episode_id=self.bridge.session, step_count=self.bridge.steps)

        def close(self) -> None:
            """Close the session. The package calls this in a thread, while the event loop runs."""
            if self.loop is not None and self.bridge.session is not None:
                asyncio.run_coroutine_threadsafe(self.bridge.end(), self.loop).result(10)

    app = create_fastapi_app(TirEnvironment, TirAction, TirObservation, max_concurrent_envs=max_sessions)
    app.router.on_shutdown.append(pool.close)
    app.add_middleware(OwnOrigin, allowed=allowed_origins)
    return app


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.openenv.serve", __doc__)
    p.add_argument(
        "--url", required=True, help=f"base URL of an environment server of ours; ${TOKEN_ENV} is its bearer token"
    )
    p.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (default: %(default)s)")
    p.add_argument(
        "--step-timeout",
        type=call_seconds,
        default=60.0,
        metavar="S",
        help="deadline of one step (default: %(default)s)",
    )
    p.add_argument(
        "--max-sessions",
        type=int,
        default=256,
        metavar="N",
        help="open connections; more are refused as OpenEnv does (default: %(default)s)",
    )
    p.add_argument(
        "--allow-origin",
        nargs="*",
        default=[],
        metavar="ORIGIN",
        help="web pages that may connect, e.g. http://127.0.0.1:3000 (default: none; programs always may)",
    )
    return p


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    required("openenv.core.env_server", "openenv")
    import uvicorn

    app = create_openenv_app(
        args.url.rstrip("/"),
        token=os.environ.get(TOKEN_ENV),
        timeout_s=args.step_timeout,
        max_sessions=args.max_sessions,
        allowed_origins=args.allow_origin,
    )
    print(
        f"{args.url} is served as an OpenEnv environment at http://127.0.0.1:{args.port}", file=sys.stderr, flush=True
    )
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()

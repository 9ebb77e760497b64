"""Agent: takes a run's tasks from its rollout actors, has each rolled out, and says how it ended. Ends when the run
has.

    RUN_DIR/endpoints/rollout-N --> POST /agent/tasks --> Rollouts.run(base_url, row) --> POST /sessions/{id}/reward

Actors come and go: every worker looks anew which there are. A task whose actor is gone is nobody's any more; the run
issues it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

TOKEN_ENV = "TIR_ROLLOUT_TOKEN"
WAIT_S = 30.0
"""How long an actor holds a request for a task before it says that there is none."""
REPLY_S = 60.0
"""Added to it, and the reward's deadline: an actor waits up to 30 s for requests that are still being answered."""
START_S = 24 * 3600.0
"""How long the first rollout actor may take to come, unless it is said otherwise."""
LOOK_S = 1.0
"""Between two looks at the directory where none, or one that is gone, was found."""
log = logging.getLogger(__name__)

Run = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""(the session's OpenAI base URL, key, row) -> how it ends."""


class Agent:
    """Rolls out the tasks of one run, with `workers` at once.

    Args:
        run_dir: The run's directory, whose `endpoints` lists its rollout actors.
        run: Rolls out one task.
        gone_s: A run whose actors have been gone for so long is over.
        rollout_s: A rollout that takes longer has failed.
        start_s: How long the first actor may take to come. A run that waits for a cluster, loads a large model and
            measures the base model takes its time; by default longer than any `train.start_wait_s` that is in use.
    """

    def __init__(
        self,
        run_dir: Path,
        run: Run,
        *,
        workers: int,
        gone_s: float,
        rollout_s: float,
        start_s: float = START_S,
    ) -> None:
        self._endpoints = run_dir / "endpoints"
        self._run = run
        self._workers = workers
        self._gone_s = gone_s
        self._rollout_s = rollout_s
        self._start_s = start_s
        self.ended: dict[str, int] = {"rewarded": 0, "failed": 0}
        self.reached = False
        """Whether any actor has answered yet."""
        self.looked = 0
        """How often the directory was looked at."""

    async def work(self) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http, asyncio.TaskGroup() as group:
            for i in range(self._workers):
                group.create_task(self._worker(http, i), name=f"rollouts {i}")

    async def _worker(self, http: aiohttp.ClientSession, i: int) -> None:
        clock = asyncio.get_running_loop().time
        seen = clock()
        while clock() - seen < (self._gone_s if self.reached else self._start_s):
            if urls := self._urls():
                try:
                    await self._one(http, urls[i % len(urls)])
                    seen = clock()
                    continue
                except (aiohttp.ClientError, TimeoutError) as e:
                    log.info("no task: %s: %s", type(e).__name__, e)
            await asyncio.sleep(LOOK_S)

    async def _one(self, http: aiohttp.ClientSession, url: str) -> None:
        """A task, or none within WAIT_S. Raises aiohttp.ClientError, TimeoutError when the actor is gone or refuses."""
        key = self._key()
        headers = {"Authorization": f"Bearer {key}"}
        timeout = aiohttp.ClientTimeout(total=WAIT_S + REPLY_S)
        async with http.post(
            f"{url}/agent/tasks", json={"wait_s": WAIT_S, "override_sampling": True}, headers=headers, timeout=timeout
        ) as r:
            r.raise_for_status()
            self.reached = True
            if r.status == 204:
                return
            task = await r.json()
        end = await self._end(task, key)
        self.ended["failed" if "failed" in end else "rewarded"] += 1
        async with http.post(
            f"{url}/sessions/{task['session_id']}/reward", json=end, headers=headers, timeout=timeout
        ) as r:
            r.raise_for_status()

    async def _end(self, task: dict[str, Any], key: str) -> dict[str, Any]:
        row = task["meta"].get("verifiers")
        if not isinstance(row, dict):
            return {
                "failed": (
                    "the row has no meta.verifiers: make the data with python -m"
                    " env_servers.adapters.verifiers.make_tasks"
                )
            }
        try:
            async with asyncio.timeout(self._rollout_s):
                return await self._run(task["base_url"], key, row)
        except TimeoutError:
            # the session has failed in the run long since; this frees the worker that the environment holds
            return {
                "failed": f"the rollout has not ended within {self._rollout_s:g} s. Give it more --rollout-timeout."
            }

    def _urls(self) -> list[str]:
        """The actors that there are now. One may leave between the look at the directory and the look at its file."""
        self.looked += 1
        urls = []
        for file in sorted(self._endpoints.glob("rollout-*")):
            with contextlib.suppress(FileNotFoundError):
                urls.append(file.read_text().strip())
        return urls

    def _key(self) -> str:
        """The run's key: the variable's, or the one that it made for itself."""
        own = self._endpoints / "token"
        return os.environ.get(TOKEN_ENV) or (own.read_text().strip() if own.exists() else "none")

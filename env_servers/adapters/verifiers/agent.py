"""Take a run's tasks from its rollout actors, roll each out, and report its reward, until the run is over.

    RUN_DIR/endpoints/rollout-N --> POST /agent/tasks --> Rollouts.run(base_url, row) --> POST /sessions/{id}/reward

Actors come and go, so every worker lists them again for each task. A task whose actor is gone is dropped; the run
issues it again.
"""

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
"""Seconds for which an actor holds a request for a task before it answers that there is none."""
REPLY_S = 60.0
"""Seconds added to that, and for reporting the reward: an actor waits up to 30 s for requests that are being
answered."""
START_S = 24 * 3600.0
"""Default seconds in which the first rollout actor must come."""
LIST_INTERVAL_S = 1.0
"""Seconds between two listings of the directory if no actor was found, or one that is gone."""
log = logging.getLogger(__name__)

Run = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Rolls out one task: takes the session's OpenAI base URL, the key and the row, and returns the reward or failure."""


class Agent:
    """Rolls out the tasks of one run, `workers` at once.

    Args:
        run_dir: The run's directory, whose `endpoints` lists its rollout actors.
        run: Rolls out one task.
        gone_s: Seconds without an actor after which the run is over.
        rollout_s: Seconds after which a rollout has failed.
        start_s: Seconds in which the first actor must come. A run may wait for a cluster, load a large model and
            measure the base model first; the default is longer than any `train.start_wait_s` in use.
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
        """True when an actor has answered."""
        self.listings = 0
        """Number of times that the directory was listed."""

    async def work(self) -> None:
        """Roll out tasks until the run is over."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http, asyncio.TaskGroup() as group:
            for i in range(self._workers):
                group.create_task(self._worker(http, i), name=f"rollouts {i}")

    async def _worker(self, http: aiohttp.ClientSession, i: int) -> None:
        clock = asyncio.get_running_loop().time
        last_answer_at = clock()
        while clock() - last_answer_at < (self._gone_s if self.reached else self._start_s):
            if urls := self._urls():
                try:
                    await self._roll_out_next(http, urls[i % len(urls)])
                    last_answer_at = clock()
                    continue
                except (aiohttp.ClientError, TimeoutError) as e:
                    log.info("no task: %s: %s", type(e).__name__, e)
                except Exception:  # whatever answers there, the rollouts of the other workers go on
                    log.exception("A task of %s was not rolled out.", urls[i % len(urls)])
            await asyncio.sleep(LIST_INTERVAL_S)

    async def _roll_out_next(self, http: aiohttp.ClientSession, url: str) -> None:
        """Take a task from an actor, if it has one within WAIT_S, roll it out, and report the reward.

        Raises:
            aiohttp.ClientError: The actor is gone or refuses.
            TimeoutError: The actor does not answer.
        """
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
        """Roll out a task and return its reward or failure."""
        row = task["meta"].get("verifiers")
        if not isinstance(row, dict):
            return {
                "failed": (
                    "the row has no meta.verifiers: write the data with python -m"
                    " env_servers.adapters.verifiers.make_tasks"
                )
            }
        try:
            async with asyncio.timeout(self._rollout_s):
                return await self._run(task["base_url"], key, row)
        except TimeoutError:
            # The run has failed the session long ago; this frees the worker.
            return {"failed": f"the rollout has not ended within {self._rollout_s:g} s. Raise --rollout-timeout."}

    def _urls(self) -> list[str]:
        """Return the URLs of the actors. An actor may leave between the listing and the reading of its file."""
        self.listings += 1
        urls = []
        for file in sorted(self._endpoints.glob("rollout-*")):
            with contextlib.suppress(FileNotFoundError):
                urls.append(file.read_text().strip())
        return urls

    def _key(self) -> str:
        """Return the run's key: that of the environment variable, or the one that the run has generated."""
        generated = self._endpoints / "token"
        return os.environ.get(TOKEN_ENV) or (generated.read_text().strip() if generated.exists() else "none")

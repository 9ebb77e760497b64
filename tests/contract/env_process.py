"""Start an environment server as a user does, on a free port, and talk to it in plain HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp

from .hostile import had_no_core

START_TIMEOUT_S = 600.0


def is_late(reply: dict[str, Any]) -> bool:
    """Whether it ran into its time limit, which on a machine that stalls says nothing of it."""
    return reply["signals"].get("error_type") == "time_limit" or had_no_core(reply)


@contextmanager
def env_server(
    module: str,
    tmp: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
    log: Path | None = None,
    python: str | Path = sys.executable,
    cwd: Path | None = None,
) -> Iterator[tuple[str, subprocess.Popen]]:
    """(base URL, process) of `python -m module`; it is stopped at the end. `prefix` is a command that becomes the
    server by exec.

    `log`: a file for its stderr, for those who say much; else a pipe, shown when it does not start. `python`: the
    interpreter of another installation, which runs in `cwd`.
    """
    port_file = tmp / f"{module}-{time.monotonic_ns()}.port"
    command = [*prefix, str(python), "-m", module, "--port-file", str(port_file), *flags]
    with log.open("w") if log else nullcontext(subprocess.PIPE) as stderr:
        process = subprocess.Popen(command, stderr=stderr, env={**os.environ, **(env or {})}, text=True, cwd=cwd)
    try:
        give_up = time.monotonic() + START_TIMEOUT_S
        while not port_file.exists():
            if process.poll() is not None or time.monotonic() > give_up:
                process.kill()
                raise RuntimeError(f"{' '.join(command)} did not start:\n{process.communicate()[1] or log.read_text()}")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text()}", process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def growing(seconds: float) -> Iterator[float]:
    """Limits to try one after the other, each five times the one before, up to some minutes.

    A machine that is slow, or stalls, may miss a short limit before what is tested has begun, and then says nothing of
    it. What is wrong is wrong with every limit.
    """
    while seconds < 200:
        yield seconds
        seconds *= 5


class Http:
    """One server, raw: (status, body, headers) of every request."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self._sessions = url, 0
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else {}, timeout=aiohttp.ClientTimeout(total=660)
        )

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()

    async def send(self, method: str, path: str, **kwargs) -> tuple[int, Any, dict[str, str]]:
        async with self._http.request(method, self.url + path, **kwargs) as r:
            body = await (r.json() if r.content_type == "application/json" else r.text())
            return r.status, body, dict(r.headers)

    async def open(self, task: dict | None = None, seed: int = 0) -> str:
        status, body, _ = await self.send("POST", "/reset", json={"task": task or {}, "seed": seed})
        assert status == 200, body
        return body["session_id"]

    def step_body(self, session: str, step_id: int, action: str, deadline_s: float = 600.0) -> dict:
        return {"session_id": session, "step_id": step_id, "action": action, "deadline_s": deadline_s}

    async def step(
        self, session: str, step_id: int, action: str, deadline_s: float = 600.0
    ) -> tuple[int, Any, dict[str, str]]:
        return await self.send("POST", "/step", json=self.step_body(session, step_id, action, deadline_s))

    async def steps_counted(self) -> float:
        """How many steps the server says it has executed, over all outcomes."""
        _, text, _ = await self.send("GET", "/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("env_steps_total{"))

    async def unless_late(self, session: str, first_id: int, action: str) -> dict:
        """The reply to an action that has its time: where it runs into its limit it is tried again, a few times, with
        the next step_id. A machine that stalls lets anything run into a limit of seconds."""
        for step_id in range(first_id, first_id + 5):
            body = (await self.step(session, step_id, action))[1]
            if not is_late(body):
                break
        return body

    async def until_running(self, n: int) -> None:
        async with asyncio.timeout(300):
            while (await self.send("GET", "/health"))[1]["running"] != n:
                await asyncio.sleep(0.02)

    async def until_begun(self, call: asyncio.Task) -> None:
        """Until the only call runs, or has ended: one that takes seconds may do both while this process stalls."""
        while not call.done() and (await self.send("GET", "/health"))[1]["running"] != 1:
            await asyncio.sleep(0.02)

    async def until_waiting(self, n: int) -> None:
        """Until `n` executions wait for a worker."""
        async with asyncio.timeout(300):
            while f"env_waiting {n}.0\n" not in (await self.send("GET", "/metrics"))[1]:
                await asyncio.sleep(0.02)

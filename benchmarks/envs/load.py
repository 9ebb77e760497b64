"""Load: callers in a closed loop -> how many answers per second, and how late. Each asks again when answered."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import aiohttp

START_TIMEOUT_S = 60.0
DEADLINE_S = 60.0
END_S = 60.0
"""Seconds that a server has to end when it is asked to, before it is killed."""


class Load(NamedTuple):
    per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    """Answers that were not the code's own success."""


async def closed_loop(ask: Callable[[int], Awaitable[int]], concurrency: int, seconds: float) -> Load:
    """`ask(i)` makes the i-th request and returns how many of its executions failed."""
    numbers, times, failed = itertools.count(), [], 0
    start = time.perf_counter()

    async def caller() -> None:
        nonlocal failed
        while time.perf_counter() - start < seconds:
            asked = time.perf_counter()
            here = await ask(next(numbers))
            failed += here  # in one go the sum would be of before the request: other callers' were lost
            times.append(time.perf_counter() - asked)

    await asyncio.gather(*[caller() for _ in range(concurrency)])
    elapsed = time.perf_counter() - start
    return Load(len(times) / elapsed, *percentiles_ms(times), failed)


def percentiles_ms(times: list[float]) -> tuple[float, float]:
    """(p50, p99) of seconds, in milliseconds: each the least that so many of them do not exceed."""
    ordered = sorted(times)
    p50, p99 = (1e3 * ordered[math.ceil(q * len(ordered)) - 1] for q in (0.5, 0.99))
    return p50, p99


class Server:
    """One server under load."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self._http = url, http

    async def run_code(self, snippets: Sequence[str], concurrency: int, seconds: float) -> Load:
        async def ask(i: int) -> int:
            body = {"code": snippets[i % len(snippets)], "language": "python", "run_timeout": DEADLINE_S}
            async with self._http.post(self.url + "/run_code", json=body) as r:
                return r.status != 200 or (await r.json())["status"] != "Success"

        return await closed_loop(ask, concurrency, seconds)

    async def batches(self, snippet: str, size: int, seconds: float, task: dict | None = None) -> Load:
        """Two batches in flight, each on `size` sessions of its own; `per_s` counts executions."""
        sessions = [[f"bench-{time.monotonic_ns()}-{k}-{i}" for i in range(size)] for k in range(2)]
        for name in itertools.chain(*sessions):
            async with self._http.post(self.url + "/reset", json={"session_id": name, "task": task or {}}) as r:
                r.raise_for_status()
        free = list(range(2))

        async def ask(i: int) -> int:
            mine = free.pop()
            items = [
                {"session_id": s, "step_id": i, "action": snippet, "deadline_s": DEADLINE_S} for s in sessions[mine]
            ]
            async with self._http.post(self.url + "/step_batch", json=items) as r:
                replies = [json.loads(line) for line in (await r.text()).splitlines()]
            free.append(mine)
            return sum(reply["outcome"] != "ok" for reply in replies) + size - len(replies)

        load = await closed_loop(ask, 2, seconds)
        for name in itertools.chain(*sessions):
            async with self._http.delete(f"{self.url}/session/{name}"):
                pass
        return load._replace(per_s=load.per_s * size)

    async def verify(self, size: int, concurrency: int, seconds: float) -> Load:
        """POST /verify of simple numerals, `size` in a request (1: an object, not a list); `per_s` counts answers."""

        async def ask(i: int) -> int:
            items = [{"answer": str(k), "gold": f"{k - k % 2}.0"} for k in range(i, i + size)]
            async with self._http.post(self.url + "/verify", json=items[0] if size == 1 else items) as r:
                verdicts = [await r.json()] if size == 1 else await r.json()
            return sum(v["equal"] != (k % 2 == 0) for k, v in enumerate(verdicts, i))

        load = await closed_loop(ask, concurrency, seconds)
        return load._replace(per_s=load.per_s * size)


async def plain_python(snippets: Sequence[str], seconds: float) -> Load:
    """A fresh `python -I` per call, 8 at once, without server and barriers: what an interpreter costs at the least."""

    async def ask(i: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", snippets[i % len(snippets)], stdout=asyncio.subprocess.PIPE
        )
        await process.communicate()
        return process.returncode != 0

    return await closed_loop(ask, 8, seconds)


@contextmanager
def started(module: str, *flags: str, log: Path | None = None) -> Iterator[tuple[str, int]]:
    """(base URL, process id) of a server on a free port, which ends with the block. `log`: where its messages go; None:
    here."""
    with tempfile.TemporaryDirectory() as scratch, log.open("wb") if log else nullcontext() as out:
        port_file = Path(scratch, "port")
        process = subprocess.Popen([sys.executable, "-m", module, "--port-file", str(port_file), *flags], stderr=out)
        try:
            give_up = time.monotonic() + START_TIMEOUT_S
            while not port_file.exists():
                if process.poll() is not None or time.monotonic() > give_up:
                    sys.exit(f"{module} did not start; its message is {f'in {log}' if log else 'above'}.")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port_file.read_text()}", process.pid
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

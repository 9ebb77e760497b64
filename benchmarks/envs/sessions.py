"""python -m benchmarks.envs.sessions [--sessions N]: many sessions with state open at once on one server of
`functions`.

    each session a task of its own, opened and kept open                opened per second, memory per session
    each asks for a call that changes its state, thinks, asks again     calls per second, p50, p99 of an answer, failed
    the same again with two processes of the server (`--processes 2`)

A session thinks for an exponentially distributed time of `--think-s` on average, which stands for the decoding of some
500 tokens between two calls: the load is open, and what is late is late because of the server. Requests are single, as
of many rollout actors. The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any, NamedTuple

import aiohttp

from benchmarks.command import command_parser
from env_servers.functions.make_tasks import make_task
from openrlhf_tir.machine.process_memory import BYTES_PER_GIB, PssSampler
from openrlhf_tir.protocol import TRAINABLE_OUTCOMES

from .load import DEADLINE_S, percentiles_ms, started

OPENING = 64
"""Sessions that are opened at once, as the actors of a run that starts do."""
KIB_PER_GIB = BYTES_PER_GIB / 1024


class Found(NamedTuple):
    opened_per_s: float
    calls_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    """Refused or lost: what would be a failed sample. A call that the function refuses a second time is an answer."""
    kib_per_session: float


class Sessions:
    """`n` sessions on the server at `url`, whose process is `pid`."""

    def __init__(self, http: aiohttp.ClientSession, url: str, pid: int, n: int) -> None:
        self._http, self._url, self._n = http, url, n
        self._memory, self._failed = PssSampler(pid), 0
        self._times: list[float] = []
        self._tasks = [make_task(i, domains=2, calls=(2, 4), distractors=4, variant="plain")[1] for i in range(n)]

    async def run(self, seconds: float, think_s: float) -> Found:
        before, start = self._memory.sample(), time.perf_counter()
        room = asyncio.Semaphore(OPENING)
        bases = await asyncio.gather(*[self._open(i, room) for i in range(self._n)])
        opened_s = time.perf_counter() - start
        until = time.perf_counter() + seconds
        await asyncio.gather(*[self._talk(i, base, until, think_s) for i, base in enumerate(bases)])
        kib = (self._memory.sample() - before) * KIB_PER_GIB / self._n
        return Found(self._n / opened_s, len(self._times) / seconds, *percentiles_ms(self._times), self._failed, kib)

    async def _open(self, i: int, room: asyncio.Semaphore) -> str:
        """The base URL that the session's steps go to: one of several processes."""
        body = {"session_id": f"s{i}", "task": self._tasks[i].model_dump(exclude_defaults=True)}
        async with room, self._http.post(self._url + "/reset", json=body) as r:
            self._failed += r.status != 200
            return (await r.json()).get("server") or self._url

    async def _talk(self, i: int, base: str, until: float, think_s: float) -> None:
        call = self._tasks[i].gold[0][0]
        action, rng = json.dumps([{"name": call.name, "arguments": call.arguments}]), random.Random(i)
        for step in range(1 << 30):
            await asyncio.sleep(rng.expovariate(1 / think_s))
            if time.perf_counter() >= until:
                return
            asked = time.perf_counter()
            body: dict[str, Any] = {"session_id": f"s{i}", "step_id": step, "action": action, "deadline_s": DEADLINE_S}
            async with self._http.post(base + "/step", json=body) as r:
                reply = await r.json()
            self._times.append(time.perf_counter() - asked)
            self._failed += r.status != 200 or reply["outcome"] not in TRAINABLE_OUTCOMES


async def measure(sessions: int, seconds: float, think_s: float) -> dict[str, float]:
    facts: dict[str, float] = {}
    for processes in (1, 2):
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=2 * DEADLINE_S)
        with started("env_servers.functions", "--processes", str(processes), "--max-sessions", str(sessions)) as (
            url,
            pid,
        ):
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
                found = await Sessions(http, url, pid, sessions).run(seconds, think_s)
        print(
            f"{sessions} sessions, {processes} process{'es' if processes > 1 else ''}: opened"
            f" {found.opened_per_s:.0f}/s, {found.calls_per_s:.0f} calls/s, p50 {found.p50_ms:.1f} ms, p99"
            f" {found.p99_ms:.1f} ms, {found.kib_per_session:.0f} KiB a session, failed {found.failed}",
            flush=True,
        )
        if processes == 1:
            facts = {
                f"sessions_{sessions}_p99_ms": round(found.p99_ms, 1),
                f"sessions_{sessions}_p50_ms": round(found.p50_ms, 1),
            }
            facts |= {
                "sessions_calls_per_s": round(found.calls_per_s),
                "sessions_kib_each": round(found.kib_per_session),
                "sessions_failed": found.failed,
            }
        else:
            facts |= {f"sessions_{sessions}_p99_ms_2_processes": round(found.p99_ms, 1)}
            facts["sessions_failed"] += found.failed
    return facts


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--sessions", type=int, default=2000, metavar="N", help="open at once (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of calls (default: %(default)s)")
    parser.add_argument(
        "--think-s",
        type=float,
        default=10.0,
        metavar="S",
        help="mean time between an answer and the next call (default: %(default)s)",
    )
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(args.sessions, args.seconds, args.think_s))))


if __name__ == "__main__":
    main()

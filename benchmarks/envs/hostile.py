"""Hostile snippets against a server of its own: how many were contained, and whether the server is as before.

    snippet -> POST /step -> the snippet's own predicate on the reply, and a harmless snippet that must still work
            -> contained
    program in another language -> POST /run_code -> the same

At the end no process may be left below the server that was not there before, and its memory must be back. The snippets
are those of the tests (tests/contract/hostile.py, languages/hostile.py).
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from typing import Any

import aiohttp

from env_servers.python_tir.isolation.memory import used_bytes
from env_servers.python_tir.isolation.tree import descendants

from .load import started

SUITE, LANGUAGES_SUITE = "tests.contract.hostile", "tests.contract.languages.hostile"
FLAGS = ("--code-timeout", "3", "--memory-mib", "512", "--workers", "4")
AT_ONCE = 4
SETTLE_S = 10.0
WELL = "print(6 * 7)"


SCRIPTS_ONLY = {
    "write to every descriptor",
    "thread that never ends",
    "atexit that never ends",
    "destructor that never ends",
    "files of others",
    "unix sockets of others",
}
"""What a session answers otherwise, as harmlessly: it breaks off only its own interpreter, is stopped instead of waited
for, has a socket and no main.py."""


async def hostile_suite(http: aiohttp.ClientSession, *, every: int, stateful: bool) -> dict[str, float | None]:
    """hostile_contained of hostile_total (each `every`-th snippet), and what was left; None where the tests are not
    there.

    `stateful`: each snippet is a cell of a session of its own; the names begin with hostile_stateful.
    """
    name = "hostile_stateful" if stateful else "hostile"
    if importlib.util.find_spec(SUITE) is None:
        return {f"{name}_contained": None, f"{name}_total": None}
    attacks = [a for a in importlib.import_module(SUITE).ATTACKS if not (stateful and a.name in SCRIPTS_ONLY)][::every]
    with started("env_servers.python_tir", *FLAGS, *(["--stateful"] if stateful else [])) as (url, pid):
        for warm in (WELL, f"{WELL}  # numpy"):  # every place has a slot of either template before anything is counted
            await asyncio.gather(*[_run(http, url, warm) for _ in range(20)])
        processes, memory = _below(pid)
        free = asyncio.Semaphore(AT_ONCE)

        async def attack(a: Any) -> bool:
            async with free:
                reply, after = await _run(http, url, a.code), await _run(http, url, WELL)
            contained = bool(a.contained(reply)) and after["observation"] == "42\n"
            if not contained:
                print(f"not contained ({name}): {a.name}: {str(reply)[:200]}", flush=True)
            return contained

        contained = sum(await asyncio.gather(*[attack(a) for a in attacks]))
        now, memory_now = await _settled(pid, processes)
    left, grown = max(0, now - processes), (memory_now - memory) / 2**20
    print(
        f"{name}: {contained} of {len(attacks)} contained, {left} processes left, memory of the workers"
        f" {grown:+.0f} MiB",
        flush=True,
    )
    return {
        f"{name}_contained": contained,
        f"{name}_total": len(attacks),
        f"{name}_processes_left": left,
        f"{name}_memory_mib": round(grown),
    }


async def hostile_languages_suite(http: aiohttp.ClientSession, *, every: int) -> dict[str, float | None]:
    """The same of programs in bash, C++ and JavaScript, those of which the server runs here."""
    name = "hostile_languages"
    if importlib.util.find_spec(LANGUAGES_SUITE) is None:
        return {f"{name}_contained": None, f"{name}_total": None}
    with started("env_servers.python_tir", *FLAGS) as (url, pid):
        async with http.get(f"{url}/schema") as r:
            served = (await r.json())["languages"]
        attacks = [a for a in importlib.import_module(LANGUAGES_SUITE).ATTACKS if a.language in served][::every]
        well = {"code": "echo 42", "language": "bash"}
        await asyncio.gather(*[_run_code(http, url, well) for _ in range(20)])
        processes, _ = _below(pid)
        free = asyncio.Semaphore(AT_ONCE)

        async def attack(a: Any) -> bool:
            code = a.code.replace("{port}", url.rpartition(":")[2])
            async with free:
                reply = await _run_code(http, url, {"code": code, "language": a.language, "run_timeout": 3, **a.fields})
                after = await _run_code(http, url, well)
            contained = bool(a.contained(reply)) and after["status"] == "Success"
            if not contained:
                print(f"not contained ({name}): {a.language}, {a.name}: {str(reply)[:200]}", flush=True)
            return contained

        contained = sum(await asyncio.gather(*[attack(a) for a in attacks]))
        now, _ = await _settled(pid, processes)
    left = max(0, now - processes)
    print(
        f"{name} ({', '.join(served[1:])}): {contained} of {len(attacks)} contained, {left} processes left", flush=True
    )
    return {f"{name}_contained": contained, f"{name}_total": len(attacks), f"{name}_processes_left": left}


async def _settled(pid: int, processes: int) -> tuple[int, int]:
    """`_below` once there are no more than `processes`, or it has had its time."""
    give_up = time.monotonic() + SETTLE_S
    while _below(pid)[0] > processes and time.monotonic() < give_up:
        await asyncio.sleep(0.1)
    return _below(pid)


def _below(pid: int) -> tuple[int, int]:
    """(processes below the server, their private bytes; what a fork shares counts for each)."""
    return sum(1 for _ in descendants(pid)), used_bytes(pid, 1 << 62)


async def _run(http: aiohttp.ClientSession, url: str, code: str) -> dict[str, Any]:
    async with http.post(f"{url}/reset", json={}) as r:
        session = (await r.json())["session_id"]
    async with http.post(
        f"{url}/step", json={"session_id": session, "step_id": 0, "action": code, "deadline_s": 60}
    ) as r:
        reply = await r.json()
    async with http.delete(f"{url}/session/{session}"):
        return reply


async def _run_code(http: aiohttp.ClientSession, url: str, request: dict[str, Any]) -> dict[str, Any]:
    async with http.post(f"{url}/run_code", json=request) as r:
        return await r.json()

"""The hostile suite against a live python_tir server over HTTP: each attack contained, the server as before."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from env_servers.python_tir.isolation.tree import descendants

from .env_process import Http, env_server, is_late
from .hostile import ATTACKS, Attack, Reply

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")]
SIDE_BY_SIDE, SETTLE_S, TRIES = 16, 300.0, 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with env_server(
        "env_servers.python_tir",
        tmp_path_factory.mktemp("env"),
        "--code-timeout",
        "6",
        "--memory-mib",
        "512",
        "--no-languages",
    ) as (url, process):
        yield url, process.pid


async def run_side_by_side(http: Http, attacks: list[Attack]) -> list[Reply]:
    sessions = [await http.open() for _ in attacks]
    body = [http.step_body(session, 0, attack.code) for session, attack in zip(sessions, attacks, strict=True)]
    _, text, _ = await http.send("POST", "/step_batch", json=body)
    replies = {reply["session_id"]: reply for reply in map(json.loads, text.splitlines())}
    return [replies[session] for session in sessions]


async def run_in_time(http: Http, attacks: list[Attack]) -> list[Reply]:
    """`run_side_by_side`, and those that came to no end in their time once more, by themselves."""
    replies = await run_side_by_side(http, attacks)
    for i, attack in enumerate(attacks):
        for _ in range(TRIES):
            if is_late(replies[i]) and not attack.contained(replies[i]):
                [replies[i]] = await run_side_by_side(http, [attack])
    return replies


def well(name: str, code: str) -> Attack:
    """No attack: all that is asked is that it comes to its end."""
    return Attack(name, code, lambda reply: not is_late(reply))


async def say_well(http: Http, times: int = 4) -> None:
    """Both templates, each in every place."""
    for comment in ("", "# numpy"):
        for reply in await run_in_time(http, [well("well", f"print({i}, *range(3)) {comment}") for i in range(times)]):
            assert reply["outcome"] == "ok" and reply["observation"].endswith(" 0 1 2\n"), reply


def footprint(pid: int) -> tuple[list[str], int, int]:
    """(names of the server's processes, proportional memory of all of them in MiB, the server's open descriptors)."""
    names, kib = [], 0
    for p in (pid, *descendants(pid)):
        with suppress(OSError):  # it has just ended
            name, memory = (Path(f"/proc/{p}/{file}").read_text() for file in ("comm", "smaps_rollup"))
            names.append(name.strip())
            kib += sum(int(line.split()[1]) for line in memory.splitlines() if line.startswith("Pss:"))
    return sorted(names), kib >> 10, len(os.listdir(f"/proc/{pid}/fd"))


async def settled(pid: int, names: list[str], descriptors: int) -> tuple[list[str], int, int]:
    """The footprint once processes and descriptors are those of before: a slot that was replaced may still be ending,
    and the server learns a moment later that a client has closed its connections."""
    give_up = time.monotonic() + SETTLE_S
    while time.monotonic() < give_up:
        found = footprint(pid)
        if found[0] == names and found[2] <= descriptors:
            return found
        await asyncio.sleep(0.1)
    return footprint(pid)


def test_the_suite_is_large_and_its_names_are_unique():
    assert len(ATTACKS) >= 80
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


async def contained_and_as_before(url: str, pid: int, attacks: list[Attack]) -> None:
    """Run attacks on a server: none escapes, well-behaved calls are answered between them, nothing of them is left."""
    async with Http(url) as http:
        await say_well(http)
        names, memory, descriptors = footprint(pid)
        escaped = []
        for start in range(0, len(attacks), SIDE_BY_SIDE):
            batch = attacks[start : start + SIDE_BY_SIDE]
            for attack, reply in zip(batch, await run_in_time(http, batch), strict=True):
                if not attack.contained(reply):
                    escaped.append((attack.name, reply["outcome"], reply["signals"], reply["observation"][-300:]))
            await say_well(http)
        assert not escaped, "\n".join(map(str, escaped))
    # Without the client, whose side by side calls have left a connection each.
    names_after, memory_after, descriptors_after = await settled(pid, names, descriptors)
    assert names_after == names
    assert descriptors_after <= descriptors + 2
    assert memory_after <= memory + 40, f"{memory} MiB before, {memory_after} MiB after"


async def test_every_attack_is_contained_and_leaves_the_server_as_it_was(server):
    await contained_and_as_before(*server, [attack for attack in ATTACKS if not attack.until_stopped])


async def test_every_attack_that_never_ends_is_stopped_and_leaves_the_server_as_it_was(python_server):
    """On a server with a limit of one second: six of two cores for each of them would prove no more."""
    attacks = [attack for attack in ATTACKS if attack.until_stopped]
    assert len(attacks) >= 8
    await contained_and_as_before(*python_server, attacks)


SCAN = """
import ctypes, re
first, second = bytes(reversed(b"evif-ytrof-")), bytes(reversed(b"neves-ytxis"))
found = 0
for line in open("/proc/self/maps"):
    low, high, mode = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\\S+)", line).groups()
    if not mode.startswith("rw"):
        continue
    low, size = int(low, 16), int(high, 16) - int(low, 16)
    memory, at = (ctypes.c_char * size).from_address(low), -1
    view = memoryview(memory).cast("B")
    for start in range(0, size, 1 << 20):
        block = bytes(view[start : start + (1 << 20) + 64])
        at = block.find(first)
        while at >= 0:
            found += block[at + len(first) : at + len(first) + len(second)] == second
            at = block.find(first, at + 1)
print("copies", found)
"""
VICTIM = "secret = '-forty-fivesixty-seven'\nopen('/tmp/mine', 'w').write(secret)\nprint(len(secret), input.__name__)"


async def test_hole_1_no_memory_holds_the_code_of_an_earlier_call(server):
    async with Http(server[0]) as http:
        for _ in range(3):
            await run_in_time(http, [well("victim", VICTIM)] * 6)
        scans = await run_in_time(http, [well("scan", SCAN)] * 4)
        assert [scan["observation"] for scan in scans] == ["copies 0\n"] * 4
        own = (await run_in_time(http, [well("own", VICTIM + SCAN)]))[0]
        assert int(own["observation"].split()[-1]) > 0  # the scan does find what is there


async def test_hole_2_many_small_processes_cannot_pass_the_memory_limit_together(server):
    code = (
        "import os, time\nfor i in range(40):\n    if os.fork() == 0:\n        x = b'x' * (30 << 20);"
        " time.sleep(60)\ntime.sleep(60)"
    )
    async with Http(server[0]) as http:
        reply = (await run_in_time(http, [well("hole 2", code)]))[0]
    assert (reply["observation"], reply["signals"]["error_type"]) == ("MemoryLimitExceeded", "memory")


async def test_hole_3_snippets_go_first_when_the_host_runs_out_of_memory_and_cannot_change_that(server):
    code = (
        "print(open('/proc/self/oom_score_adj').read())\ntry: open('/proc/self/oom_score_adj',"
        " 'w').write('-500')\nexcept OSError: print('refused')"
    )
    async with Http(server[0]) as http:
        reply = (await run_in_time(http, [well("hole 3", code)]))[0]
    assert reply["observation"] == "500\n\nrefused\n"


async def test_a_killed_slot_and_a_killed_container_cost_their_calls_only(server):
    url, pid = server
    async with Http(url) as http:
        for depth in (2, 1):
            for _ in range(TRIES):
                sleeping = asyncio.create_task(
                    run_side_by_side(http, [well("sleep", "import time; time.sleep(3); print('done')")])
                )
                await http.until_begun(sleeping)
                await asyncio.sleep(0.3)  # into the sleep: a call that has not begun would not be hit
                for target in (killed := _with_parent_named(pid, depth)):
                    with suppress(ProcessLookupError):
                        os.kill(target, 9)
                while any(Path(f"/proc/{target}").exists() for target in killed):
                    await asyncio.sleep(0.05)
                if (outcome := (await sleeping)[0]["outcome"]) == "env_error":
                    break  # else it had not begun, or had ended before
            assert outcome == "env_error"
            await say_well(http)


def _with_parent_named(pid: int, depth: int) -> list[int]:
    """Processes of the container: depth 1 is its master, 2 are the slots."""
    ids = {}
    for p in descendants(pid):
        with suppress(OSError):  # it has just ended
            if "programs" in _read(p, "cmdline") and "bwrap" not in _read(p, "comm"):
                ids[p] = _read(p, "status").split("NStgid:")[1].splitlines()[0].split()
    least = min(map(len, ids.values()), default=0)  # no process: the container is being started
    return [p for p, nested in ids.items() if nested[-1] == "1" and len(nested) == least + depth - 1]


def _read(pid: int, file: str) -> str:
    return Path(f"/proc/{pid}/{file}").read_text()

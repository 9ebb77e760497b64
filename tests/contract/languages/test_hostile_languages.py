"""Hostile bash, C++ and JavaScript against a live python_tir server over HTTP: every attack contained, and the server
as it was before."""

from __future__ import annotations

import asyncio
import shutil
from urllib.parse import urlsplit

import pytest

from ..env_process import Http, env_server
from ..test_hostile import footprint, settled
from .hostile import ATTACKS, TIME, TOOLS, Attack, Reply, words

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")]
SIDE_BY_SIDE, TRIES = 12, 5
HERE = [attack for attack in ATTACKS if shutil.which(TOOLS[attack.language])]


async def run(http: Http, attack: Attack) -> Reply:
    """The reply, to the last of several tries where it ran into a time limit and was to end otherwise: on a machine
    that stalls that says nothing of it."""
    for _ in range(TRIES):
        reply = await run_once(http, attack)
        if TIME not in words(reply) or attack.contained(reply):
            break
    return reply


async def run_once(http: Http, attack: Attack) -> Reply:
    code = attack.code.replace("{port}", str(urlsplit(http.url).port))
    status, body, _ = await http.send(
        "POST", "/run_code", json={"code": code, "language": attack.language, "run_timeout": 3, **attack.fields}
    )
    assert status == 200, body
    return body


async def say_well(http: Http) -> None:
    wells = [
        Attack("bash", "well", f"echo {i}; cat", lambda r: TIME not in words(r), {"stdin": "in"}) for i in range(8)
    ]
    for i, body in enumerate(await asyncio.gather(*[run(http, well) for well in wells])):
        assert (body["status"], body["run_result"]["stdout"]) == ("Success", f"{i}\nin"), body


def test_the_suite_is_large_and_its_names_are_unique():
    assert len(ATTACKS) >= 60
    assert len({(attack.language, attack.name) for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.long
async def test_every_attack_is_contained_and_leaves_the_server_as_it_was(tmp_path):
    with env_server("env_servers.python_tir", tmp_path, "--memory-mib", "512", "--workers", "2") as (url, process):
        async with Http(url) as http:
            await say_well(http)
            names, memory, descriptors = footprint(process.pid)
            escaped = []
            for start in range(0, len(HERE), SIDE_BY_SIDE):
                batch = HERE[start : start + SIDE_BY_SIDE]
                for attack, reply in zip(
                    batch, await asyncio.gather(*[run(http, attack) for attack in batch]), strict=True
                ):
                    if not attack.contained(reply):
                        escaped.append((attack.language, attack.name, str(reply)[:500]))
                await say_well(http)
            assert not escaped, "\n".join(map(str, escaped))
        # Without the client, whose side by side calls have left a connection each.
        names_after, memory_after, descriptors_after = await settled(process.pid, names, descriptors)
    assert names_after == names
    assert descriptors_after <= descriptors + 2
    assert memory_after <= memory + 40, f"{memory} MiB before, {memory_after} MiB after"

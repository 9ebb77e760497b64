"""Whole groups against an environment that breaks: nothing trains on a fault, others go on, all is well afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from benchmarks.rollout.fault_parts import config, fault_server, runner, sessions, set_fault, trained_on_a_fault
from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits
from openrlhf_tir.rollout.environment_client.orphans import close_orphans
from openrlhf_tir.types import GroupKey, Task

from ..env_process import Http, env_server

pytestmark = pytest.mark.slow  # it waits for servers

REASON = {
    "hang": "timeout",
    "timeout": "timeout",
    "full": "capacity",
    "reset connection": "env_lost",
    "500": "env_lost",
}
"""Fault -> what its trajectories fail with (env_lost: tried so often that the server is left alone, and there is no
other); the others: env_error."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    directory = tmp_path_factory.mktemp("faults")
    with fault_server(directory, "bad", 0.01) as bad, fault_server(directory, "good", 0.01) as good:
        yield bad, good


def client(
    bad: str, good: str, outage_timeout_s: float = 2.0, timeout_s: float = 60.0, max_retries: int = 3
) -> EnvClient:
    """A fault that answers is not to be taken for a timeout because this machine is busy."""
    return EnvClient(
        {"bad": bad, "good": good}, grace_s=0.1,
        limits={"": EnvLimits(step_timeout_s=timeout_s, reset_timeout_s=timeout_s, capacity_timeout_s=0.5)},
        outage_timeout_s=outage_timeout_s, backoff_s=0.02, probe_pause_s=0.1,
        max_retries=max_retries,
    )  # fmt: skip


async def back_again(url: str) -> float:
    """When the server answers a request again, on the loop's clock."""
    async with aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.get(f"{url}/health") as reply:
                    if reply.status == 200:
                        return asyncio.get_running_loop().time()
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)


def watch_probes(envs: EnvClient) -> list[tuple[float, bool]]:
    """From now on: when each probe of a server began, and whether it was well."""
    probe, seen = envs.urls._probe, []

    async def watched(server) -> None:
        began, well = asyncio.get_running_loop().time(), False
        try:
            await probe(server)
            well = True
        finally:
            seen.append((began, well))

    envs.urls._probe = watched
    return seen


@pytest.mark.parametrize(
    "fault",
    ["hang", "reset connection", "500", "invalid JSON", "wrong schema", "huge body", "env_error", "timeout", "full"],
)
async def test_a_fault_fails_its_own_trajectories_only(servers, tmp_path, fault):
    bad, good = servers
    cfg = config(tmp_path, n=4)
    async with (
        client(bad, good) as well,
        client(
            bad,
            good,
            timeout_s=0.4 if fault == "hang" else 60.0,
            max_retries=1000 if fault == "500" else 3,  # no call is given up before the server is
        ) as envs,
    ):
        groups, unharmed = runner(cfg, envs, 0.0), runner(cfg, well, 0.0)
        meta, group = await unharmed.run(GroupKey(0, 1), Task("p", "", "bad"))
        assert meta.failed is None and len(group.valid) == 4 and trained_on_a_fault(group) == []

        await set_fault(bad, fault)
        try:
            (meta, broken), (meta_good, others) = await asyncio.gather(
                groups.run(GroupKey(0, 2), Task("p", "", "bad")), unharmed.run(GroupKey(0, 3), Task("p", "", "good"))
            )
        finally:
            await set_fault(bad, "")
        assert broken.valid == [] and meta.rewards == [] and all(t.reward is None for t in broken.trajectories)
        assert meta.failed == REASON.get(fault, "env_error") and sum(meta.failures.values()) == 4
        assert meta.failures.keys() <= {meta.failed, "env_error"}, "a call may be given up before the server is"
        assert meta_good.failed is None and trained_on_a_fault(others) == []


async def test_a_server_that_dies_loses_only_its_sessions_and_new_sessions_wait_for_it(servers, tmp_path):
    bad, good = servers
    cfg = config(tmp_path, n=8)
    # Patience for a machine that is slow to answer or to start a server again: what is measured begins when the client
    # knows that it is back.
    async with client(bad, good, outage_timeout_s=600.0) as envs:
        probes = watch_probes(envs)
        groups = runner(cfg, envs, 0.05)
        before = asyncio.create_task(groups.run(GroupKey(0, 1), Task("p", "", "bad")))
        while len((await sessions(bad))["open"]) < 8:
            assert not before.done()
            await asyncio.sleep(0.01)
        await set_fault(bad, "down", 1.0)
        meta, group = await before
        assert meta.failures.keys() <= {"env_lost", "timeout"} and len(group.valid) == 0
        back = asyncio.create_task(back_again(bad))
        meta, group = await groups.run(GroupKey(0, 2), Task("p", "", "bad"))
        assert meta.failed is None and len(group.valid) == 8 and trained_on_a_fault(group) == []
        used_after = asyncio.get_running_loop().time()
        *in_vain, (known, well) = probes
        assert well and not any(ok for _, ok in in_vain), "one answer is enough, and nobody asks again"
        assert back.done()
        assert all(at < back.result() for at, _ in in_vain), "a server that answers is believed"
        assert used_after - known < 300, "its patience of 600 s was not waited out"
    await close_orphans(envs.owner, [bad, good])


async def test_faults_are_counted_by_environment_and_outcome(servers, tmp_path):
    bad, good = servers
    cfg = config(tmp_path, n=4)
    async with client(bad, good) as envs:
        groups = runner(cfg, envs, 0.0)
        await groups.run(GroupKey(0, 1), Task("p", "", "good"))
        await set_fault(bad, "env_error")
        await groups.run(GroupKey(0, 2), Task("p", "", "bad"))
        await set_fault(bad, "")
        assert envs.outcomes == Counter({("good", "ok"): 8, ("bad", "env_error"): 4})


async def test_sessions_of_a_killed_client_are_closed_by_their_owner(tmp_path):
    with env_server("env_servers.echo", tmp_path) as (url, _):
        async with EnvClient({"echo": url}, owner="dead") as dead, EnvClient({"echo": url}, owner="alive") as alive:
            left = [dead.session("echo", {}) for _ in range(5)]
            for session in left:
                await session.reset()
            async with alive.session("echo", {}) as mine:
                await mine.reset()
                assert await close_orphans("dead", [url, "http://127.0.0.1:9"]) == 5
                async with Http(url) as http:
                    assert (await http.send("GET", "/health"))[1]["sessions"] == 1
                assert (await mine.step("still here", step_id=0)).observation == "still here"


@pytest.mark.slow
async def test_actors_that_share_a_small_server_all_get_through_without_a_failure(tmp_path):
    async def actor(client: EnvClient, sessions: int) -> None:
        async def episode(i: int) -> None:
            async with client.session("echo", {"delay_s": 0.02}) as session:
                await session.reset()
                for k in range(3):
                    assert (await session.step(f"{i} {k}", step_id=k)).observation == f"{i} {k}"

        await asyncio.gather(*(episode(i) for i in range(sessions)))

    with env_server("env_servers.echo", tmp_path, "--workers", "4", "--max-queue", "4") as (url, _):
        clients = [EnvClient({"echo": url}) for _ in range(3)]
        try:
            await asyncio.gather(*(actor(c, 30) for c in clients))
            assert [c.outcomes["echo", "ok"] for c in clients] == [90] * 3
            assert 0 < sum(c.outcomes["echo", "refused"] for c in clients) < 270
        finally:
            for c in clients:
                await c.close()

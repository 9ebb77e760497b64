"""The agent between a run and the rollouts, without the package: actors that come and go, rollouts that do not end."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from env_servers.adapters.verifiers.agent import Agent
from env_servers.adapters.verifiers.rollouts import Rollouts


async def never(base_url, key, row):
    await asyncio.Event().wait()


async def test_a_rollout_that_does_not_end_is_a_failure_and_frees_its_worker(tmp_path):
    ends = []

    async def tasks(request):
        if len(ends) < 2:
            return web.json_response(
                {"session_id": "s", "base_url": "http://127.0.0.1:1/v1", "meta": {"verifiers": {}}}
            )
        (tmp_path / "endpoints/rollout-0").unlink(missing_ok=True)
        return web.Response(status=204)

    async def reward(request):
        ends.append(await request.json())
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/agent/tasks", tasks)
    app.router.add_post("/sessions/s/reward", reward)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints/rollout-0").write_text(f"http://127.0.0.1:{runner.addresses[0][1]}")
    agent = Agent(tmp_path, never, workers=1, gone_s=0.1, rollout_s=0.05)
    async with asyncio.timeout(300):
        await agent.work()
    await runner.cleanup()
    assert [set(e) for e in ends] == [{"failed"}] * 2 and re.search(r" 0\.05 s\b.*--rollout-timeout", ends[0]["failed"])
    assert agent.ended == {"rewarded": 0, "failed": 2}


async def test_an_actor_that_leaves_while_the_directory_is_read_is_ignored(tmp_path):
    """A link to nothing stands for the file that is gone when it is opened: listed, and not there."""
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints/rollout-0").symlink_to(Path("gone"))
    async with asyncio.timeout(300):
        await Agent(tmp_path, never, workers=1, gone_s=0.1, rollout_s=1.0, start_s=0.1).work()


async def test_an_agent_that_starts_before_the_run_waits_for_it_and_ends_after_it(tmp_path):
    """The run takes longer to have an actor than it may be gone for."""

    async def tasks(request):
        (tmp_path / "endpoints/rollout-0").unlink(missing_ok=True)
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/agent/tasks", tasks)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    agent = Agent(tmp_path, never, workers=1, gone_s=0.0, rollout_s=1.0)
    working = asyncio.create_task(agent.work())
    while not agent.listings:
        await asyncio.sleep(0)
    assert not working.done()
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints/rollout-0").write_text(f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with asyncio.timeout(300):
        await working
    await runner.cleanup()
    assert agent.reached


async def test_waiting_for_the_first_actor_of_a_run_ends_at_a_deadline(tmp_path):
    agent = Agent(tmp_path, never, workers=1, gone_s=0.0, rollout_s=1.0, start_s=0.0)
    async with asyncio.timeout(300):
        await agent.work()
    assert not agent.reached


@pytest.mark.parametrize("nonsense", ["[", "null", "{}", '{"session_id": "s", "meta": null}'])
async def test_an_answer_that_is_no_task_does_not_end_the_work(tmp_path, monkeypatch, nonsense):
    monkeypatch.setattr("env_servers.adapters.verifiers.agent.LIST_INTERVAL_S", 0.01)
    answers, is_asked_again, over = [nonsense, nonsense], asyncio.Event(), asyncio.Event()

    async def tasks(request):
        if answers:
            return web.Response(text=answers.pop(), content_type="application/json")
        is_asked_again.set()
        await over.wait()
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/agent/tasks", tasks)
    (tmp_path / "endpoints").mkdir()
    async with TestServer(app) as server:
        (tmp_path / "endpoints/rollout-0").write_text(str(server.make_url("")).rstrip("/"))
        work = asyncio.create_task(Agent(tmp_path, never, workers=1, gone_s=300.0, rollout_s=1.0).work())
        asked_again = asyncio.create_task(is_asked_again.wait())
        await asyncio.wait({work, asked_again}, return_when=asyncio.FIRST_COMPLETED)
        assert asked_again.done()
        over.set()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@pytest.mark.parametrize(
    "output", [{"reward": 10**400}, {"reward": 1.0, "metrics": {"n": 10**400}}, {"reward": 1.0, "metrics": 5}, None]
)
async def test_what_is_no_result_of_a_rollout_is_a_failure_of_it(output, monkeypatch):
    """Stand-ins for the packages have the names that a rollout imports."""
    for name in ("openai", "verifiers", "verifiers.clients", "verifiers.clients.openai_chat_completions_client"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["openai"].AsyncOpenAI = lambda **options: nullcontext()
    sys.modules[name].OpenAIChatCompletionsClient = lambda client: None

    async def run_rollout(*args):
        return output

    environment = SimpleNamespace(requires_group_rollouts=False, rubric=None, run_rollout=run_rollout)
    assert list(await Rollouts(environment).run("http://127.0.0.1:1/v1", "key", {})) == ["failed"]

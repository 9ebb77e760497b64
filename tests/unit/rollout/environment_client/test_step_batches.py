"""Coalesced steps: one streamed request for many, on a virtual clock and against a real environment server."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from env_servers.env import Env, Step
from env_servers.serving import ServingConfig, create_env_app
from openrlhf_tir.errors import EnvError, EnvLost, EnvTimeout
from openrlhf_tir.http_guard.guard import BodyLimits
from openrlhf_tir.protocol import MAX_REPLY_BYTES, EnvSchema, StepReply, StepRequest
from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits
from openrlhf_tir.rollout.environment_client.http import Broken, Full
from openrlhf_tir.rollout.environment_client.step_batches import StepBatches
from openrlhf_tir.rollout.serving.app import serve
from openrlhf_tir.simulation.virtual_loop import run


class Server:
    """Answers an item after its action's seconds; "drop" never, "full" has no room, "break" ends the stream."""

    fault = EnvError("it has no schema")

    def __init__(self, prefers=True, known=True):
        self.prefers, self.known, self.batches, self.singles, self.asked = prefers, known, [], [], 0

    async def ask(self, url):
        self.asked += 1
        if not self.known:
            raise self.fault
        return EnvSchema(env="e", action="x", capacity=1, prefers_batches=self.prefers)

    async def post(self, url, request, timeout_s):
        self.singles.append(request.action)
        return reply(request)

    async def post_batch(self, url, requests, *, timeout_s):
        self.batches.append([r.action for r in requests])
        items = sorted(
            (r for r in requests if r.action != "drop"),
            key=lambda r: 0 if r.action in ("full", "break") else float(r.action),
        )
        start = asyncio.get_running_loop().time()
        for r in items:
            if r.action == "break":
                raise Broken("connection reset")
            if r.action == "full":
                yield reply(r, outcome="capacity", signals={"retry_after_s": 3})
                continue
            await asyncio.sleep(start + float(r.action) - asyncio.get_running_loop().time())
            yield reply(r)


def reply(request, **fields):
    return StepReply(session_id=request.session_id, step_id=request.step_id, observation=request.action, **fields)


def steps(server, *actions, max_batch=64, timeout_s=100.0):
    """-> what became of each action: (observation or exception type, when)."""

    async def main():
        batches = StepBatches(server.ask, server.post, server.post_batch, max_batch=max_batch, max_wait_ms=5)

        async def one(i, action):
            try:
                found = await batches.send(
                    "http://s", StepRequest(session_id=str(i), step_id=0, action=action, deadline_s=9), timeout_s
                )
            except (Full, Broken, EnvTimeout) as e:
                found = type(e).__name__ + (f" {e.after_s:g}" if isinstance(e, Full) else "")
            return getattr(found, "observation", found), round(asyncio.get_running_loop().time(), 3)

        return await asyncio.gather(*[one(i, a) for i, a in enumerate(actions)])

    return run(main())


def test_steps_that_come_together_go_together_and_no_reply_waits_for_the_slowest():
    server = Server()
    assert steps(server, "30", "1", "2") == [("30", 30.005), ("1", 1.005), ("2", 2.005)]
    assert server.batches == [["30", "1", "2"]] and server.asked == 1


def test_a_full_batch_goes_at_once():
    server = Server()
    assert steps(server, "1", "1", "1", max_batch=2) == [("1", 1.0), ("1", 1.0), ("1", 1.005)]
    assert server.batches == [["1", "1"], ["1"]]


def test_refused_and_missing_items_are_their_own_callers_affair():
    assert steps(Server(), "full", "1", "drop") == [("Full 3", 0.005), ("1", 1.005), ("Broken", 1.005)]


def test_a_broken_stream_fails_those_without_an_answer():
    assert [what for what, _ in steps(Server(), "break", "1")] == ["Broken", "Broken"]


def test_an_item_that_misses_its_deadline_does_not_keep_its_caller():
    assert steps(Server(), "50", "1", timeout_s=10) == [("EnvTimeout", 10.0), ("1", 1.005)]


@pytest.mark.parametrize("server", [Server(prefers=False), Server(known=False)])
def test_a_server_that_does_not_ask_for_batches_gets_single_steps(server):
    assert [what for what, _ in steps(server, "1", "2")] == ["1", "2"]
    assert server.singles == ["1", "2"] and server.batches == [] and server.asked == 1


def test_a_server_that_had_no_time_for_its_schema_is_asked_again_and_gets_single_steps_meanwhile():
    server = Server(known=False)
    server.fault = Broken("it starts")

    async def main():
        batches = StepBatches(server.ask, server.post, server.post_batch)

        async def step(i):
            await batches.send("u", StepRequest(session_id=str(i), step_id=0, action="1", deadline_s=9), 9)

        await asyncio.gather(step(0), step(1))
        assert (server.asked, server.singles, server.batches) == (1, ["1", "1"], [])
        await step(2)
        await asyncio.sleep(0)
        assert (server.asked, len(server.singles), server.batches) == (2, 3, [])
        server.known = True
        await step(3)
        await asyncio.sleep(0)
        await step(4)
        assert (server.asked, len(server.singles), server.batches) == (3, 4, [["1"]])

    run(main())


def test_an_answer_after_its_callers_deadline_is_nobodys_and_a_retry_gets_the_answer_to_its_own_request():
    """The first request is answered at 50.005 s, in a stream that another step keeps open; the retry's at 60.01 s."""

    async def main():
        server = Server()
        batches = StepBatches(server.ask, server.post, server.post_batch, max_wait_ms=5)

        def step(session: str, action: str, timeout_s: float):
            request = StepRequest(session_id=session, step_id=0, action=action, deadline_s=9)
            return batches.send("http://s", request, timeout_s)

        other = asyncio.create_task(step("other", "70", 100.0))
        await asyncio.sleep(0)
        with pytest.raises(EnvTimeout):
            await step("late", "50", 10.0)
        answer = await step("late", "50", 100.0)
        at = round(asyncio.get_running_loop().time(), 3)
        return answer.observation, at, (await other).observation, server.batches

    assert run(main()) == ("50", 60.005, "70", [["70", "50"], ["50"]])


def test_a_batch_that_nobody_waits_for_any_more_is_not_sent():
    async def main():
        server = Server()
        batches = StepBatches(server.ask, server.post, server.post_batch)
        task = asyncio.create_task(
            batches.send("u", StepRequest(session_id="s", step_id=0, action="1", deadline_s=9), 9)
        )
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(1)
        assert server.batches == []

    run(main())


def test_a_stream_that_nobody_waits_for_any_more_is_closed():
    """The first is answered after 1 s, the other two leave at 2 s: their items, of 50 s, are given up then."""

    async def main():
        server, ended = Server(), []
        watched = server.post_batch

        async def post_batch(*args, **kwargs):
            try:
                async for r in watched(*args, **kwargs):
                    yield r
            finally:
                ended.append(round(asyncio.get_running_loop().time(), 3))

        batches = StepBatches(server.ask, server.post, post_batch)
        requests = [
            StepRequest(session_id=str(i), step_id=0, action=a, deadline_s=99) for i, a in enumerate(("1", "50", "50"))
        ]
        tasks = [asyncio.create_task(batches.send("u", r, 99)) for r in requests]
        await asyncio.sleep(2)
        assert tasks[0].result().observation == "1" and ended == []
        for task in tasks[1:]:
            task.cancel()
        await asyncio.sleep(1)
        assert ended == [2.0]

    run(main())


class Sleeper(Env):
    """Answers an action after its seconds, and "held" when the test lets it."""

    let_go: asyncio.Event

    async def step(self, action, deadline_s):
        await (self.let_go.wait() if action == "held" else asyncio.sleep(float(action)))
        return Step(observation=action)


async def test_trajectories_of_one_environment_share_requests_to_a_real_server():
    """24 steps at once on a server of 32 workers: the fast ones do not wait for the one that is held."""
    app = create_env_app(Sleeper, ServingConfig(env="sleeper", action="seconds", workers=32, prefers_batches=True))
    app.state.has_token = False
    asked = []

    @app.middleware("http")
    async def note(request, call_next):
        asked.append(request.url.path)
        return await call_next(request)

    serving, port = await serve(app)
    async with EnvClient(
        {"sleeper": f"http://127.0.0.1:{port}"}, limits={"sleeper": EnvLimits(step_timeout_s=600)}
    ) as client:
        all_are_reset = asyncio.Barrier(24)
        Sleeper.let_go = asyncio.Event()

        async def one(action):
            async with client.session("sleeper", {}) as s:
                await s.reset()
                await all_are_reset.wait()
                return (await s.step(action, step_id=0)).observation

        held = asyncio.create_task(one("held"))
        assert await asyncio.gather(*[one("0.01") for _ in range(23)]) == ["0.01"] * 23
        Sleeper.let_go.set()
        assert await held == "held"
        assert 0 < asked.count("/step_batch") < 12 and "/step" not in asked
    serving.cancel()


async def test_a_session_that_a_batch_server_has_forgotten_is_lost_as_one_of_a_single_step_is():
    app = create_env_app(Sleeper, ServingConfig(env="sleeper", action="seconds", workers=4, prefers_batches=True))
    app.state.has_token = False
    serving, port = await serve(app)
    async with EnvClient({"sleeper": f"http://127.0.0.1:{port}"}) as client:
        async with client.session("sleeper", {}) as forgotten, client.session("sleeper", {}) as kept:
            await forgotten.reset()
            await kept.reset()
            await app.state.service.sessions.close(forgotten._id)
            with pytest.raises(EnvLost):
                await forgotten.step("0", step_id=0)
            assert (await kept.step("0", step_id=0)).observation == "0"
    serving.cancel()


async def test_an_action_that_is_too_long_for_the_server_does_not_fail_the_other_steps_of_its_batch():
    config = ServingConfig(
        env="sleeper", action="seconds", workers=4, prefers_batches=True, bodies=BodyLimits(max_body_bytes=1000)
    )
    app = create_env_app(Sleeper, config)
    app.state.has_token = False
    serving, port = await serve(app)
    async with EnvClient({"sleeper": f"http://127.0.0.1:{port}"}) as client:
        all_are_reset = asyncio.Barrier(3)

        async def one(action):
            async with client.session("sleeper", {}) as s:
                await s.reset()
                await all_are_reset.wait()
                return (await s.step(action, step_id=0)).outcome

        assert await asyncio.gather(one("0"), one("0" * 2000), one("0.0")) == ["ok", "model_error", "ok"]
    serving.cancel()


def line(item, **fields):
    return {"session_id": item["session_id"], "step_id": item["step_id"], "observation": item["action"], **fields}


@pytest.mark.parametrize(
    ("bad", "lost"),
    [
        (lambda item: json.dumps(line(item, reward="x")), []),
        (lambda item: json.dumps(line(item, extra=1)), []),
        (lambda item: json.dumps(line(item, observation="x" * MAX_REPLY_BYTES)), []),
        (lambda item: "no JSON", []),
        (lambda item: "[" * 30000, []),
        (lambda item: json.dumps({"session_id": [item["session_id"]], "step_id": {}}), []),
        (lambda item: "no JSON", ["c"]),
    ],
)
async def test_an_invalid_line_of_a_batch_fails_its_own_step_only(bad, lost):
    """The actions in `lost` have no line at first: only when they are sent again is it clear whose line was invalid."""
    lost = list(lost)

    async def schema(request):
        return web.json_response({"env": "e", "action": "x", "capacity": 4, "prefers_batches": True})

    async def reset(request):
        return web.json_response({"session_id": (await request.json())["session_id"]})

    async def step_batch(request):
        lines = []
        for item in sorted(await request.json(), key=lambda item: item["action"]):
            if item["action"] in lost:
                lost.remove(item["action"])
            else:
                lines.append(bad(item) if item["action"] == "b" else json.dumps(line(item)))
        return web.Response(text="\n".join(lines))

    app = web.Application()
    app.add_routes([web.get("/schema", schema), web.post("/reset", reset), web.post("/step_batch", step_batch)])
    async with TestServer(app) as server, EnvClient({"e": str(server.make_url(""))}) as client:
        client.batches.max_batch = 4
        all_are_reset = asyncio.Barrier(4)

        async def one(action):
            async with client.session("e", {}) as s:
                await s.reset()
                await all_are_reset.wait()
                return (await s.step(action, step_id=0)).observation

        a, b, c, d = await asyncio.gather(*map(one, "abcd"), return_exceptions=True)
    assert (a, c, d) == ("a", "c", "d") and isinstance(b, EnvError)

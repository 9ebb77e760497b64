"""The rollout actor's HTTP facade, on a real socket in this event loop, in front of a service that answers at once."""

from __future__ import annotations

import asyncio
import json

import httpx
import numpy as np
import pytest

from openrlhf_tir.errors import ConfigError, EngineError, RequestRefused, Unavailable, unknown
from openrlhf_tir.http_guard.guard import BodyLimits
from openrlhf_tir.serving import session_routes
from openrlhf_tir.serving.app import ServerLimits, build_app, serve
from openrlhf_tir.serving.session_requests import REQUIRED, STOP, STRICT
from openrlhf_tir.types import Sampling, Task

from .rollout_fakes import FakeService, trajectory

TOKEN = "s3cret"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def client(service):
    limits = ServerLimits(max_groups=2, max_requests=2, max_sessions=2, bodies=BodyLimits(max_body_bytes=2000), kept_groups=1, retry_after_s=7)
    app = build_app(service, token=TOKEN, vllm_app=service.vllm_app(), limits=limits)
    server, port = await serve(app)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=5) as client:
        yield client
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


async def finished(client, group_id: str) -> dict:
    async with asyncio.timeout(5):
        while (reply := (await client.get(f"/v1/groups/{group_id}")).json())["status"] == "running":
            await asyncio.sleep(0.01)
    return reply


async def test_a_posted_group_is_accepted_and_can_be_polled(client, service):
    service.gate.clear()
    posted = await client.post("/v1/groups", json={"prompt": "1+1?", "label": "2", "n": 2})
    assert posted.status_code == 202
    group_id = posted.json()["id"]
    assert (await client.get(f"/v1/groups/{group_id}")).json()["status"] == "running"
    service.gate.set()
    reply = await finished(client, group_id)
    assert reply["status"] == "done"
    assert reply["error"] is None
    assert len(reply["trajectories"]) == 2
    first = reply["trajectories"][0]
    assert first["segments"][0] == {"source": "model", "token_ids": [4, 5], "logprobs": [-0.5, -1.0], "versions": [2, 3], "text": "hi"}
    assert first["segments"][1]["source"] == "env"
    assert first["segments"][1]["versions"] == [-1]
    assert first["calls"][0]["action"] == "print(42)"
    assert first["reward"] == 1.0
    assert first["failed"] is None
    assert (service.asked[0].label, service.asked[0].env) == ("2", None)


async def test_a_stream_has_one_trajectory_per_line_and_says_when_it_is_complete(client):
    async with client.stream("POST", "/v1/groups?stream=true", json={"prompt": "q", "n": 3}) as reply:
        lines = [json.loads(line) async for line in reply.aiter_lines()]
    assert [line["index"] for line in lines[:-1]] == [0, 1, 2]
    assert lines[-1] == {"done": True, "trajectories": 3}


async def test_a_failure_half_way_is_the_last_line_of_the_stream_and_the_error_of_a_polled_group(client, service):
    service.fails = True
    async with client.stream("POST", "/v1/groups?stream=true", json={"prompt": "q"}) as reply:
        lines = [json.loads(line) async for line in reply.aiter_lines()]
    assert lines[-1] == {"done": False, "trajectories": 1, "error": "engine_error", "detail": "engine 0 is broken"}
    group_id = (await client.post("/v1/groups", json={"prompt": "q"})).json()["id"]
    reply = await finished(client, group_id)
    assert (reply["status"], reply["error"], len(reply["trajectories"])) == ("failed", "engine_error: engine 0 is broken", 1)


async def test_a_client_that_leaves_a_stream_gives_the_group_up_and_its_slot_back(client, service):
    """At once, not when the next trajectory is ready: it may be minutes away."""
    service.hold_at = 1
    async with client.stream("POST", "/v1/groups?stream=true", json={"prompt": "q", "n": 5}) as reply:
        await anext(reply.aiter_lines())
    async with asyncio.timeout(5):
        while not service.given_up:
            await asyncio.sleep(0.01)
    for _ in range(2):
        assert (await client.post("/v1/groups", json={"prompt": "q"})).status_code == 202


async def test_one_group_too_many_is_told_when_to_come_back(client, service):
    service.gate.clear()
    ids = [(await client.post("/v1/groups", json={"prompt": "q"})).json()["id"] for _ in range(2)]
    for path in ("/v1/groups", "/v1/groups?stream=true"):
        full = await client.post(path, json={"prompt": "q"})
        assert full.status_code == 429
        assert full.headers["retry-after"] == "7"
        assert "2 groups" in full.json()["detail"]
    service.gate.set()
    for group_id in ids:
        await finished(client, group_id)
    assert (await client.post("/v1/groups", json={"prompt": "q"})).status_code == 202


async def test_old_finished_groups_are_forgotten(client):
    ids = []
    for _ in range(6):
        ids.append((await client.post("/v1/groups", json={"prompt": "q"})).json()["id"])
        await finished(client, ids[-1])
    gone = await client.get(f"/v1/groups/{ids[0]}")
    assert gone.status_code == 404
    assert "No group" in gone.json()["detail"]
    assert (await client.get(f"/v1/groups/{ids[-1]}")).status_code == 200


async def test_generate_is_token_ids_in_and_token_ids_logprobs_versions_out(client, service):
    reply = await client.post("/generate", json={"token_ids": [1, 2], "max_tokens": 5, "stop": ["x"], "seed": 3, "temperature": 0.5})
    assert reply.json() == {"token_ids": [7], "logprobs": [-0.25], "versions": [3], "text": "x", "finish_reason": "stop", "stop_reason": "x"}
    assert service.asked == [([1, 2], Sampling(5, ("x",), 0.5, 1.0, 3))]


@pytest.mark.parametrize("stream", ["", "?stream=true"])
async def test_a_group_that_the_queue_has_no_room_for_is_429_before_anything_is_sampled(client, service, stream):
    full = await client.post(f"/v1/groups{stream}", json={"prompt": "p", "n": 1001})
    assert (full.status_code, full.headers["retry-after"]) == (429, "1") and "rollout.max_queue = 1000" in full.json()["detail"]
    assert service.asked == [] and (await client.post(f"/v1/groups{stream}", json={"prompt": "p", "n": 1000})).status_code in (200, 202)


async def test_generate_over_the_bound_is_429_and_a_broken_engine_503(client, service):
    service.gate.clear()
    body = {"token_ids": [1], "max_tokens": 1}
    running = [asyncio.create_task(client.post("/generate", json=body)) for _ in range(2)]
    async with asyncio.timeout(5):
        while len(service.asked) < 2:
            await asyncio.sleep(0.01)
    assert (await client.post("/generate", json=body)).status_code == 429
    service.gate.set()
    assert [r.status_code for r in await asyncio.gather(*running)] == [200, 200]
    service.fails = True
    broken = await client.post("/generate", json=body)
    assert broken.status_code == 503
    assert broken.json() == {"error": "engine_error", "detail": "engine 0 is broken"}


async def test_what_no_engine_can_answer_is_422_and_never_reaches_one(client, service):
    wrong = [
        {"token_ids": []}, {"token_ids": [-1]}, {"token_ids": [100]}, {"token_ids": [1] * 50}, {"token_ids": [2**40]}, {"max_tokens": 0}, {"max_tokens": 51},
        {"max_tokens": 10**12}, {"temperature": 1e9}, {"temperature": 1e-300}, {"temperature": -1}, {"seed": -1}, {"seed": 2**63}, {"top_p": 1e-300},
        {"stop": [""]}, {"stop": ["x"] * 99}, {"tempreature": 1},
    ]  # fmt: skip
    for fields in wrong:
        reply = await client.post("/generate", json={"token_ids": [1], "max_tokens": 1} | fields)
        assert (reply.status_code, service.asked) == (422, []), fields


async def test_the_bounds_themselves_are_answered(client, service):
    for right in ({"token_ids": [0, 99]}, {"token_ids": [1] * 49}, {"max_tokens": 50}, {"temperature": 0.01}, {"temperature": 100}, {"seed": 2**63 - 1}):
        assert (await client.post("/generate", json={"token_ids": [1], "max_tokens": 1} | right)).status_code == 200


async def test_a_request_that_the_engine_itself_refuses_is_422_and_no_fault_of_the_engine(client, service):
    async def refuse(token_ids, sampling):
        raise RequestRefused("too long")

    service.generate = refuse
    reply = await client.post("/generate", json={"token_ids": [1], "max_tokens": 1})
    assert (reply.status_code, reply.json()) == (422, {"error": "request_refused", "detail": "too long"})


async def test_a_group_that_cannot_be_sampled_is_422_before_its_stream_begins(client, service):
    for wrong in ['"\\ud800"', '"p", "meta": {"a": ["\\udfff"]}', '"p", "meta": {"a": NaN}', '"p", "temperature": 1e-300', '"p", "n": 1025']:
        for stream in ("", "?stream=true"):
            reply = await client.post(f"/v1/groups{stream}", content=f'{{"prompt": {wrong}}}', headers={"Content-Type": "application/json"})
            assert (reply.status_code, service.asked) == (422, []), wrong


async def test_an_environment_that_nobody_knows_is_422(client, service):
    def admit(request):
        raise unknown("env", "nowhere", ["math"], "Correct it.")

    service.admit = admit
    reply = await client.post("/v1/groups", json={"prompt": "p", "env": "nowhere"})
    assert (reply.status_code, "Known: math" in reply.json()["detail"]) == (422, True)


async def test_a_bug_half_way_is_the_last_line_of_the_stream_and_not_a_broken_one(client, service, caplog):
    async def run_group(request):
        yield trajectory(0)
        raise ZeroDivisionError

    service.run_group = run_group
    async with client.stream("POST", "/v1/groups?stream=true", json={"prompt": "q"}) as reply:
        lines = [json.loads(line) async for line in reply.aiter_lines()]
    assert lines[-1] == {"done": False, "trajectories": 1, "error": "internal", "detail": "ZeroDivisionError"}
    group_id = (await client.post("/v1/groups", json={"prompt": "q"})).json()["id"]
    assert (await finished(client, group_id))["error"] == "internal: ZeroDivisionError"


async def test_a_logprob_that_is_not_finite_is_null_on_the_wire(client, service):
    async def run_group(request):
        t = trajectory(0)
        t.segments[0].logprobs[0] = -np.inf
        yield t

    service.run_group = run_group
    async with client.stream("POST", "/v1/groups?stream=true", json={"prompt": "q"}) as reply:
        first = json.loads(await anext(reply.aiter_lines()))
    group_id = (await client.post("/v1/groups", json={"prompt": "q"})).json()["id"]
    polled = (await finished(client, group_id))["trajectories"][0]
    assert first["segments"][0]["logprobs"] == polled["segments"][0]["logprobs"] == [None, -1.0]


async def test_a_client_that_leaves_generate_takes_its_request_along(client, service):
    service.gate.clear()
    gone = asyncio.Event()
    generate = service.generate

    async def watched(token_ids, sampling):
        try:
            return await generate(token_ids, sampling)
        except asyncio.CancelledError:
            gone.set()
            raise

    service.generate = watched
    body = {"token_ids": [1], "max_tokens": 1}
    asking = [asyncio.create_task(client.post("/generate", json=body)) for _ in range(2)]
    async with asyncio.timeout(10):
        while len(service.asked) < 2:
            await asyncio.sleep(0.01)
        asking[0].cancel()
        await gone.wait()
        service.gate.set()
        assert (await asking[1]).status_code == 200
        assert (await client.post("/generate", json=body)).status_code == 200


async def test_pause_and_resume_reach_the_service(client, service):
    assert (await client.post("/pause")).json() == {"paused": True}
    assert service.paused
    assert (await client.post("/resume")).json() == {"paused": False}
    assert not service.paused


async def test_vllms_app_answers_below_our_routes(client):
    assert (await client.get("/v1/models")).text == "vllm"
    assert (await client.get("/health")).json() == {"status": "ok", "version": 3}
    metrics = await client.get("/metrics")
    assert metrics.text == "tir_running 0\n"
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/v1/groups/x"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {TOKEN}", TOKEN])
async def test_every_route_but_health_wants_the_token(client, path, header):
    headers = {} if header is None else {"Authorization": header}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers) as stranger:
        assert (await stranger.get(path)).status_code == 401
        assert (await stranger.get("/health")).status_code == 200


async def test_a_body_over_the_limit_is_413_announced_or_in_chunks(client, service):
    async def chunks():
        yield b'{"prompt": "'
        for _ in range(30):
            yield b"x" * 100
        yield b'"}'

    assert (await client.post("/v1/groups", content=b"x" * 2001)).status_code == 413
    assert (await client.post("/v1/groups", content=chunks(), headers={"Content-Type": "application/json"})).status_code == 413
    assert service.asked == []


async def test_an_address_that_others_can_reach_needs_a_token(service):
    with pytest.raises(ConfigError, match="no token"):
        await serve(build_app(service, token=None), "0.0.0.0")


async def test_a_port_in_use_is_named(service, client):
    with pytest.raises(Unavailable, match=f"127.0.0.1:{client.base_url.port}"):
        await serve(build_app(service, token=None), "127.0.0.1", client.base_url.port)


async def test_a_stopped_server_closes_its_port(service):
    server, port = await serve(build_app(service, token=None))
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://127.0.0.1:{port}/health")


# --- traced sessions


async def test_an_external_agent_takes_a_task_asks_and_is_rewarded(client, service):
    running = asyncio.create_task(service.agents.run(Task("1+1?", "2", "math", {"row": 7}), 4))
    task = (await client.post("/agent/tasks", json={"wait_s": 5})).json()
    assert (task["prompt"], task["label"], task["env"], task["meta"]) == ("1+1?", "2", "math", {"row": 7})
    assert task["base_url"] == f"{client.base_url}/sessions/{task['session_id']}/v1"
    assert (await client.post(f"{task['base_url']}/completions", json={"prompt": [0, 1], "sampled": [2]})).text == "sampled"
    await client.post(f"{task['base_url']}/completions", json={"prompt": [0, 1, 2, 9], "sampled": [3]})
    trace = (await client.get(f"/sessions/{task['session_id']}")).json()
    assert [(s["source"], s["token_ids"]) for s in trace["segments"]] == [("model", [2]), ("env", [9]), ("model", [3])]
    end = (await client.post(f"/sessions/{task['session_id']}/reward", json={"reward": 0.5, "parts": {"steps": 2}})).json()
    assert end == {"requests": 2, "chains": 1, "model_tokens": 2, "branch_tokens": 0, "notes": [], "trajectory": None}
    t = await running
    assert (t.index, t.reward, t.token_ids.tolist(), t.versions.tolist()) == (4, 0.5, [2, 9, 3], [3, -1, 3])


async def test_an_agent_that_hung_up_while_it_waited_gets_no_task(client, service):
    waiting = asyncio.create_task(client.post("/agent/tasks", json={"wait_s": 30}))
    async with asyncio.timeout(10):
        while not service.agents._offers._getters:
            await asyncio.sleep(0.01)
        waiting.cancel()
        while service.agents._offers._getters:
            await asyncio.sleep(0.01)
    running = asyncio.create_task(service.agents.run(Task("1+1?", "2", "math"), 0))
    task = (await client.post("/agent/tasks", json={"wait_s": 5})).json()
    assert task["prompt"] == "1+1?"
    await client.delete(f"/sessions/{task['session_id']}")
    await running


async def test_requests_outside_the_session_are_not_in_its_trace(client, service):
    session = (await client.post("/sessions", json={})).json()
    await client.post("/v1/completions", json={"prompt": [0], "sampled": [1]})
    end = (await client.post(f"/sessions/{session['session_id']}/reward", json={"reward": 1.0})).json()
    assert (end["requests"], end["trajectory"]["failed"], end["trajectory"]["reward"]) == (0, "agent_silent", 1.0)


async def _being_answered(client, service) -> tuple[dict, asyncio.Task]:
    """An open session, and a request of it that the service holds back."""
    session = (await client.post("/sessions", json={})).json()
    service.gate.clear()
    asking = asyncio.create_task(client.post(f"{session['base_url']}/completions", json={"prompt": [0], "sampled": [1]}))
    async with asyncio.timeout(5):
        while not service.agents.sessions.get(session["session_id"]).running:
            await asyncio.sleep(0.01)
    return session, asking


async def test_a_reward_waits_for_the_request_that_is_being_answered(client, service):
    """A client that has read its stream to the end posts the reward before the server is done with the request."""
    session, asking = await _being_answered(client, service)
    reward = asyncio.create_task(client.post(f"/sessions/{session['session_id']}/reward", json={"reward": 1.0}))
    await client.get("/health")
    assert not reward.done()
    service.gate.set()
    assert (await reward).json()["requests"] == 1 and (await asking).status_code == 200


async def test_a_reward_whose_request_never_ends_is_409_and_the_session_stays_open(client, service, monkeypatch):
    monkeypatch.setattr(session_routes, "QUIET_S", 0.05)
    session, asking = await _being_answered(client, service)
    refused = await client.post(f"/sessions/{session['session_id']}/reward", json={"reward": 1.0})
    assert refused.status_code == 409 and "1 requests" in refused.json()["detail"]
    service.gate.set()
    await asking
    assert (await client.post(f"/sessions/{session['session_id']}/reward", json={"reward": 1.0})).json()["requests"] == 1


async def test_why_an_agent_failed_travels_with_its_trajectory(client, service):
    running = asyncio.create_task(service.agents.run(Task("q", ""), 0))
    task = (await client.post("/agent/tasks", json={})).json()
    await client.post(f"{task['base_url']}/completions", json={"prompt": [0], "sampled": [1]})
    await client.post(f"/sessions/{task['session_id']}/reward", json={"failed": "KeyError: 'answer'"})
    t = await running
    assert (t.failed, t.why, t.reward) == ("agent_failed", "KeyError: 'answer'", None)


async def test_what_a_framework_asks_for_by_default_is_served_and_what_was_changed_is_said(client, service):
    """Strict tools and a tool_choice would bend the distribution; a stop text that is cut off breaks the chain."""
    session = (await client.post("/sessions", json={})).json()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    asked = {"prompt": [0], "sampled": [1], "tools": [tool], "tool_choice": "required", "stop": ["\n"]}
    await client.post(f"{session['base_url']}/completions", json=asked)
    served = service.bodies[-1]
    assert served["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert (served["tool_choice"], served["stop"], served["include_stop_str_in_output"]) == ("auto", ["\n"], True)
    await client.post(f"{session['base_url']}/completions", json=asked)
    end = (await client.post(f"/sessions/{session['session_id']}/reward", json={})).json()
    assert end["notes"] == [STRICT, REQUIRED, STOP]


async def test_a_request_outside_a_session_is_left_as_it_is(client, service):
    await client.post("/v1/completions", json={"prompt": [0], "sampled": [1], "stop": ["x"]})
    assert "include_stop_str_in_output" not in service.bodies[-1]


@pytest.mark.parametrize("overflow", ["fail", "cut"])
async def test_a_conversation_longer_than_the_context_fails_or_is_cut_as_configured(client, service, overflow):
    service.agents._overflow = overflow
    running = asyncio.create_task(service.agents.run(Task("q", ""), 0))
    task = (await client.post("/agent/tasks", json={})).json()
    await client.post(f"{task['base_url']}/completions", json={"prompt": [0], "sampled": [1]})
    refused = await client.post(f"{task['base_url']}/completions", json={"overflow": True})
    assert refused.status_code == 400
    await client.post(f"/sessions/{task['session_id']}/reward", json={"failed": "BadRequestError"})
    t = await running
    if overflow == "fail":
        assert (t.failed, t.reward) == ("agent_failed", None)
    else:  # no reward of its own: the run's judges it
        assert (t.failed, t.reward, t.finish_reason, t.token_ids.tolist()) == (None, None, "length", [1])


async def test_an_ended_session_answers_in_the_shape_that_openais_clients_read(client, service):
    session = (await client.post("/sessions", json={})).json()
    await client.post(f"/sessions/{session['session_id']}/reward", json={})
    reply = await client.post(f"{session['base_url']}/completions", json={"prompt": [0], "sampled": [1]})
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == reply.json()["detail"] and reply.json()["error"]["type"] == "NotFoundError"


async def test_an_ended_session_is_404_for_requests_rewards_and_questions(client, service):
    running = asyncio.create_task(service.agents.run(Task("q", ""), 0))
    task = (await client.post("/agent/tasks", json={})).json()
    assert (await client.delete(f"/sessions/{task['session_id']}")).status_code == 204
    assert (await running).failed == "agent_gave_up"
    for request in (
        client.post(f"{task['base_url']}/completions", json={"prompt": [0], "sampled": [1]}),
        client.post(f"/sessions/{task['session_id']}/reward", json={}),
        client.get(f"/sessions/{task['session_id']}"),
    ):
        reply = await request
        assert reply.status_code == 404 and task["session_id"] in reply.json()["detail"]


async def test_no_task_is_204_and_one_session_too_many_429(client):
    assert (await client.post("/agent/tasks", json={"wait_s": 0.01})).status_code == 204
    ids = [(await client.post("/sessions", json={})).json()["session_id"] for _ in range(2)]
    full = await client.post("/sessions", json={})
    assert (full.status_code, full.headers["retry-after"]) == (429, "7")
    await client.delete(f"/sessions/{ids[0]}")
    assert (await client.post("/sessions", json={})).status_code == 201


async def test_a_reward_that_is_no_number_is_422(client):
    session = (await client.post("/sessions", json={})).json()
    reply = await client.post(f"/sessions/{session['session_id']}/reward", content='{"reward": NaN}', headers={"Content-Type": "application/json"})
    assert reply.status_code == 422


async def test_the_openai_app_has_its_own_bound(client, service):
    service.gate.clear()
    body = {"prompt": [0], "sampled": [1]}
    running = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(2)]
    await asyncio.sleep(0.1)
    full = await client.post("/v1/completions", json=body)
    assert (full.status_code, full.headers["retry-after"]) == (429, "7")
    service.gate.set()
    assert [r.status_code for r in await asyncio.gather(*running)] == [200, 200]
    assert (await client.post("/v1/completions", json=body)).status_code == 200


async def test_one_openapi_document_describes_our_routes_and_the_mounted_ones(client):
    schema = (await client.get("/openapi.json")).json()
    ours = {"/v1/groups", "/v1/groups/{group_id}", "/generate", "/health", "/metrics", "/pause", "/resume"}
    sessions = {"/agent/tasks", "/sessions", "/sessions/{session_id}", "/sessions/{session_id}/reward"}
    assert ours | sessions <= schema["paths"].keys()
    assert schema["security"] == [{"token": []}] and schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert "429" in schema["paths"]["/generate"]["post"]["responses"]
    assert "versions" in schema["components"]["schemas"]["GenerateReply"]["properties"]


async def test_every_refusal_of_an_agents_request_has_openais_shape(client, service, monkeypatch):
    """The token, the body's size and form, the bounds, the routes, the engine: 401, 404, 409, 413, 422, 429 and 503."""
    monkeypatch.setattr(session_routes, "QUIET_S", 0.05)
    session = (await client.post("/sessions", json={})).json()
    path = f"/sessions/{session['session_id']}"
    refusals = {
        401: client.get(path, headers={"Authorization": "Bearer wrong"}),
        404: client.get("/sessions/nobody"),
        413: client.post(f"{path}/v1/completions", content=b"x" * 2001),
        422: client.post(f"{path}/reward", json={"reward": "much"}),
    }
    for status, refusal in refusals.items():
        reply = await refusal
        assert reply.status_code == status and set(reply.json()) == {"error", "detail"}, reply.text
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"} and reply.json()["error"]["message"]
    assert "body.reward: Input should be a valid number" in reply.json()["error"]["message"]
    other, asking = await _being_answered(client, service)
    busy = await client.post(f"/sessions/{other['session_id']}/reward", json={})
    assert (busy.status_code, busy.json()["error"]["type"]) == (409, "ConflictError")
    full = await client.post("/sessions", json={})
    assert (full.status_code, full.json()["error"]["type"], full.headers["retry-after"]) == (429, "RateLimitError", "7")
    service.gate.set()
    await asking

    async def broken(session, index=0):
        raise EngineError("engine 0 is broken")

    service.agents.finish = broken
    lost = await client.post(f"{path}/reward", json={})
    assert lost.status_code == 503
    assert lost.json() == {
        "error": {"message": "engine 0 is broken", "type": "InternalServerError", "param": None, "code": "engine_error"},
        "detail": "engine 0 is broken",
    }


async def test_openais_own_client_shows_the_message_of_a_refusal(client):
    import openai

    session = (await client.post("/sessions", json={})).json()
    await client.delete(f"/sessions/{session['session_id']}")
    async with openai.AsyncOpenAI(base_url=session["base_url"], api_key=TOKEN, max_retries=0) as asks:
        with pytest.raises(openai.NotFoundError, match=r"No session .* is open") as gone:
            await asks.models.list()
        assert (gone.value.code, gone.value.type) == ("session_gone", "NotFoundError")


async def test_a_refusal_of_our_own_routes_keeps_its_shape(client):
    assert (await client.get("/v1/groups/nobody")).json().keys() == {"detail"}

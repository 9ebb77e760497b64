"""Sessions of external agents at the rollout actor's HTTP facade: tasks, rewards, what frameworks ask for, and refusals
in OpenAI's shape."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import httpx
import psutil
import pytest
from starlette.responses import JSONResponse

from openrlhf_tir.data.template_shows import Shows
from openrlhf_tir.errors import EngineError
from openrlhf_tir.rollout.serving import session_routes
from openrlhf_tir.rollout.serving.app import build_app
from openrlhf_tir.rollout.serving.session_requests import REQUIRED_NOTE, STOP_NOTE, STRICT_NOTE, TOOLS_NOTE
from openrlhf_tir.types import Task
from tests.contract.rollout_fakes import CALLING

from .conftest import TOKEN


async def test_an_external_agent_takes_a_task_asks_and_is_rewarded(client, service):
    running = asyncio.create_task(service.agents.run(Task("1+1?", "2", "math", {"row": 7}), 4))
    task = (await client.post("/agent/tasks", json={"wait_s": 60})).json()
    assert (task["prompt"], task["label"], task["env"], task["meta"]) == ("1+1?", "2", "math", {"row": 7})
    assert task["base_url"] == f"{client.base_url}/sessions/{task['session_id']}/v1"
    assert (
        await client.post(f"{task['base_url']}/completions", json={"prompt": [0, 1], "sampled": [2]})
    ).text == "sampled"
    await client.post(f"{task['base_url']}/completions", json={"prompt": [0, 1, 2, 9], "sampled": [3]})
    trace = (await client.get(f"/sessions/{task['session_id']}")).json()
    assert [(s["source"], s["token_ids"]) for s in trace["segments"]] == [("model", [2]), ("env", [9]), ("model", [3])]
    end = (
        await client.post(f"/sessions/{task['session_id']}/reward", json={"reward": 0.5, "parts": {"steps": 2}})
    ).json()
    assert end == {"requests": 2, "chains": 1, "model_tokens": 2, "branch_tokens": 0, "notes": [], "trajectory": None}
    t = await running
    assert (t.index, t.reward, t.token_ids.tolist(), t.versions.tolist()) == (4, 0.5, [2, 9, 3], [3, -1, 3])


async def test_an_agent_that_hung_up_while_it_waited_gets_no_task(client, service):
    waiting = asyncio.create_task(client.post("/agent/tasks", json={"wait_s": 30}))
    async with asyncio.timeout(300):
        while not service.agents._offers._getters:
            await asyncio.sleep(0.01)
        waiting.cancel()
        while service.agents._offers._getters:
            await asyncio.sleep(0.01)
    running = asyncio.create_task(service.agents.run(Task("1+1?", "2", "math"), 0))
    task = (await client.post("/agent/tasks", json={"wait_s": 60})).json()
    assert task["prompt"] == "1+1?"
    await client.delete(f"/sessions/{task['session_id']}")
    await running


def _hung_up(port: int) -> bool:
    """Whether the end of a client's connection has reached this process's socket."""
    return any(c.laddr.port == port and c.status == psutil.CONN_CLOSE_WAIT for c in psutil.Process().net_connections())


async def test_a_task_that_a_killed_agent_had_asked_for_is_on_offer_again(client, service):
    """Its connection is closed when the task comes, and a busy event loop has not read that yet."""
    killed = socket.create_connection((client.base_url.host, client.base_url.port))
    head = f"POST /agent/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json"
    killed.sendall(f'{head}\r\nContent-Length: 14\r\n\r\n{{"wait_s": 30}}'.encode())
    async with asyncio.timeout(300):
        while not service.agents._offers._getters:
            await asyncio.sleep(0.01)
    running = asyncio.create_task(service.agents.run(Task("1+1?", "2", "math"), 0))
    killed.close()
    while not _hung_up(client.base_url.port):
        pass  # and the event loop does not run
    while service.agents._offers._getters:
        await asyncio.sleep(0)
    task = (await client.post("/agent/tasks", json={"wait_s": 60})).json()
    assert task["prompt"] == "1+1?" and service.agents.offered == 0
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
    asking = asyncio.create_task(
        client.post(f"{session['base_url']}/completions", json={"prompt": [0], "sampled": [1]})
    )
    async with asyncio.timeout(300):
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
    assert refused.status_code == 409 and refused.json()["detail"].startswith("1 ")
    service.gate.set()
    await asking
    monkeypatch.undo()
    assert (await client.post(f"/sessions/{session['session_id']}/reward", json={"reward": 1.0})).json()[
        "requests"
    ] == 1


async def test_why_an_agent_failed_travels_with_its_trajectory(client, service):
    running = asyncio.create_task(service.agents.run(Task("q", ""), 0))
    task = (await client.post("/agent/tasks", json={"wait_s": 60})).json()
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
    assert end["notes"] == [STRICT_NOTE, REQUIRED_NOTE, STOP_NOTE]


@pytest.mark.parametrize(("sent", "served"), [({}, 0.7), ({"temperature": None}, 0.7), ({"temperature": 0}, 0)])
@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses", "messages"])
async def test_a_request_without_a_temperature_has_the_sessions(client, service, path, sent, served):
    """vLLM would take 1, which a session of another temperature refuses."""
    session = (await client.post("/sessions", json={"temperature": 0.7})).json()
    await client.post(f"{session['base_url']}/{path}", json={"prompt": [0], "sampled": [1], **sent})
    assert service.bodies[-1]["temperature"] == served
    end = (await client.post(f"/sessions/{session['session_id']}/reward", json={})).json()
    assert end["notes"] == []


async def test_a_greedy_evaluations_task_is_answered_greedily(client, service):
    running = asyncio.create_task(service.agents.run(Task("1+1?", "2", "math"), 0, temperature=0.0))
    task = (await client.post("/agent/tasks", json={"wait_s": 60})).json()
    await client.post(f"{task['base_url']}/completions", json={"prompt": [0], "sampled": [1]})
    assert service.bodies[-1]["temperature"] == 0
    await client.delete(f"/sessions/{task['session_id']}")
    await running


@pytest.mark.parametrize(
    ("choice", "served"),
    [
        ({"type": "function", "function": {"name": "f"}}, "auto"),
        ({"type": "tool", "name": "f"}, {"type": "auto"}),
        ({"type": "any"}, {"type": "auto"}),
        ({"type": "none"}, {"type": "none"}),
        ("none", "none"),
        (None, None),
    ],
)
async def test_a_choice_of_tool_is_free_in_the_form_of_its_api(client, service, choice, served):
    session = (await client.post("/sessions", json={})).json()
    asked = {"prompt": [0], "sampled": [1], **ONE_TOOL, "tool_choice": choice}
    await client.post(f"{session['base_url']}/messages", json=asked)
    assert service.bodies[-1]["tool_choice"] == served


@pytest.mark.parametrize("shown", [True, False])
async def test_tools_that_the_models_chat_template_does_not_show_are_noted_once(service, shown):
    vllm_app = service.vllm_app()
    vllm_app.state.template_shows = Shows(tools=shown)
    transport = httpx.ASGITransport(build_app(service, token=None, vllm_app=vllm_app))
    asked = {"prompt": [0], "sampled": [1], "tools": [{"type": "function", "function": {"name": "f"}}]}
    async with httpx.AsyncClient(transport=transport, base_url="http://actor") as client:
        session = (await client.post("/sessions", json={})).json()
        for _ in range(2):
            await client.post(f"{session['base_url']}/completions", json=asked)
        end = (await client.post(f"/sessions/{session['session_id']}/reward", json={})).json()
    assert end["notes"] == ([] if shown else [TOOLS_NOTE])
    assert service.bodies[-1]["tools"] == asked["tools"]


ONE_TOOL = {"tools": [{"type": "function", "function": {"name": "f"}}]}


@pytest.mark.parametrize("path", CALLING)
@pytest.mark.parametrize("choice", [{}, {"tool_choice": None}, {"tool_choice": "auto"}, {"tool_choice": "required"}])
async def test_who_waits_for_calls_of_an_engine_without_a_parser_is_told(service, path, choice):
    """vLLM 0.29 answers tools by plain text on /v1/responses, and where tool_choice is null."""
    vllm_app = service.vllm_app()
    vllm_app.state.parses_calls = False
    transport = httpx.ASGITransport(build_app(service, token=None, vllm_app=vllm_app))
    asked = {"prompt": [0], "sampled": [1], **ONE_TOOL, **choice}
    async with httpx.AsyncClient(transport=transport, base_url="http://actor") as client:
        session = (await client.post("/sessions", json={})).json()
        for url in (path, session["base_url"] + path.removeprefix("/v1")):
            refused = await client.post(url, json=asked)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "tool_call_parser")
            assert not service.bodies
            for none in ("none", {"type": "none"}):
                assert (await client.post(url, json={**asked, "tool_choice": none})).status_code == 200
            assert service.bodies.pop()["tools"] == asked["tools"]
            service.bodies.clear()
            assert (await client.post(url, json={"prompt": [0], "sampled": [1]})).status_code == 200
            service.bodies.clear()


@pytest.mark.parametrize("body", ["{", "[" * 100_000])
async def test_a_body_that_cannot_be_read_is_left_to_vllm(service, body):
    async def vllm_app(scope, receive, send):
        await JSONResponse({}, 400)(scope, receive, send)

    vllm_app.state = SimpleNamespace(parses_calls=False, template_shows=Shows(system=False))
    transport = httpx.ASGITransport(build_app(service, token=None, vllm_app=vllm_app))
    async with httpx.AsyncClient(transport=transport, base_url="http://actor") as client:
        session = (await client.post("/sessions", json={})).json()
        for url in ("/v1/chat/completions", f"{session['base_url']}/chat/completions"):
            assert (await client.post(url, content=body)).status_code == 400


async def test_a_request_outside_a_session_is_left_as_it_is(client, service):
    await client.post("/v1/completions", json={"prompt": [0], "sampled": [1], "stop": ["x"]})
    assert "include_stop_str_in_output" not in service.bodies[-1]


async def test_an_ended_session_answers_in_the_shape_that_openais_clients_read(client, service):
    session = (await client.post("/sessions", json={})).json()
    await client.post(f"/sessions/{session['session_id']}/reward", json={})
    reply = await client.post(f"{session['base_url']}/completions", json={"prompt": [0], "sampled": [1]})
    assert reply.status_code == 404
    assert (
        reply.json()["error"]["message"] == reply.json()["detail"] and reply.json()["error"]["type"] == "NotFoundError"
    )


async def test_an_ended_session_is_404_for_requests_rewards_and_questions(client, service):
    running = asyncio.create_task(service.agents.run(Task("q", ""), 0))
    task = (await client.post("/agent/tasks", json={"wait_s": 60})).json()
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
    reply = await client.post(
        f"/sessions/{session['session_id']}/reward",
        content='{"reward": NaN}',
        headers={"Content-Type": "application/json"},
    )
    assert reply.status_code == 422


async def test_the_openai_app_has_its_own_bound(client, service):
    service.gate.clear()
    body = {"prompt": [0], "sampled": [1]}
    running = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(2)]
    async with asyncio.timeout(300):
        while len(service.bodies) < 2:
            await asyncio.sleep(0.01)
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
    assert (
        schema["security"] == [{"token": []}] and schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    )
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
        "error": {
            "message": "engine 0 is broken",
            "type": "InternalServerError",
            "param": None,
            "code": "engine_error",
        },
        "detail": "engine 0 is broken",
    }


@pytest.mark.slow
async def test_openais_own_client_shows_the_message_of_a_refusal(client):
    import openai

    session = (await client.post("/sessions", json={})).json()
    await client.delete(f"/sessions/{session['session_id']}")
    async with openai.AsyncOpenAI(base_url=session["base_url"], api_key=TOKEN, max_retries=0) as asks:
        with pytest.raises(openai.NotFoundError, match=repr(session["session_id"])) as gone:
            await asks.models.list()
        assert (gone.value.code, gone.value.type) == ("session_gone", "NotFoundError")


async def test_a_refusal_of_our_own_routes_keeps_its_shape(client):
    assert (await client.get("/v1/groups/nobody")).json().keys() == {"detail"}

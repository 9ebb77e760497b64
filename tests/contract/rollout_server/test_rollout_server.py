"""The rollout actor's HTTP facade: groups, token ids in and out, bounds, refusals, the token."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import numpy as np
import pytest

from openrlhf_tir.errors import ConfigError, RequestRefused, Unavailable, unknown
from openrlhf_tir.rollout.serving.app import build_app, serve
from openrlhf_tir.types import Sampling
from tests.contract.rollout_fakes import trajectory

from .conftest import TOKEN


async def finished(client, group_id: str) -> dict:
    async with asyncio.timeout(300):
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
    assert first["segments"][0] == {
        "source": "model",
        "token_ids": [4, 5],
        "logprobs": [-0.5, -1.0],
        "versions": [2, 3],
        "text": "hi",
    }
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
    assert (reply["status"], reply["error"], len(reply["trajectories"])) == (
        "failed",
        "engine_error: engine 0 is broken",
        1,
    )


async def test_a_client_that_leaves_a_stream_gives_the_group_up_and_its_slot_back(client, service):
    """At once, not when the next trajectory is ready: it may be minutes away."""
    service.hold_at = 1
    async with client.stream("POST", "/v1/groups?stream=true", json={"prompt": "q", "n": 5}) as reply:
        await anext(reply.aiter_lines())
    async with asyncio.timeout(300):
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
        assert re.search(r"\b2\b", full.json()["detail"])
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
    assert repr(ids[0]) in gone.json()["detail"]
    assert (await client.get(f"/v1/groups/{ids[-1]}")).status_code == 200


async def test_generate_is_token_ids_in_and_token_ids_logprobs_versions_out(client, service):
    reply = await client.post(
        "/generate", json={"token_ids": [1, 2], "max_tokens": 5, "stop": ["x"], "seed": 3, "temperature": 0.5}
    )
    assert reply.json() == {
        "token_ids": [7],
        "logprobs": [-0.25],
        "versions": [3],
        "text": "x",
        "finish_reason": "stop",
        "stop_reason": "x",
    }
    assert service.asked == [([1, 2], Sampling(5, ("x",), 0.5, 1.0, 3))]


@pytest.mark.parametrize("stream", ["", "?stream=true"])
async def test_a_group_that_the_queue_has_no_room_for_is_429_before_anything_is_sampled(client, service, stream):
    full = await client.post(f"/v1/groups{stream}", json={"prompt": "p", "n": 1001})
    assert (full.status_code, full.headers["retry-after"]) == (429, "1") and "1000" in full.json()["detail"]
    assert service.asked == [] and (
        await client.post(f"/v1/groups{stream}", json={"prompt": "p", "n": 1000})
    ).status_code in (200, 202)


async def test_generate_over_the_bound_is_429_and_a_broken_engine_503(client, service):
    service.gate.clear()
    body = {"token_ids": [1], "max_tokens": 1}
    running = [asyncio.create_task(client.post("/generate", json=body)) for _ in range(2)]
    async with asyncio.timeout(300):
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
        {"token_ids": []}, {"token_ids": [-1]}, {"token_ids": [100]}, {"token_ids": [1] * 50}, {"token_ids": [2**40]},
        {"max_tokens": 0}, {"max_tokens": 51}, {"max_tokens": 10**12}, {"temperature": 1e9}, {"temperature": 1e-300},
        {"temperature": -1}, {"seed": -1}, {"seed": 2**63}, {"top_p": 1e-300}, {"stop": [""]}, {"stop": ["x"] * 99},
        {"tempreature": 1},
    ]  # fmt: skip
    for fields in wrong:
        reply = await client.post("/generate", json={"token_ids": [1], "max_tokens": 1} | fields)
        assert (reply.status_code, service.asked) == (422, []), fields


async def test_the_bounds_themselves_are_answered(client, service):
    for right in (
        {"token_ids": [0, 99]},
        {"token_ids": [1] * 49},
        {"max_tokens": 50},
        {"temperature": 0.01},
        {"temperature": 100},
        {"seed": 2**63 - 1},
    ):
        assert (await client.post("/generate", json={"token_ids": [1], "max_tokens": 1} | right)).status_code == 200


async def test_a_request_that_the_engine_itself_refuses_is_422_and_no_fault_of_the_engine(client, service):
    async def refuse(token_ids, sampling):
        raise RequestRefused("too long")

    service.generate = refuse
    reply = await client.post("/generate", json={"token_ids": [1], "max_tokens": 1})
    assert (reply.status_code, reply.json()) == (422, {"error": "request_refused", "detail": "too long"})


async def test_a_group_that_cannot_be_sampled_is_422_before_its_stream_begins(client, service):
    for wrong in [
        '"\\ud800"',
        '"p", "meta": {"a": ["\\udfff"]}',
        '"p", "meta": {"a": NaN}',
        '"p", "temperature": 1e-300',
        '"p", "n": 1025',
    ]:
        for stream in ("", "?stream=true"):
            reply = await client.post(
                f"/v1/groups{stream}", content=f'{{"prompt": {wrong}}}', headers={"Content-Type": "application/json"}
            )
            assert (reply.status_code, service.asked) == (422, []), wrong


async def test_an_environment_that_nobody_knows_is_422(client, service):
    def admit(request):
        raise unknown("env", "nowhere", ["math"], "Correct it.")

    service.admit = admit
    reply = await client.post("/v1/groups", json={"prompt": "p", "env": "nowhere"})
    assert reply.status_code == 422 and re.search(r"'nowhere'.*\bmath\b", reply.json()["detail"])


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
    async with asyncio.timeout(300):
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


@pytest.mark.slow
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
    assert (
        await client.post("/v1/groups", content=chunks(), headers={"Content-Type": "application/json"})
    ).status_code == 413
    assert service.asked == []


async def test_an_address_that_others_can_reach_needs_a_token(service):
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0") as refused:
        await serve(build_app(service, token=None), "0.0.0.0")
    assert refused.value.code == "token"


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

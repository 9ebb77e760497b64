"""EnvClient against a scripted server: what is tried again, what is raised, and what the server gets to see."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from aiohttp import web

from openrlhf_tir.config import Env
from openrlhf_tir.errors import ConfigError, EnvError, EnvFull, EnvLost, EnvTimeout, InfraError, TaskRefused
from openrlhf_tir.protocol import TRAINABLE_OUTCOMES
from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits
from openrlhf_tir.rollout.environment_client.http import MAX_REPLY_BYTES
from tests.free_port import free_port

from .scripted_env import Script, client, hang_up, ok, one_step, outcome, stall, status


async def test_an_episode_resets_steps_and_closes_its_session():
    async with Script() as script, client(script, token="t") as c:
        async with c.session("e", {"label": "1"}, seed=7) as s:
            assert await s.reset() == "hi"
            assert (await s.step("print(1)", step_id=3)).observation == "fine"
        [reset], [step] = script.resets, script.seen
        assert (reset["task"], reset["seed"]) == ({"label": "1"}, 7)
        assert (step["step_id"], step["action"], step["session_id"]) == (3, "print(1)", reset["session_id"])
        assert 30 < step["deadline_s"] <= 60
        assert await script.deleted.get() == reset["session_id"]
        assert script.headers[0]["Authorization"] == "Bearer t"


async def test_a_bug_in_the_close_of_an_environment_is_logged_once_and_costs_no_reply(caplog):
    async with Script() as script:
        for text in (text for text in ODD_BODIES if '{"code_defect"' not in text):
            script.close_reply = text
            async with client(script) as c:
                assert (await one_step(c)).outcome == "ok"
        assert not caplog.records
        async with client(script) as c:
            for n in range(2):
                signals = {"code_defect": "mine.py:7", "error": f"session {n}", "traceback": "a line"}
                script.close_reply = json.dumps({"closed": True, "signals": signals})
                assert (await one_step(c)).outcome == "ok"
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "mine.py:7" in record.getMessage() and "a line" in record.getMessage()


async def test_a_broken_connection_is_tried_again_with_the_same_ids():
    async with Script(hang_up, status(503), hang_up) as script, client(script, max_retries=3) as c:
        assert (await one_step(c)).outcome == "ok"
    assert len(script.seen) == 4
    assert len({(s["session_id"], s["step_id"], s["action"]) for s in script.seen}) == 1
    assert script.seen[3]["deadline_s"] < script.seen[0]["deadline_s"]


async def test_after_max_retries_it_is_an_env_error_that_names_url_and_fact():
    async with Script(hang_up, status(500, "boom"), status(500, "boom")) as script, client(script, max_retries=2) as c:
        with pytest.raises(EnvError, match=rf"{script.url} .* 3 .*HTTP 500: 'boom'"):
            await one_step(c)
    assert len(script.seen) == 3


async def test_capacity_is_waited_for_and_is_no_failure():
    refusals = [status(429, Retry_After="0.02"), outcome("capacity", retry_after_s=0.02)] * 3
    async with Script(*refusals) as script, client(script, max_retries=0) as c:
        assert (await one_step(c)).outcome == "ok"
    assert len(script.seen) == 7


@pytest.mark.parametrize(
    "retry_after", ["nan", "-5", "-inf", "1e999", "inf", "0", "0.0001", "soon", "", "Wed, 21 Oct 2015 07:28:00 GMT"]
)
async def test_a_full_server_is_asked_a_few_times_whatever_it_says_about_when(retry_after):
    """The pause grows: 0.02, 0.02, 0.04, 0.08, ... s; without growth it would be asked 25 times in half a second."""

    async def no_session(request, body):
        return web.Response(status=429, headers={"Retry-After": retry_after})

    async with (
        Script(*[status(429, Retry_After=retry_after)] * 100) as script,
        client(script, capacity_timeout_s=0.5) as c,
    ):
        with pytest.raises(EnvFull):
            await one_step(c)
    assert 1 <= len(script.seen) <= 9
    async with Script() as script, client(script, capacity_timeout_s=0.5) as c:
        script.on_reset = no_session
        with pytest.raises(EnvFull):
            await one_step(c)
    assert 1 <= len(script.resets) <= 9


async def test_waiting_for_room_takes_nothing_from_the_steps_deadline():
    async with Script(*[status(429, Retry_After="0.1")] * 3) as script, client(script, step_timeout_s=300.0) as c:
        assert (await one_step(c)).outcome == "ok"
    assert [s["deadline_s"] for s in script.seen] == [300.0] * 4


async def test_no_room_for_capacity_timeout_s_is_its_own_fault():
    async with Script(*[status(429, Retry_After="1")] * 9) as script, client(script, capacity_timeout_s=0.3) as c:
        with pytest.raises(EnvFull, match=r"'e' .* 0\.3 s.*env\.step_timeout_s") as e:
            await one_step(c)
    assert len(script.seen) == 1
    assert e.value.reason == "capacity"


@pytest.mark.parametrize(("step_s", "capacity_s"), [(20, 300), (1800, 1800)])
def test_room_is_waited_for_as_long_as_the_call_that_takes_it_may_last(step_s, capacity_s):
    assert EnvLimits.of(Env(step_timeout_s=step_s)).capacity_timeout_s == capacity_s


async def test_a_server_that_does_not_answer_is_a_timeout():
    async with Script(stall) as script, client(script, step_timeout_s=0.2, grace_s=0.1) as c:
        with pytest.raises(EnvTimeout, match=f"{script.url}.* 0.3 s"):
            await one_step(c)


@pytest.mark.parametrize(("name", "error"), [("env_error", EnvError), ("timeout", EnvTimeout)])
async def test_outcomes_that_must_not_be_trained_are_raised(name, error):
    async with Script(outcome(name, error="disk full")) as script, client(script) as c:
        with pytest.raises(error):
            await one_step(c)
    assert len(script.seen) == 1


async def test_the_models_own_errors_come_back_as_replies():
    async with Script(outcome("model_error", error_type="time_limit")) as script, client(script) as c:
        reply = await one_step(c)
    assert reply.outcome in TRAINABLE_OUTCOMES
    assert reply.signals == {"error_type": "time_limit"}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("<html>", "body: .*JSON"),
        ("[]", "body: "),
        ('{"session_id": "s"}', "step_id: "),
        ('{"session_id": "s", "step_id": 0, "outcome": "fine"}', "outcome: .*'ok'"),
        ('{"session_id": "s", "step_id": 0, "extra": 1}', "extra: "),
        ('{"session_id": "another", "step_id": 0}', r"/step .*\(another/0 .* \S+/0\)"),
    ],
)
async def test_a_malformed_reply_is_an_env_error_with_url_and_fact(text, fact):
    async with Script(status(200, text)) as script, client(script) as c:
        with pytest.raises(EnvError) as e:
            await one_step(c)
    assert re.search(f"{script.url}.*{fact}", str(e.value))


ODD_BODIES = [
    *("", "null", "5", "NaN", "[]", "{}", '"text"', "9" * 5000, "[" * 30000, '{"a":' * 6000, "\x00", "<html>"),
    *('{"signals": null}', '{"signals": 5}', '{"signals": ["code_defect"]}', '{"signals": {"code_defect": {}}}'),
    *('{"detail": 5}', '{"detail": null}', '{"session_id": "\\ud800"}', '{"session_id": "s", "server": "//x"}'),
    *('{"session_id": "s", "server": "http://a..b"}', '{"session_id": "s", "server": "http://[::1"}'),
]


@pytest.mark.parametrize("code", [200, 404, 422, 500, 503])
async def test_whatever_a_server_answers_is_a_fault_of_the_server(code):
    async with Script() as script:
        for text in ODD_BODIES:
            for at_reset in (True, False):
                script.on_reset = status(code, text) if at_reset else None
                script.steps = [] if at_reset else [status(code, text)]
                async with client(script, max_retries=0) as c:
                    with pytest.raises(InfraError):
                        await one_step(c)


@pytest.mark.parametrize(
    "answer", [b"", b"\x16\x03\x01garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
async def test_a_server_that_does_not_speak_http_is_lost(answer):
    async def connected(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, EnvClient({"e": url}, max_retries=0) as c:
        with pytest.raises(EnvLost):
            await one_step(c)


async def test_a_refusal_that_comes_in_pieces_is_read_to_its_end():
    async def in_pieces(request, body):
        response = web.StreamResponse(status=422)
        await response.prepare(request)
        for piece in (b'{"detail": ', b'"task: ', b'no label"}'):
            await response.write(piece)
            await asyncio.sleep(0.01)
        return response

    async with Script() as script, client(script) as c:
        script.on_reset = in_pieces
        with pytest.raises(TaskRefused):
            await one_step(c)


async def test_a_huge_reply_is_not_read_to_its_end():
    async def huge(request, body):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(MAX_REPLY_BYTES // (1 << 20) + 8):
            await response.write(bytes(1 << 20))
        return response

    async with Script(huge) as script, client(script) as c:
        with pytest.raises(EnvError, match=rf"{script.url}.* {MAX_REPLY_BYTES}"):
            await one_step(c)


@pytest.mark.parametrize(("code", "fact"), [(404, "HTTP 404"), (401, r"\(401\)\. .*TIR_ENV_TOKEN"), (422, "HTTP 422")])
async def test_a_refusal_is_final(code, fact):
    async with Script(status(code)) as script, client(script) as c:
        with pytest.raises(EnvError, match=fact):
            await one_step(c)
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    ("at_reset", "detail", "error"),
    [
        (True, '{"detail": "task: KeyError: label"}', TaskRefused),
        (True, '{"detail": [{"loc": ["body", "seed"], "msg": "missing"}]}', EnvError),
        (True, "no JSON", EnvError),
        (False, '{"detail": "a step that it cannot read"}', EnvError),
    ],
)
async def test_a_422_says_that_the_row_is_refused_only_with_a_sentence_at_reset(at_reset, detail, error):
    async with Script(*([] if at_reset else [status(422, detail)])) as script, client(script) as c:
        if at_reset:
            script.on_reset = status(422, detail)
        with pytest.raises(EnvError) as caught:
            await one_step(c)
    assert type(caught.value) is error


async def test_sessions_spread_over_servers_and_stay_on_theirs():
    async with Script() as a, Script() as b, client(a, b) as c:
        async with c.session("e", {}) as s, c.session("e", {}) as t:
            await s.reset()
            await t.reset()
            for k in range(3):
                await s.step("x", step_id=k)
    assert len(a.resets) == len(b.resets) == 1
    assert sorted((len(a.seen), len(b.seen))) == [0, 3]


async def test_a_dead_server_is_passed_over_at_reset():
    async with Script() as alive:
        async with EnvClient({"e": [f"http://127.0.0.1:{free_port()}", alive.url]}, backoff_s=0.01) as c:
            for _ in range(6):
                assert (await one_step(c)).outcome == "ok"


async def test_steps_go_to_the_server_that_reset_names():
    async with Script() as front, Script() as holder, client(front) as c:
        front.names_server = holder.url
        assert (await one_step(c)).outcome == "ok"
    assert (len(front.seen), len(holder.seen)) == (0, 1)


async def test_no_more_calls_are_in_flight_than_allowed():
    inside, most = 0, 0

    async def counted(request, body):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.02)
        inside -= 1
        return ok(body)

    async with Script(*[counted] * 12) as script, client(script, max_concurrency=3) as c:
        await asyncio.gather(*[one_step(c) for _ in range(12)])
    assert most == 3


async def test_an_action_that_is_larger_than_the_server_takes_is_the_models_mistake_and_the_session_goes_on():
    async with Script(status(413, "Body exceeds the limit")) as script, client(script) as c:
        async with c.session("e", {}) as session:
            await session.reset()
            reply = await session.step("x" * 1000, step_id=0)
            assert (reply.outcome, reply.signals["error_type"]) == ("model_error", "malformed_call")
            assert (await session.step("a", step_id=1)).outcome == "ok"


async def test_a_cancelled_step_still_closes_its_session():
    async with Script(stall) as script, client(script) as c:
        episode = asyncio.create_task(one_step(c))
        while not script.seen:
            await asyncio.sleep(0.005)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        assert await asyncio.wait_for(script.deleted.get(), 60) == script.seen[0]["session_id"]


async def test_an_unknown_environment_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'pyton'\. .*: e\b"):
        EnvClient({"e": "http://x"}).session("pyton", {})

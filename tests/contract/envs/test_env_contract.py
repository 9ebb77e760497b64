"""The environment protocol, over HTTP, against every server that we ship: what a trainer may rely on.

Any other server: `ENV_URL=http://host:port ENV_TOKEN=... pytest tests/contract/envs/test_env_contract.py` (with actions
of its own in ENV_ACTION and ENV_SLOW_ACTION, the second one running for at least a second).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from openrlhf_tir.http_guard.guard import BodyLimits
from openrlhf_tir.protocol import EnvSchema, Health, StepReply

from ..env_process import Http, env_server
from ..slow_search import write_corpus


@dataclass(frozen=True)
class Subject:
    module: str
    action: str = "print(1)"
    slow_action: str = "import time; time.sleep(1.5); print('slow')"
    slow_task: dict = field(default_factory=dict)
    task: dict = field(default_factory=dict)
    flags: Callable[[Path], list[str]] = lambda tmp: []
    """Further flags of the server; `tmp` is a directory for its files."""
    shows_action: bool = True
    """Whether the observation of the action "print(7)" holds a 7."""


def patient(tmp: Path) -> list[str]:
    """Flags for python_tir: no code here is to be stopped, and this machine may stall."""
    return ["--code-timeout", "60", "--no-languages"]


STATEFUL = {"stateful": True}
SUBJECTS = {
    "python_tir": Subject("env_servers.python_tir", flags=patient),
    "python_tir stateful": Subject("env_servers.python_tir", task=STATEFUL, slow_task=STATEFUL, flags=patient),
    "echo": Subject("env_servers.echo", action="hello", slow_action="slow", slow_task={"delay_s": 1.5}),
    "search": Subject(
        "tests.contract.slow_search",
        action="number 7",
        slow_action="slow",
        flags=lambda tmp: ["--corpus", write_corpus(tmp)],
    ),
    "math": Subject(
        "env_servers.math",
        action="5",
        slow_action=r"\sum_{k=1}^{9999} \sum_{j=1}^{9999} \frac{1}{k+j^2}",
        slow_task={"label": "7"},
        task={"label": "5"},
        flags=lambda tmp: ["--verify-timeout", "0.8"],
        shows_action=False,
    ),
}
if "ENV_URL" in os.environ:
    SUBJECTS = {
        "given": Subject(
            "", os.environ.get("ENV_ACTION", "print(1)"), os.environ.get("ENV_SLOW_ACTION", Subject("").slow_action)
        )
    }


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Starts the server of a subject; subjects of one module share one."""
    urls: dict[str, str] = {}
    with ExitStack() as stack:

        def url_of(subject: Subject) -> str:
            if subject.module not in urls:
                tmp = tmp_path_factory.mktemp("env")
                server = env_server(subject.module, tmp, "--workers", "2", *subject.flags(tmp))
                urls[subject.module], _ = stack.enter_context(server)
            return urls[subject.module]

        yield url_of


@pytest.fixture(scope="module", params=SUBJECTS)
def running(request, servers):
    subject = SUBJECTS[request.param]
    return subject, os.environ["ENV_URL"].rstrip("/") if "ENV_URL" in os.environ else servers(subject)


@pytest.fixture
async def env(running):
    subject, url = running
    async with Http(url, os.environ.get("ENV_TOKEN")) as http:
        yield subject, http


@pytest.mark.slow
async def test_health_and_schema_are_the_protocols(env):
    _, http = env
    health = Health.model_validate((await http.send("GET", "/health"))[1])
    schema = EnvSchema.model_validate((await http.send("GET", "/schema"))[1])
    assert health.env == schema.env
    assert health.status == "ok"
    assert health.capacity == schema.capacity >= 1


async def test_a_step_answers_its_own_session_and_id(env):
    subject, http = env
    session = await http.open(subject.task)
    status, body, _ = await http.step(session, 5, subject.action)
    reply = StepReply.model_validate(body)
    assert (status, reply.session_id, reply.step_id, reply.outcome) == (200, session, 5, "ok")
    assert reply.observation


async def test_the_same_step_id_is_executed_once(env):
    subject, http = env
    session = await http.open(subject.task)
    before = await http.steps_counted()
    replies = [await http.step(session, 0, subject.action) for _ in range(3)]
    assert replies[0][1] == replies[1][1] == replies[2][1]
    assert await http.steps_counted() == before + 1


@pytest.mark.slow
async def test_a_retry_that_arrives_while_the_first_runs_gets_the_same_reply(env):
    subject, http = env
    session = await http.open(subject.slow_task)
    before = await http.steps_counted()
    first, second = await asyncio.gather(*[http.step(session, 0, subject.slow_action) for _ in range(2)])
    assert first[1] == second[1]
    assert first[1]["outcome"] == "ok"
    assert await http.steps_counted() == before + 1


@pytest.mark.slow
async def test_a_caller_that_disconnects_gets_the_reply_when_it_retries(env):
    subject, http = env
    for _ in range(5):
        session = await http.open(subject.slow_task)
        before = await http.steps_counted()
        call = asyncio.create_task(http.step(session, 0, subject.slow_action))
        await http.until_begun(call)
        disconnects = call.cancel()
        status, body, _ = await http.step(session, 0, subject.slow_action)
        assert (status, body["outcome"]) == (200, "ok")
        assert await http.steps_counted() == before + 1
        if disconnects:
            break  # else it had ended before
    assert disconnects


async def test_an_old_id_with_another_action_is_a_conflict(env):
    subject, http = env
    session = await http.open(subject.task)
    await http.step(session, 0, subject.action)
    status, body, _ = await http.step(session, 0, subject.action + " ")
    assert status == 409
    assert "step_id 0" in body["detail"]


async def test_a_reset_can_be_retried_but_not_changed(env):
    subject, http = env
    request = {"task": {**subject.task, "k": 1}, "seed": 7, "session_id": f"chosen-{os.getpid()}-{id(http)}"}
    first, retried = [await http.send("POST", "/reset", json=request) for _ in range(2)]
    assert first[:2] == retried[:2]
    assert first[1]["session_id"] == request["session_id"]
    assert (await http.send("POST", "/reset", json={**request, "seed": 8}))[0] == 409


@pytest.mark.slow
async def test_a_missed_deadline_is_a_timeout_on_every_retry(env):
    subject, http = env
    session = await http.open(subject.slow_task)
    # whoever waited for the action's end would have its reply
    status, body, _ = await http.step(session, 0, subject.slow_action, deadline_s=0.4)
    assert (status, body["outcome"]) == (200, "timeout")
    assert (await http.step(session, 0, subject.slow_action))[1]["outcome"] == "timeout"
    assert (await http.step(session, 1, subject.slow_action))[1]["outcome"] == "ok"


async def test_steps_without_a_session_are_not_found(env):
    subject, http = env
    status, body, _ = await http.step("nobody", 0, subject.action)
    assert status == 404
    assert "nobody" in body["detail"]


async def test_a_closed_session_is_unknown_and_closing_it_again_is_no_error(env):
    subject, http = env
    session = await http.open(subject.task)
    assert (await http.send("DELETE", f"/session/{session}"))[1] == {"closed": True}
    assert (await http.send("DELETE", f"/session/{session}"))[1] == {"closed": False}
    assert (await http.step(session, 0, subject.action))[0] == 404


async def test_closing_a_session_ends_its_running_step(env):
    subject, http = env
    for _ in range(5):
        session = await http.open(subject.slow_task)
        call = asyncio.create_task(http.step(session, 0, subject.slow_action))
        await http.until_begun(call)
        await http.send("DELETE", f"/session/{session}")
        await http.until_running(0)
        if (status := (await call)[0]) != 200:
            break  # else it had ended before
    assert status == 404


@pytest.mark.parametrize(
    "malformed",
    [
        b"{",
        b"[]",
        b'{"session_id": "x"}',
        b'{"session_id": "x", "step_id": -1, "action": "a", "deadline_s": 1}',
        b'{"session_id": "x", "step_id": 0, "action": "a", "deadline_s": 0}',
    ],
)
async def test_a_malformed_step_is_refused_and_affects_no_other(env, malformed):
    subject, http = env
    status, body, _ = await http.send("POST", "/step", data=malformed, headers={"Content-Type": "application/json"})
    assert status == 422
    assert body["detail"]
    assert (await http.step(await http.open(subject.task), 0, subject.action))[1]["outcome"] == "ok"


@pytest.mark.slow
async def test_a_batch_answers_each_item_as_it_finishes(env):
    subject, http = env
    for _ in range(5):
        slow, quick = await http.open(subject.slow_task), await http.open(subject.task)
        items = [
            http.step_body(slow, 0, subject.slow_action),
            http.step_body(quick, 0, subject.action),
            http.step_body("nobody", 0, subject.action),
            http.step_body(slow, 1, subject.slow_action, deadline_s=0.5),
        ]
        seen = []
        async with http._http.post(http.url + "/step_batch", json=items) as r:
            assert r.content_type == "application/x-ndjson"
            async for line in r.content:
                seen.append(StepReply.model_validate_json(line))
        outcomes = {(s.session_id, s.step_id): s.outcome for s in seen}
        assert outcomes == {("nobody", 0): "env_error", (quick, 0): "ok", (slow, 1): "timeout", (slow, 0): "ok"}
        if (seen[-1].session_id, seen[-1].step_id) == (slow, 0):
            break  # else a process that stalled made the quick one slower
    assert (seen[-1].session_id, seen[-1].step_id) == (slow, 0)


@pytest.mark.slow
async def test_concurrent_sessions_get_their_own_replies(env):
    subject, http = env

    async def one(i: int) -> bool:
        session = await http.open(subject.task)
        _, body, _ = await http.step(session, i, f"print({i})")
        return body["session_id"] == session and (str(i) in body["observation"] or not subject.shows_action)

    assert all(await asyncio.gather(*[one(i) for i in range(24)]))


async def test_metrics_are_prometheus_text(env):
    subject, http = env
    await http.step(await http.open(subject.task), 0, subject.action)
    status, text, _ = await http.send("GET", "/metrics")
    assert status == 200
    assert 'outcome="ok"' in text
    assert "env_sessions " in text


@pytest.mark.slow
async def test_a_body_over_the_limit_is_refused(env):
    _, http = env
    status, body, _ = await http.send(
        "POST", "/step", data=b"x" * (5 << 20), headers={"Content-Type": "application/json"}
    )
    assert status == 413
    assert re.search(rf"\b{5 << 20}\b.*\b{BodyLimits().max_body_bytes}\b", body["detail"])

    async def chunks():
        for _ in range(10):
            yield b" " * (1 << 20)
        yield json.dumps(http.step_body("s", 0, "a")).encode()

    assert (await http.send("POST", "/step", data=chunks(), headers={"Content-Type": "application/json"}))[0] == 413

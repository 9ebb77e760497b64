"""A replica of env_serve without Ray: its server process, the requests that it passes on, and what Serve is told when
that process is gone."""

from __future__ import annotations

import json
import re
import signal
import threading

import pytest
from starlette.requests import Request

from openrlhf_tir.cluster.env_serve.replica import EnvReplica
from openrlhf_tir.rollout.environment_client.client import EnvClient

pytestmark = pytest.mark.slow


async def asked(
    replica: EnvReplica, method: str, path: str, body: dict | None = None, token: str = "t"
) -> tuple[int, dict]:
    """(status, body) of a request as Serve's proxy hands it over, below the route /echo."""

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode() if body is not None else b""}

    headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {token}".encode())]
    scope = {
        "type": "http",
        "method": method,
        "path": f"/echo{path}",
        "root_path": "/echo",
        "query_string": b"",
        "headers": headers,
    }
    answer = await replica(Request(scope, receive))
    body = json.loads(answer.body) if answer.body.startswith(b"{") else {"text": answer.body.decode()}
    return answer.status_code, body


async def test_a_session_routed_by_serve_continues_at_the_replicas_address(monkeypatch):
    monkeypatch.setenv("TIR_ENV_TOKEN", "t")
    gone = threading.Event()
    replica = EnvReplica("env_servers.echo", ["--max-sessions", "2"], "127.0.0.1", 120.0, 2.0, gone.set)
    try:
        assert (await asked(replica, "GET", "/health"))[1]["env"] == "echo"
        assert (await asked(replica, "POST", "/reset", {"task": {}}, token="another"))[0] == 401
        _, opened = await asked(replica, "POST", "/reset", {"session_id": "s", "task": {}})
        assert opened["server"].startswith("http://127.0.0.1:") and opened["server"] == replica._url
        async with EnvClient({"echo": opened["server"]}, token="t") as client, client.session("echo", {}) as session:
            await session.reset()
            assert session.server == opened["server"] and (await session.step("a", step_id=0)).observation == "a"
            assert (await asked(replica, "POST", "/reset", {"session_id": "third", "task": {}}))[0] == 429
        await replica.check_health()
        assert not gone.is_set()
        replica._process.kill()
        assert gone.wait(60.0), "the actor ends, and Serve starts another one"
        with pytest.raises(RuntimeError, match=r"-9\b"):
            await replica.check_health()
        status, body = await asked(replica, "POST", "/reset", {"session_id": "x", "task": {}})
        assert status == 503 and re.search(r"\(\w+Error\)", body["text"])
    finally:
        replica.__del__()
        await replica._http.close()


async def test_a_released_replica_ends_its_server_and_a_failed_start_is_reported(monkeypatch):
    monkeypatch.delenv("TIR_ENV_TOKEN", raising=False)
    gone = threading.Event()
    replica = EnvReplica("env_servers.echo", [], "127.0.0.1", 120.0, 2.0, gone.set)
    process = replica._process
    watch = next(t for t in threading.enumerate() if t.name == "server process")
    replica.__del__()
    watch.join(60.0)
    assert process.poll() == -signal.SIGTERM and not gone.is_set(), "asked to end, not killed, and no loss"
    with pytest.raises(RuntimeError, match=r"env_servers\.echo"):
        EnvReplica("env_servers.echo", ["--no-such-flag"], "127.0.0.1", 120.0, 2.0)

"""What a server does at its limits: capacity, sessions, tokens, stopping. On echo, whose steps cost nothing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from env_servers.echo.__main__ import main as echo
from env_servers.python_tir.__main__ import main as python_tir
from openrlhf_tir.protocol import CODE_DEFECT

from ..env_process import Http, env_server, growing

pytestmark = pytest.mark.slow  # it waits for servers

ECHO = "env_servers.echo"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The URL of a server on which one step runs and one waits."""
    with env_server(ECHO, tmp_path_factory.mktemp("env"), "--workers", "1", "--max-queue", "1") as (url, _):
        yield url


@pytest.fixture
async def http(small):
    async with Http(small) as http:
        yield http


async def test_a_full_server_answers_429_and_the_id_can_be_tried_again(http):
    runs, waits, refused = [await http.open({"delay_s": delay_s}) for delay_s in (600, 0, 0)]
    running = asyncio.create_task(http.step(runs, 0, "a"))
    await http.until_running(1)
    waiting = asyncio.create_task(http.step(waits, 0, "a"))
    await http.until_waiting(1)
    status, body, headers = await http.step(refused, 0, "a")
    assert (status, body["outcome"]) == (429, "capacity")
    assert int(headers["Retry-After"]) >= 1
    await http.send("DELETE", f"/session/{runs}")
    assert ((await running)[0], (await waiting)[0]) == (404, 200)
    assert (await http.step(refused, 0, "a"))[1]["outcome"] == "ok"


async def test_in_a_batch_capacity_is_an_outcome(http):
    sessions = [await http.open({"delay_s": 1.0}) for _ in range(4)]
    body = [http.step_body(session, 0, "a") for session in sessions]
    _, text, _ = await http.send("POST", "/step_batch", json=body)
    assert text.count('"outcome":"capacity"') == 2
    assert text.count('"outcome":"ok"') == 2
    assert '"retry_after_s":1' in text


async def test_waiting_for_a_worker_counts_against_the_deadline(http):
    a, b = [await http.open({"delay_s": delay_s}) for delay_s in (600, 0)]
    first = asyncio.create_task(http.step(a, 0, "a"))
    await http.until_running(1)
    assert (await http.step(b, 0, "b", deadline_s=0.3))[1]["outcome"] == "timeout"
    await http.send("DELETE", f"/session/{a}")
    assert (await first)[0] == 404


async def test_an_environment_that_raises_is_env_error_and_the_server_lives(http):
    session = await http.open()
    _, body, _ = await http.step(session, 0, "fail")
    assert body["outcome"] == "env_error" and body["signals"]["error"].startswith("RuntimeError: ")
    assert CODE_DEFECT not in body["signals"], "an environment of this package has no defect of the user's"
    assert (await http.step(session, 1, "ok"))[1]["outcome"] == "ok"
    status, body, _ = await http.send("POST", "/reset", json={"task": {"delay_s": "not a number"}, "session_id": "s"})
    assert (status, "not a number" in body["detail"]) == (422, True)
    status, body, _ = await http.send("POST", "/reset", json={"task": {"greeting": "hi"}, "session_id": "s"})
    assert body["observation"] == "hi"


async def test_sessions_beyond_the_limit_are_refused_and_unused_ones_expire(tmp_path):
    for ttl_s in growing(3.0):
        with env_server(ECHO, tmp_path, "--max-sessions", "2", "--session-ttl", f"{ttl_s:g}") as (url, _):
            async with Http(url) as http:
                first = await http.open()
                await http.open()
                if (await http.send("POST", "/reset", json={}))[0] != 429:
                    continue  # the first one may have expired before
                while (await http.send("GET", "/health"))[1]["sessions"]:
                    await asyncio.sleep(0.05)
                status, body, _ = await http.step(first, 0, "a")
                assert status == 404
                assert f" {ttl_s:g} s" in body["detail"]
                return
    raise AssertionError("a third session was never refused")


async def test_with_a_token_everything_but_health_needs_it(tmp_path):
    with env_server(ECHO, tmp_path, env={"TIR_ENV_TOKEN": "t0ken"}) as (url, _):
        async with Http(url) as stranger, Http(url, "wrong") as liar, Http(url, "t0ken") as friend:
            for http in (stranger, liar):
                assert (await http.send("POST", "/reset", json={}))[0] == 401
                assert (await http.send("GET", "/schema"))[0] == 401
            assert (await stranger.send("GET", "/health"))[0] == 200
            assert (await friend.send("POST", "/reset", json={}))[0] == 200


@pytest.mark.parametrize(("main", "flags"), [(echo, []), (python_tir, ["--isolation", "none", "--no-languages"])])
def test_a_public_address_needs_a_token(main, flags, monkeypatch):
    monkeypatch.delenv("TIR_ENV_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", ["a server", "--host", "0.0.0.0", *flags])
    with pytest.raises(SystemExit, match="TIR_ENV_TOKEN") as end:
        main()
    assert len(str(end.value).splitlines()) == 1


def test_a_port_in_use_is_reported_in_one_line(small):
    command = [sys.executable, "-m", ECHO, "--port", small.rsplit(":", 1)[1]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 1
    assert "Address already in use" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


async def test_a_stopped_server_finishes_its_running_steps(tmp_path):
    with env_server(ECHO, tmp_path) as (url, process):
        async with Http(url) as http:
            session = await http.open({"delay_s": 1.0})
            call = asyncio.create_task(http.step(session, 0, "last words"))
            await http.until_begun(call)
            process.send_signal(signal.SIGTERM)
            assert (await call)[1]["observation"] == "last words"
        await asyncio.to_thread(process.wait, 120)

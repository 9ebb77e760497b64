"""python_tir over HTTP: outcomes and signals of real snippets, and a server that outlives all of them."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import nullcontext

import aiohttp
import pytest

from openrlhf_tir.cli.checks.envs import check_env
from openrlhf_tir.cli.checks.host import Machine
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

from ..env_process import Http, env_server, growing

PYTHON = "env_servers.python_tir"

TRACE = "Traceback (most recent call last):"


@pytest.fixture
async def http(python_server):
    async with Http(python_server[0]) as http:
        yield http


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "outcome", "error_type", "observation"),
    [
        ("print(2**10)", "ok", None, "1024\n"),
        ("", "ok", None, ""),
        ("while True: pass", "model_error", "time_limit", "TimeLimitExceeded"),
        (
            "1/0",
            "model_error",
            "exception",
            f"{TRACE}\n  line 1, in <module>\n    1/0\n    ~~\nZeroDivisionError: division by zero\n",
        ),
        ("import sys; sys.exit(2)", "model_error", "exception", ""),
        (
            "x = [0] * 10**10",
            "model_error",
            "memory",
            f"{TRACE}\n  line 1, in <module>\n    x = [0] * 10**10\n        ~~~~~~~~~~~\nMemoryError\n",
        ),
    ],
)
async def test_observations_of_successful_and_failing_code(http, code, outcome, error_type, observation):
    session = await http.open()
    if error_type == "time_limit":
        _, body, _ = await http.step(session, 0, code)
    else:
        body = await http.unless_late(session, 0, code)
    assert (body["outcome"], body["signals"]["error_type"], body["observation"]) == (outcome, error_type, observation)


@pytest.mark.slow
def test_a_run_with_another_time_limit_for_code_than_a_running_servers_is_refused(tmp_path):
    """The limit decides which programs are trained as TimeLimitExceeded."""
    with env_server(PYTHON, tmp_path, "--isolation", "none", "--no-languages", "--code-timeout", "7") as (url, _):
        cfg = load(None, {"env.url": url, "env.code_timeout_s": 20})
        with pytest.raises(ConfigError) as e:
            check_env(cfg, cfg.environments["python_tir"], Machine())
        assert (e.value.code, e.value.setting) == ("environment", "env.code_timeout_s")
        cfg = load(None, {"env.url": url, "env.code_timeout_s": 7})
        (fact,) = check_env(cfg, cfg.environments["python_tir"], Machine())
    assert "capacity 2" in fact and "7 s" in fact


@pytest.mark.slow
async def test_concurrent_hostile_snippets_leave_the_server_healthy(http):
    hostile = [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "while True: print('y' * 99999)",
        "x = bytearray(1 << 33)",
        "import os, signal; os.kill(1, signal.SIGKILL); os.kill(-1, signal.SIGKILL)",
        "import os; os.system('setsid sleep 600 &')",
        "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
        "import os; os.close(0); os.close(1); os.close(2)",
        "import os; os.closerange(0, 4096)",
        "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))",
        "import ctypes; ctypes.string_at(0)",
    ]
    sessions = [await http.open() for _ in hostile]
    replies = await asyncio.gather(*[http.step(s, 0, code) for s, code in zip(sessions, hostile, strict=True)])
    assert {body["outcome"] for _, body, _ in replies} <= {"ok", "model_error"}, [body for _, body, _ in replies]
    assert (await http.unless_late(await http.open(), 0, "print('well')"))["observation"] == "well\n"


async def test_waiting_for_a_worker_does_not_count_against_the_time_limit(python_server, tmp_path):
    """Twelve pieces of code of half the limit each, on two workers: the last ones wait more than twice the limit."""
    for limit_s in growing(1.0):
        started = env_server(PYTHON, tmp_path, "--workers", "2", "--code-timeout", str(limit_s))
        with nullcontext(python_server) if limit_s == 1.0 else started as (url, _):
            async with Http(url) as http:
                sessions = await asyncio.gather(*[http.open() for _ in range(12)])
                code = f"import time; time.sleep({limit_s / 2}); print(1)"
                replies = await asyncio.gather(*[http.step(s, 0, code) for s in sessions])
        if (shown := [body["observation"] for _, body, _ in replies]) == ["1\n"] * 12:
            break
    assert shown == ["1\n"] * 12


async def test_health_reports_the_proved_isolation(http):
    assert (await http.send("GET", "/health"))[1]["isolation"].startswith("bwrap")


@pytest.mark.slow
async def test_isolation_none_runs_code_and_warns_loudly(tmp_path):
    with env_server(PYTHON, tmp_path, "--isolation", "none", "--code-timeout", "1", "--no-languages") as (url, process):
        async with Http(url) as http:
            session = await http.open()
            assert (await http.unless_late(session, 0, "print(1)"))["observation"] == "1\n"
            assert (await http.step(session, 9, "while True: pass"))[1]["observation"] == "TimeLimitExceeded"
            assert (await http.send("GET", "/health"))[1]["isolation"] == "none"
        process.terminate()
        assert "WARNING: --isolation none" in process.stderr.read()


@pytest.mark.slow
async def test_snippets_end_when_their_server_is_killed(tmp_path):
    marker = f"orphan-{id(tmp_path)}"
    running = ["pgrep", "-f", f"^{marker} 600"]
    with env_server(PYTHON, tmp_path, "--code-timeout", "60", "--no-languages") as (url, process):
        async with Http(url) as http:
            code = (
                f"import os\nif os.fork(): os.execv('/usr/bin/sleep', ['{marker}', '600'])\nos.setsid();"
                f" os.execv('/usr/bin/sleep', ['{marker}', '600'])"
            )
            call = asyncio.create_task(http.step(await http.open(), 0, code))
            async with asyncio.timeout(300):
                while len(subprocess.run(running, capture_output=True).stdout.split()) < 2:
                    await asyncio.sleep(0.05)
                process.kill()
                while subprocess.run(running, capture_output=True).stdout:
                    await asyncio.sleep(0.05)
            with pytest.raises(aiohttp.ClientError):
                await call

"""--processes: one port in front, sessions in the process that /reset names."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from env_servers.echo.__main__ import main as echo
from env_servers.launch import TOKEN_ENV
from openrlhf_tir.rollout.environment_client.client import EnvClient

from ...free_port import free_port
from ...ordinary import long_except
from ..env_process import Http, env_server
from ..slow_search import write_corpus

pytestmark = [pytest.mark.extended, pytest.mark.slow]  # it waits for servers

ECHO = "env_servers.echo"
REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    with env_server(ECHO, tmp_path_factory.mktemp("env"), "--processes", "2") as (url, _):
        yield url


async def open_anywhere(front: str, task: dict) -> tuple[str, str]:
    """(session, server that holds it), over a connection of its own, so that any process may take it."""
    async with Http(front) as http:
        _, body, _ = await http.send("POST", "/reset", json={"task": task})
        return body["session_id"], body["server"]


async def open_on_each(front: str, task: dict | None = None) -> dict[str, str]:
    """server -> session"""
    owners = {}
    for _ in range(50):
        opened = await asyncio.gather(*[open_anywhere(front, task or {}) for _ in range(8)])
        owners.update({server: session for session, server in opened})
        if len(owners) == 2:
            return owners
    raise AssertionError(f"400 sessions, all on {list(owners)}")


async def test_both_processes_accept_sessions_and_only_the_owner_of_a_session_knows_it(front):
    owners = await open_on_each(front)
    (server, session), (other, _) = owners.items()
    assert front not in owners
    async with Http(server) as holder, Http(other) as stranger:
        assert (await holder.step(session, 0, "here"))[1]["observation"] == "here"
        assert (await stranger.step(session, 0, "here"))[0] == 404


async def test_a_clients_steps_and_retries_reach_the_process_that_holds_the_session(front):
    async def episode(client: EnvClient, i: int) -> str:
        async with client.session("echo", {"greeting": f"hi {i}"}) as session:
            assert await session.reset() == f"hi {i}"
            replies = [await session.step(f"{i} {k // 2}", step_id=k // 2) for k in range(6)]  # every step twice
            assert [r.observation for r in replies] == [f"{i} {k // 2}" for k in range(6)]
            return session.server

    async with EnvClient({"echo": front}) as client:
        servers = await asyncio.gather(*[episode(client, i) for i in range(24)])
    assert front not in servers
    for server in set(servers):
        async with Http(server) as http:
            assert await http.steps_counted() <= 24 * 3 + 1


SERVERS = {
    "python_tir": (
        "env_servers.python_tir",
        lambda tmp: ["--isolation", "none", "--no-languages"],
        {},
        ["x = 6", "print(6 * 7)"],
        "42\n",
    ),
    "python_tir stateful": (
        "env_servers.python_tir",
        lambda tmp: ["--stateful", "--workers", "1"],
        {},
        ["x = 6", "print(x * 7)"],
        "42\n",
    ),
    "math": ("env_servers.math", lambda tmp: ["--workers", "1"], {"label": "\\frac{1}{2}"}, ["0.25", "0.5"], "correct"),
    "search": (
        "env_servers.search",
        lambda tmp: ["--corpus", write_corpus(tmp), "--topk", "1"],
        {},
        ["3", "7"],
        'Doc 1(Title: "7") This is number 7 of them.\n',
    ),
}
"""name -> (module, flags, task, actions, what the last one shows)"""


@pytest.mark.slow
@pytest.mark.parametrize("name", long_except({"python_tir"}, SERVERS))
async def test_every_server_keeps_a_session_in_the_process_that_started_it(name, tmp_path):
    module, flags, task, actions, shows = SERVERS[name]
    with env_server(module, tmp_path, "--processes", "2", *flags(tmp_path)) as (front, _):
        owners = await open_on_each(front, task)
        assert len(owners) == 2 and front not in owners
        for server, session in owners.items():
            async with Http(server) as holder, Http(next(other for other in owners if other != server)) as stranger:
                answers = [(await holder.step(session, k, action))[1] for k, action in enumerate(actions)]
                assert answers[-1]["observation"] == shows
                assert (await holder.step(session, 1, actions[1]))[1] == answers[-1]
                assert (await stranger.step(session, 0, actions[0]))[0] == 404


async def test_when_one_process_dies_all_end_with_an_exit_code(tmp_path):
    with env_server(ECHO, tmp_path, "--processes", "2") as (front, parent):
        servers = list(await open_on_each(front))
        children = subprocess.run(["pgrep", "-P", str(parent.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(children[0]), signal.SIGKILL)
        assert await asyncio.to_thread(parent.wait, 300) == 1
        for server in servers:
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", int(server.rsplit(":", 1)[1]))


@pytest.mark.slow
async def test_a_stopped_server_finishes_the_running_steps_of_every_process(tmp_path):
    with env_server(ECHO, tmp_path, "--processes", "2") as (front, parent):
        async with Http(front) as http:
            _, body, _ = await http.send("POST", "/reset", json={"task": {"delay_s": 1.0}})
        async with Http(body["server"]) as holder:
            call = asyncio.create_task(holder.step(body["session_id"], 0, "last words"))
            await holder.until_begun(call)
            parent.send_signal(signal.SIGTERM)
            assert (await call)[1]["observation"] == "last words"
        assert await asyncio.to_thread(parent.wait, 300) == 0


@asynccontextmanager
async def started(*flags: str, cwd: Path = REPO) -> AsyncIterator[list[str]]:
    """The URLs that start_env_servers.sh prints, while its servers run."""
    argv = ["bash", str(REPO / "train_scripts/start_env_servers.sh"), *flags]
    environment = {**os.environ, "TIR_VENV": sys.prefix}
    script = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=cwd
    )
    try:
        yield (await asyncio.wait_for(script.stdout.readline(), 300)).decode().strip().split(",")
    finally:
        script.terminate()
        await script.wait()


async def test_the_start_script_prints_a_list_over_which_a_client_spreads_sessions():
    async with started("-n", "2", "-e", "echo", "-p", "0") as urls, EnvClient({"echo": urls}) as client:
        async with client.session("echo", {}) as one, client.session("echo", {}) as other:
            await one.reset()
            await other.reset()
            assert {one.server, other.server} == set(urls)
            assert [(await s.step("a", step_id=k)).observation for s in (one, other) for k in range(3)] == ["a"] * 6


async def test_the_start_scripts_servers_are_on_consecutive_ports():
    port = free_ports(2)
    async with started("-n", "2", "-e", "echo", "-p", str(port)) as urls:
        assert urls == [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"]


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", r"http://(?!0\.0)[0-9]+(\.[0-9]+){3}:[0-9]+"), ("::1", r"http://\[::1\]:[0-9]+")]
)
async def test_the_start_scripts_urls_are_those_by_which_a_client_reaches_its_servers(monkeypatch, host, url):
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setenv(TOKEN_ENV, "secret")
    async with started("-h", host, "-e", "echo", "-p", "0") as (printed,):
        assert re.fullmatch(url, printed)
        async with EnvClient({"echo": [printed]}, token="secret") as client, client.session("echo", {}) as session:
            await session.reset()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("port", ["65535", "70000", "-1", "x"])
def test_the_start_script_refuses_ports_that_do_not_exist(port):
    done = subprocess.run(
        ["bash", REPO / "train_scripts/start_env_servers.sh", "-n", "2", "-e", "echo", "-p", port],
        env={**os.environ, "TIR_VENV": sys.prefix}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and f"-p {port} " in done.stderr


async def test_the_start_script_serves_a_file_of_the_callers_directory(tmp_path):
    (tmp_path / "shop.py").write_text(
        'def price(fruit: str) -> int:\n    """Look up a price.\n\n    Args:\n        fruit: Name."""\n    return 3\n'
    )
    async with started("-e", "own", "-p", "0", "--", "shop.py:price", "--name", "shop", cwd=tmp_path) as (url,):
        async with Http(url) as http:
            assert (await http.send("GET", "/schema"))[1]["env"] == "shop"
            session = await http.open()
            body = (await http.step(session, 0, '[{"name": "price", "arguments": {"fruit": "apple"}}]'))[1]
            assert (body["outcome"], body["observation"].strip()) == ("ok", "3")


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free now."""
    for _ in range(100):
        first = free_port()
        with ExitStack() as bound:
            try:
                for port in range(first, first + count):
                    bound.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
        return first
    raise AssertionError("there are no consecutive free ports")


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--host", "0.0.0.0"], 1, "--host 0.0.0.0"),
        (["--workers", "0"], 2, "--workers: 0 "),
    ],
)
def test_flags_that_cannot_work_with_several_processes_are_refused_in_one_line(
    flags, code, message, monkeypatch, capsys
):
    monkeypatch.setenv("TIR_ENV_TOKEN", "t")
    monkeypatch.setattr(sys, "argv", ["echo", "--processes", "2", *flags])
    with pytest.raises(SystemExit) as end:
        echo()
    said = end.value.code if code == 1 else capsys.readouterr().err  # Python prints a message of its own, with code 1
    assert message in said.splitlines()[-1]
    assert code == 1 or end.value.code == code


def test_a_copy_that_ends_during_its_start_ends_all(tmp_path):
    """What only a copy is given, the sockets, tells its interpreter to end at once."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif '--listen-fds' in sys.orig_argv:\n    raise SystemExit('no')\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", ECHO, "--processes", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPO}"},
    )
    assert result.returncode == 1
    assert re.search(r"http://\S+:\d+ .*\(\w+\)", result.stderr.splitlines()[-1])

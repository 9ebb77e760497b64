"""The environment server that a run starts for itself: killed while it starts, ending by itself, killed later."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import aiohttp
import psutil
import pytest

from openrlhf_tir.cluster import env_process
from openrlhf_tir.config import Config
from openrlhf_tir.config.servers import SERVERS, ServerInfo
from openrlhf_tir.errors import ConfigError, EnvError
from tests.conftest import REPO

from ..env_process import Http, env_server


@pytest.fixture
def unsteady(monkeypatch, tmp_path):
    """-> (how it ends, start by start) -> a configuration with that server."""

    def of(ends: str) -> Config:
        monkeypatch.setitem(SERVERS, "echo", ServerInfo("tests.contract.unsteady_server"))
        monkeypatch.setenv("UNSTEADY", ends)
        monkeypatch.setenv("UNSTEADY_COUNT", str(tmp_path / "starts"))
        return Config.model_validate({"run_dir": tmp_path, "env": {"name": "echo"}})

    return of


async def healthy(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.slow
async def test_a_server_killed_during_its_start_is_started_again(unsteady, tmp_path):
    async with env_process.env_urls(unsteady("kk")) as urls:
        assert await healthy(urls["echo"][0])
    assert (tmp_path / "starts").read_text() == "..."


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "starts"), [("", "."), ("k", "..")])
async def test_a_server_started_in_the_background_is_the_one_that_serves(unsteady, tmp_path, ends, starts):
    config = unsteady(ends)
    async with env_process.begun_servers(config) as servers:
        server = servers["echo"]
        async with asyncio.timeout(300):
            while not server.port_file.exists() and server.process.returncode is None:
                await asyncio.sleep(0.01)
        async with env_process.env_urls(config, servers) as urls:
            assert await healthy(urls["echo"][0])
    assert (tmp_path / "starts").read_text() == starts
    assert server.process.returncode is not None


@pytest.mark.slow
async def test_a_server_killed_at_every_start_is_a_fault_and_not_the_users_mistake(unsteady):
    with pytest.raises(EnvError, match=r"^\D*\b3\b"):
        async with env_process.env_urls(unsteady("kkkk")):
            pass


async def test_a_server_that_exits_by_itself_is_a_mistake_reported_with_its_output(unsteady):
    with pytest.raises(ConfigError, match=r"(?s)^\D*\b1\b.*no such option"):
        async with env_process.env_urls(unsteady("ee")):
            pass


def words(process: psutil.Process) -> list[str]:
    """The command line; nothing of one that has just ended, as servers of the tests before this one may have."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
async def test_a_server_killed_later_is_restarted_at_its_address(unsteady, tmp_path):
    async with env_process.env_urls(unsteady("")) as urls:
        url = urls["echo"][0]
        (server,) = (p for p in psutil.Process().children() if "tests.contract.unsteady_server" in words(p))
        server.kill()
        async with asyncio.timeout(300):
            while (tmp_path / "starts").read_text() == ".":
                await asyncio.sleep(0.01)
            while not await healthy(url):
                await asyncio.sleep(0.05)


FORKING = """
import os, signal, sys, time
from env_servers.env import Env, Step

class Forking(Env):
    async def step(self, action, deadline_s):
        pid = os.fork()
        if not pid:
            time.sleep(600)
            os._exit(0)
        return Step(str(pid))
"""
"""An environment class whose worker processes are forked and stay, as those of a pool do."""


@pytest.mark.slow
async def test_worker_processes_of_a_killed_server_end_with_it_and_its_address_is_free(tmp_path):
    (tmp_path / "forking.py").write_text(FORKING)
    cfg = Config.model_validate({"run_dir": tmp_path, "env": {"name": "forking", "file": f"{tmp_path}/forking.py"}})
    async with env_process.env_urls(cfg) as urls:
        async with Http(urls["forking"][0]) as http:
            worker = psutil.Process(int((await http.step(await http.open(), 0, ""))[1]["observation"]))
        worker.parent().kill()
        async with asyncio.timeout(300):
            while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)
            while not await healthy(urls["forking"][0]):
                await asyncio.sleep(0.05)


async def test_forked_worker_processes_do_not_hold_the_port_of_a_server_that_a_user_started(tmp_path):
    (tmp_path / "forking.py").write_text(FORKING)
    flags = (f"{tmp_path}/forking.py", "--name", "forking")
    with env_server("env_servers.own", tmp_path, *flags) as (url, server):
        async with Http(url) as http:
            worker = psutil.Process(int((await http.step(await http.open(), 0, ""))[1]["observation"]))
        server.kill()
        server.wait(60)
        try:
            with env_server("env_servers.own", tmp_path, *flags, "--port", url.rpartition(":")[2]) as (same, _):
                assert same == url and await healthy(url)
            assert worker.is_running()
        finally:
            worker.kill()


RUN = """
import asyncio, pathlib, sys
from openrlhf_tir.cluster import env_process
from openrlhf_tir.config import Config

async def run():
    config = Config.model_validate({"run_dir": pathlib.Path(sys.argv[1]).parent, "env": {"name": "echo"}})
    async with env_process.env_urls(config):
        sys.exit("It is up: the starter was to be killed before.")

asyncio.run(run())
"""


HELD = """
import os, sys
if "--die-with-parent" in sys.orig_argv:
    os.read(os.open(os.environ["GATE"], os.O_RDONLY), 1)
"""
"""A server's interpreter waits here for a byte of its own before it imports anything."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starter", "servers"),
    [(("-c", RUN), 1), (("-m", "env_servers.echo", "--processes", "2", "--port-file"), 2)],
    ids=["run", "front"],
)
@pytest.mark.extended
def test_a_server_whose_parent_is_killed_during_the_start_ends(starter, servers, tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    (tmp_path / "sitecustomize.py").write_text(HELD)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPO}", "GATE": str(gate)}
    starts = subprocess.Popen([sys.executable, *starter, str(tmp_path / "server.port")], env=environment)
    give_up = time.monotonic() + 300
    while len(started := psutil.Process(starts.pid).children()) < servers:
        assert starts.poll() is None and time.monotonic() < give_up
    starts.kill()  # they have imported nothing yet, and have not asked to be told
    starts.wait()
    opened = os.open(gate, os.O_RDWR)
    os.write(opened, b"." * servers)
    _, alive = psutil.wait_procs(started, timeout=300)
    os.close(opened)
    for server in alive:
        server.kill()
    assert alive == []
    assert not list(tmp_path.glob("*.port"))

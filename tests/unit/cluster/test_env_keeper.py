"""The environment server that a run starts: kept alive through deaths and failed forks; a restart by the launcher is
patient at its start."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.cluster import env_process
from openrlhf_tir.cluster.env_process import env_urls
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.simulation import virtual_loop


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch):
    """The processes of this file are none."""
    monkeypatch.setattr(env_process, "watched", lambda *_, **__: None)
    monkeypatch.setattr(env_process, "kill_all", lambda server: None)


class Process:
    """A server process that lives until `die`."""

    pid = 0

    def __init__(self):
        self.returncode = None
        self._over = asyncio.Event()

    async def wait(self):
        await self._over.wait()
        return self.returncode

    def die(self, code):
        self.returncode = code
        self._over.set()

    def terminate(self):
        self.die(-15)


class Machine:
    """What becomes of each start in turn: fork's exception, an exit code, or None: it comes up. Then all come up."""

    def __init__(self, tmp_path, *fates):
        self.port_file, self.fates = tmp_path / "env_server.port", list(fates)
        self.at, self.running, self.ports = [], None, []
        (tmp_path / "env_server.log").write_text("what it said")

    async def fork(self, *command, **_):
        self.at.append(asyncio.get_running_loop().time())
        self.ports.append(command[command.index("--port") + 1])
        fate = self.fates.pop(0) if self.fates else None
        if isinstance(fate, Exception):
            raise fate
        self.running = Process()
        if fate is None:
            self.port_file.write_text("8123")
        else:
            self.running.die(fate)
        return self.running


def config(tmp_path, **train):
    return Config.model_validate({"run_dir": tmp_path, "env": {"name": "echo"}, "train": train})


def test_a_keeper_survives_failed_forks_and_the_server_comes_back_on_its_port(tmp_path, monkeypatch):
    no_room = BlockingIOError(11, "Resource temporarily unavailable")
    machine = Machine(tmp_path, None, no_room, no_room, 1)
    monkeypatch.setattr(env_process.asyncio, "create_subprocess_exec", machine.fork)

    async def main():
        async with env_urls(config(tmp_path)) as urls:
            assert urls == {"echo": ["http://127.0.0.1:8123"]}
            machine.running.die(-9)
            await asyncio.sleep(3600)
            assert machine.running.returncode is None
        return machine.running.returncode

    assert virtual_loop.run(main()) == -15
    first = machine.at[1]
    assert [round(t - first) for t in machine.at[1:]] == [0, 1, 3, 7] and machine.ports == [
        "0",
        "8123",
        "8123",
        "8123",
        "8123",
    ]


def test_a_server_whose_end_cannot_be_put_on_record_comes_back(tmp_path, monkeypatch):
    machine = Machine(tmp_path, None)
    monkeypatch.setattr(env_process.asyncio, "create_subprocess_exec", machine.fork)

    async def no_room(*_):
        raise OSError(28, "No space left on device")

    async def main():
        async with env_urls(config(tmp_path)):
            monkeypatch.setattr(env_process, "end_of", no_room)
            machine.running.die(-9)
            await asyncio.sleep(3600)
            return machine.running.returncode, len(machine.at)

    assert virtual_loop.run(main()) == (None, 2)


def test_a_server_that_ends_at_its_start_is_told_to_a_person_and_tried_again_by_a_restart(tmp_path, monkeypatch):
    async def start(**train):
        machine = Machine(tmp_path, 1, 1)
        monkeypatch.setattr(env_process.asyncio, "create_subprocess_exec", machine.fork)
        async with env_urls(config(tmp_path, **train)):
            return len(machine.at)

    with pytest.raises(ConfigError, match=r" 1\. .*\.log\)"):
        virtual_loop.run(start())
    assert virtual_loop.run(start(start_wait_s=900)) == 3


def test_every_environment_without_a_url_gets_a_server_with_its_own_flags_and_log(tmp_path, monkeypatch):
    commands = []

    async def fork(*command, **_):
        commands.append(command)
        port_file = env_process.Path(command[command.index("--port-file") + 1])
        port_file.write_text(str(8000 + len(commands)))
        return Process()

    monkeypatch.setattr(env_process.asyncio, "create_subprocess_exec", fork)
    sections = {
        "sums": {
            "server": "python_tir",
            "workers": 3,
            "server_options": {"stateful": True, "echo_last": True, "memory_mib": 64, "warm": False},
        },
        "wiki": {"server": "search", "server_options": {"corpus": "w.jsonl"}},
        "guess": {"file": "/g.py:Guess", "server_options": {"log-level": "info"}},
        "far": {"url": "http://far:1/, http://far:2"},
    }
    cfg = Config.model_validate({"run_dir": tmp_path, "envs": sections})

    async def main():
        async with env_urls(cfg) as urls:
            return urls

    far = ["http://far:1", "http://far:2"]
    assert virtual_loop.run(main()) == {
        "far": far,
        **{name: [f"http://127.0.0.1:800{i}"] for i, name in enumerate(("sums", "wiki", "guess"), 1)},
    }
    said = [" ".join(command[2:3] + command[command.index(str(env_process.os.getpid())) + 1 :]) for command in commands]
    assert said == [
        "env_servers.python_tir --workers 3 --code-timeout 5.0 --stateful --echo-last --memory-mib 64 --no-warm",
        "env_servers.search --workers 2 --corpus w.jsonl",
        'env_servers.own /g.py:Guess --name guess --reset-timeout 54 --options {"log-level": "info"}',
    ]
    assert {path.name for path in tmp_path.glob("*.log")} == {
        "env_server_sums.log",
        "env_server_wiki.log",
        "env_server_guess.log",
    }


@pytest.mark.parametrize("options", [{"port": 1}, {"a b": 1}, {"corpus": [1]}])
def test_options_that_are_no_flag_of_a_server_are_refused(options):
    e = Config(envs={"wiki": {"server": "search", "server_options": options}}).environments["wiki"]
    with pytest.raises(ConfigError, match=r"envs\.wiki\.server_options"):
        env_process.server_flags(e)
